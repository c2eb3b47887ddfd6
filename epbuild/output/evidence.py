"""What is written about an output beside its manifest: its provenance and its bill of materials, from what a build knows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from epbuild.archive.artifact import Artifact
from epbuild.output.bom import bill
from epbuild.output.contents import LaidOut
from epbuild.output.emitted import EmittedModel, compiled_models
from epbuild.output.jsonfile import JsonFile
from epbuild.output.materials import Built, InputFile, Materials, Prepared, RecipeFiles, gather, recipe_file
from epbuild.output.provenance import Subject, statement
from epbuild.plan.made import Made
from epbuild.plan.preparing import Preparation
from epbuild.plan.steps import Emission
from epbuild.recipe.model import Recipe


def bill_of(
    emission: Emission,
    laid: Sequence[LaidOut],
    artifacts: Sequence[Artifact],
    base: Sequence[EmittedModel],
    recipe: Recipe,
    digests: Mapping[Path, str],
) -> JsonFile:
    """The bill of materials of an output that consists of `artifacts` and what tells of them.

    `base` are the models that were not compiled; `digests` are those of the user's files.
    """
    made = {item.group.id: item for each in laid for item in each.made}
    materials = _materials(emission, list(made.values()), recipe, digests)
    models = [*base]
    for item in laid:
        part = item.part
        data = {model["member"]: model["data"] for made in item.made for model in made.result["models"]}
        models += compiled_models(item.models, [_built(made) for made in item.made], data, part.folder)
    return bill(materials, models, artifacts, name=f"{emission.title}/{emission.id.removeprefix('emit:')}")


def statement_of(
    emission: Emission,
    key: str,
    artifacts: Iterable[Artifact],
    made: Sequence[Made],
    recipe: Recipe,
    digests: Mapping[Path, str],
) -> JsonFile:
    """The provenance of `artifacts`, which the emission with that `key` made; `digests` are those of the user's files."""
    materials = _materials(emission, made, recipe, digests)
    output = {
        "layout": emission.layout,
        **({"pack": emission.pack} if emission.pack is not None else {}),
        **({"push": str(emission.push)} if emission.push is not None else {}),
    }
    return statement(materials, (Subject(item.path, item.sha256) for item in artifacts), invocation=key, output=output)


def _materials(emission: Emission, made: Sequence[Made], recipe: Recipe, digests: Mapping[Path, str]) -> Materials:
    """All that an output was made of."""
    # A bill of materials alone does not name the recipe's files.
    read = tuple(recipe_file(path, recipe.directory, digests[path]) for path in recipe.files if path in digests)
    assets = (InputFile(path.name, digests[path]) for path in emission.files)
    return gather(RecipeFiles(recipe.name, read), (_built(item) for item in made), assets)


def _built(item: Made) -> Built:
    group = item.group
    return Built(
        action=group.id,
        key=item.key,
        document=item.document,
        group=group.group,
        target=group.target.name,
        reproducible=group.reproducible,
        toolchain=group.target.toolchain.name,
        models={member.name: member.model.path for member in group.members},
        data_folders={member.name: folder for member in group.members if (folder := member.data_folder) is not None},
        prepared={
            member.name: tuple(_prepared(made) for made in item.prepared(member.name))
            for member in group.members
            if member.prepared is not None
        },
        renamed={member.name: member.model.name for member in group.members if member.name != member.model.name},
    )


def _prepared(item: Made) -> Prepared:
    action = item.action
    if not isinstance(action, Preparation):
        raise TypeError(action.id)
    return Prepared(action.id, item.key, item.document, action.toolchain.name)
