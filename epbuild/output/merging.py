"""Merging of a group's compiled models into one."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field
from msgspec.structs import replace

from epbuild.catalog.catalog import BUILT_IN
from epbuild.core.errors import BuildError, ChangeRefused, Problem, StepId, VerifyError
from epbuild.core.typed_json import to_json
from epbuild.onnxfile.epcontext import compatibility
from epbuild.onnxfile.headers import read_header
from epbuild.output.files import OutputFile
from epbuild.plan.key import action_key
from epbuild.plan.result import ContextNode
from epbuild.plan.steps import Merging, Part

if TYPE_CHECKING:
    from epbuild.onnxfile.merge import Merged


class MergedModels(Struct, frozen=True):
    """The model that those of a part become."""

    part: Part
    merging: Merging
    files: tuple[OutputFile, ...]
    """The models under draft names, and the files that they refer to; paths are below the part's folder."""

    @property
    def identity(self) -> str:
        paths = {file.path: file.source.identity for file in self.files}
        members = {member: paths[name] for member, name in draft_names(self.part, self.merging).items()}
        return action_key({"merge": settings_of(self.merging), "members": members})


class MergedModel(Struct, frozen=True):
    """The merged model as a manifest has it: its EPContext nodes, and what its EPs wrote into it, as plain data."""

    nodes: tuple[dict[str, Any], ...] = ()
    compatibility: Mapping[str, str] = field(default_factory=dict)


def settings_of(merging: Merging) -> dict[str, Any]:
    """All that merging depends on beside the models, as plain data."""
    connections = merging.connections
    return {
        "name": merging.name,
        "order": ", ".join(merging.members),
        "prefixes": dict(merging.prefixes),
        "connect": "same names" if connections is None else dict(_shown(merging, *item)[::-1] for item in connections),
    }


def merged_key(merging: Merging, keys: Mapping[str, str]) -> str:
    """The digest that names everything that a merged model depends on; `keys` are those of its members."""
    return action_key({"merge": settings_of(merging), "members": dict(keys)})


def draft_names(part: Part, merging: Merging) -> dict[str, str]:
    """Where the members are while they are merged: beside the merged model, since that is where their references lead from."""
    folder = posixpath.dirname(part.models[merging.name])
    return {member: posixpath.join(folder, f".{member}.merging.onnx") for member in merging.members}


def merge(part: Part, merging: Merging, staged: Path) -> list[str]:
    """Put the merged model in the place of the members' models below `staged`, where these and all that they refer to are.

    Returns sentences: what was connected, and what was left out. Raises BuildError where the models cannot be merged.
    """
    from epbuild.onnxfile.merge import merge_models

    paths = {member: staged / name for member, name in draft_names(part, merging).items()}
    destination = staged / part.models[merging.name]
    own = {source: ep.entry.context_changes for ep in part.target.eps for source in ep.entry.sources}
    pairs = [(paths[member], merging.prefixes[member]) for member in merging.members]
    try:
        made = merge_models(pairs, merging.connections, destination, {**BUILT_IN.context_changes(), **own})
    except (ChangeRefused, VerifyError) as error:
        raise BuildError(*(_about_members(problem, paths, merging.step) for problem in error.problems)) from error
    for path in paths.values():
        path.unlink()
    return _notes(merging, made)


def read_merged(model: Path) -> MergedModel:
    header = read_header(model)
    return MergedModel(
        nodes=tuple(to_json(ContextNode.of(node)) for node in header.ep_context_nodes),
        compatibility=compatibility(header.metadata),
    )


def _about_members(problem: Problem, paths: Mapping[str, Path], step: str) -> Problem:
    """A problem of internal files, as one of the members, at the step."""
    message, hint = problem.message, problem.hint
    for member, path in paths.items():
        message = message.replace(str(path), f"'{member}'")
    if hint is not None:
        hint = hint.replace("--prefix", "the group's merge.prefixes")
    return replace(problem, message=message, hint=hint, where=StepId(step))


def _notes(merging: Merging, made: Merged) -> list[str]:
    fed = [f"{output} feeds {value}" for output, value in (_shown(merging, *item) for item in made.connections)]
    shared = [f"the input {name} is one for all models that have it" for name in made.shared_inputs]
    return [*(fed or ["no output feeds an input"]), *shared, *made.notes]


def _shown(merging: Merging, source: int, output: str, target: int, value: str) -> tuple[str, str]:
    """The two ends of a connection, as a recipe writes them."""
    return f"{merging.members[source]}.{output}", f"{merging.members[target]}.{value}"
