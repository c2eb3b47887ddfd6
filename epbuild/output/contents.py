"""What an output consists of: the artifacts of its parts under the names that the plan gives them, and what is written about them.

Most of it is in the store and stays there for now. What is made for the output alone, such as a model whose references follow a renamed
binary, comes from a bench: one makes it, in a folder to work in; another only names it (`identities`), which is what keys are made of.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Protocol

from epbuild.archive.artifact import Artifact, Role
from epbuild.cache.blobs import BlobStore
from epbuild.core.digest import digest_of, file_digest
from epbuild.core.errors import BuildError, Problem, StepId
from epbuild.onnxfile.relink import relink
from epbuild.output.jsonfile import JsonFile
from epbuild.output.layout import Placed, Stored, StoredModel, arrange
from epbuild.output.manifest import ManifestModel, render
from epbuild.output.merging import MergedModel, draft_names, merge, merged_key
from epbuild.plan.made import Made, prepared_by
from epbuild.plan.outputs import MANIFEST
from epbuild.plan.steps import Emission, Merging, Part, PlannedEp, PlannedTarget

if TYPE_CHECKING:
    from epbuild.output.emitted import EmittedModel
    from epbuild.output.package import Inference


@dataclass(frozen=True)
class LaidOut:
    """A part with its files, whose paths are below the output's root, and its models as the manifest tells of them."""

    part: Part
    made: tuple[Made, ...]
    models: tuple[ManifestModel, ...]
    artifacts: tuple[Artifact, ...]

    def base_models(self) -> list[EmittedModel]:
        """The part's models as they were before compiling, where they lie beside the compiled ones."""
        from epbuild.output.emitted import base_models

        return base_models(self.models, self.part.base, self.part.folder)

    def path(self, name: str) -> str:
        """The path below the output's root of what is called `name` in the part."""
        return posixpath.join(self.part.folder, name)


class Bench(Protocol):
    """What names the files of an output, or makes those that are made for it alone: the same code asks for both.

    Every path is a POSIX path below the output's root.
    """

    def written(self, path: str, role: Role, file: JsonFile) -> Artifact:
        """A file that is generated."""

    def shipped(self, path: str, role: Role, file: Path, sha256: str) -> Artifact:
        """A file of the user's as it is, whose SHA-256 was found before."""

    def stored(self, path: str, role: Role, artifact: Stored) -> Artifact:
        """An artifact as it is."""

    def relinked(self, path: str, role: Role, artifact: Stored, renames: Mapping[str, str]) -> Artifact:
        """A model whose references to binaries are changed."""

    def merged(self, part: Part, merging: Merging, placed: Sequence[Placed], say: Callable[[str], None]) -> Merged:
        """The model that those of a part become, and the files that they refer to; `placed` has both under draft names.

        `say` is told what was connected, and what was left out. Raises BuildError where they cannot be merged.
        """


@dataclass(frozen=True)
class Merged:
    """A merged model as the manifest tells of it, its file, and all others of its part."""

    model: MergedModel
    file: Artifact
    others: tuple[Artifact, ...]


class Workbench:
    """The bench that makes them: `folder` holds them at the paths that they will have below the output's root.

    Its methods raise MissingBlob or DamagedBlob when an artifact has to be made again.
    """

    def __init__(self, folder: Path, store: BlobStore) -> None:
        self.folder = folder
        self._store = store

    def written(self, path: str, role: Role, file: JsonFile) -> Artifact:
        return self.bytes_written(path, role, file.data)

    def bytes_written(self, path: str, role: Role, data: bytes) -> Artifact:
        """A file with that content."""
        file = self.folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
        return Artifact(path, role, len(data), digest_of(data), file)

    def shipped(self, path: str, role: Role, file: Path, sha256: str) -> Artifact:
        return Artifact(path, role, file.stat().st_size, sha256, file)

    def stored(self, path: str, role: Role, artifact: Stored) -> Artifact:
        return Artifact(path, role, artifact.size, artifact.digest)

    def relinked(self, path: str, role: Role, artifact: Stored, renames: Mapping[str, str]) -> Artifact:
        file = self.folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        original = self.folder.with_name("original")  # not called as the file is, whose name may be as long as any
        self._store.materialise(artifact.digest, original)
        relink(original, file, renames)
        original.unlink()
        return self._made(path, role)

    def merged(self, part: Part, merging: Merging, placed: Sequence[Placed], say: Callable[[str], None]) -> Merged:
        drafts = set(draft_names(part, merging).values())
        artifacts = {item.path: self._fetched(posixpath.join(part.folder, item.path), item) for item in placed}
        model = merge(part, merging, self.folder / part.folder, say)
        file = self._made(posixpath.join(part.folder, part.models[merging.name]), "model")
        return Merged(model, file, tuple(artifact for path, artifact in artifacts.items() if path not in drafts))

    def _fetched(self, path: str, item: Placed) -> Artifact:
        if item.renames:
            return self.relinked(path, item.role, item.artifact, item.renames)
        self._store.materialise(item.artifact.digest, self.folder / path)
        return Artifact(path, item.role, item.artifact.size, item.artifact.digest, self.folder / path)

    def _made(self, path: str, role: Role) -> Artifact:
        """A file that lies here already."""
        file = self.folder / path
        return Artifact(path, role, file.stat().st_size, file_digest(file), file)


def lay_out(emission: Emission, part: Part, made: Sequence[Made], bench: Bench, say: Callable[[str], None]) -> LaidOut:
    """The files of a part, less its manifest; `say` is told how models were merged.

    Raises BuildError when two files would get one path, or the models cannot be merged, and what the bench raises.
    """
    merging = part.merging
    stored = [model for item in made for model in _stored_models(item)]
    names = part.models if merging is None else draft_names(part, merging)
    placed = arrange(stored, names, part.binaries, MANIFEST, emission.id)
    if merging is None:
        artifacts = tuple(_content(item, part.folder, bench) for item in placed)
        return LaidOut(part, tuple(made), tuple(_models(part, made, placed)), artifacts)
    merged = bench.merged(part, merging, placed, say)
    models = (_merged_model(part, merging, made, merged.model),)
    return LaidOut(part, tuple(made), models, (*merged.others, merged.file))


def base_contents(emission: Emission, laid: LaidOut, folder: str, bench: Bench, others: Sequence[Artifact]) -> list[Artifact]:
    """The part's models as they were before compiling, below `folder`, with that of their external data which is not there already.

    `others` are the files that are there already: an EP may have left external data in its place. Raises BuildError when one of these
    files would be in the place of another one.
    """
    if not laid.part.base:
        return []
    taken = {artifact.path.casefold(): artifact for artifact in others}
    found = []
    for item in laid.made:
        for member, listed in zip(item.group.members, item.document["members"], strict=True):
            name = laid.part.base.get(member.name)
            if name is None:
                continue
            path = posixpath.join(folder, name)
            files = [bench.shipped(path, "base-model", member.graph, listed["graph"])]
            for location, source in member.external.items():
                beside = posixpath.normpath(posixpath.join(posixpath.dirname(path), location))
                files.append(bench.shipped(beside, "base-data", source, listed["external"][location]))
            for artifact in files:
                other = taken.setdefault(artifact.path.casefold(), artifact)
                if other is artifact:
                    found.append(artifact)
                elif (other.path, other.sha256) != (artifact.path, artifact.sha256):
                    raise _in_the_way(emission, f"two different files would be written to '{artifact.path}'")
    for artifact in taken.values():
        inside = next((str(above) for above in PurePosixPath(artifact.path).parents if str(above).casefold() in taken), None)
        if inside is not None:
            raise _in_the_way(emission, f"'{inside}' would be a file and the folder of '{artifact.path}'")
    return found


def _in_the_way(emission: Emission, what: str) -> BuildError:
    hint = "Put ${model} into the folder of 'base', and let it hold nothing else."
    return BuildError(Problem("EPB422", f"with the models as they were before compiling, {what}", StepId(emission.id), hint))


def inference_of(target: PlannedTarget, ep: PlannedEp, *, share: bool) -> Inference:
    """The options that a session with `ep` needs to run what was compiled for the target; `share`: its models share weights."""
    from epbuild.output.package import for_inference  # few outputs say it

    files = [*target.session_files, *ep.files]
    return for_inference(target.session_options, ep.provider_options, share=share, files=files, only_compiling=ep.only_compiling)


def in_order(artifacts: Sequence[Artifact]) -> tuple[Artifact, ...]:
    """The contents by their paths. Raises ValueError when two have one."""
    ordered = tuple(sorted(artifacts, key=lambda artifact: artifact.path.split("/")))
    if len({artifact.path.casefold() for artifact in ordered}) < len(ordered):
        raise ValueError("two files have one path")
    return ordered


def part_manifest(laid: LaidOut, artifacts: Sequence[Artifact], recipe: str, provenance: str | None) -> JsonFile:
    """The manifest of a part; `artifacts` are all the files of it, and their paths there are relative to the part's folder."""
    prefix = f"{laid.part.folder}/" if laid.part.folder else ""
    toolchain = laid.made[0].document["toolchain"]
    return render(
        recipe=recipe,
        group=laid.part.group,
        share_weights=laid.made[0].group.share,
        target=_target(laid.part),
        toolchain={name: toolchain[name] for name in ("python", "platform", "distributions")},
        custom_ops=_custom_ops(laid.made[0].document),
        models=laid.models,
        files=[
            replace(artifact, path=artifact.path.removeprefix(prefix)) if prefix else artifact for artifact in in_order(artifacts)
        ],
        provenance=provenance,
    )


def _custom_ops(document: Mapping[str, Any]) -> list[dict[str, str]]:
    """The custom operators of a key's document, as an application looks for them."""
    return [
        {"library": ops["name"], "sha256": ops["library"]} if ops["library"] else {"module": ops["name"]}
        for ops in document.get("custom_ops", ())
    ]


def _content(item: Placed, folder: str, bench: Bench) -> Artifact:
    path = f"{folder}/{item.path}" if folder else item.path
    if item.renames:
        return bench.relinked(path, item.role, item.artifact, item.renames)
    return bench.stored(path, item.role, item.artifact)


def _stored_models(made: Made) -> list[StoredModel]:
    artifacts = {name: Stored(name, blob["digest"], blob["size"]) for name, blob in made.result["artifacts"].items()}
    return [
        StoredModel(
            member=model["member"],
            model=artifacts[model["file"]],
            binaries=tuple((ep, artifacts[name]) for name, ep in model["binaries"].items()),
            data=tuple(artifacts[name] for name in model["data"]),
        )
        for model in made.result["models"]
    ]


def _models(part: Part, made: Sequence[Made], placed: Sequence[Placed]) -> list[ManifestModel]:
    references = {item.path: item.renames for item in placed}
    return [
        ManifestModel(
            name=model["member"],
            file=part.models[model["member"]],
            action_key=item.key,
            source=_source(members[model["member"]], model),
            nodes=[_relinked(node, references[part.models[model["member"]]]) for node in model["nodes"]],
            fallback_nodes=model["fallback_nodes"],
            compatibility=model["compatibility"],
            left=model.get("left", ()),
        )
        for item, members in ((item, _listed_members(item)) for item in made)
        for model in item.result["models"]
    ]


def _merged_model(part: Part, merging: Merging, made: Sequence[Made], merged: MergedModel) -> ManifestModel:
    members = [(item, model) for item in made for model in item.result["models"]]
    listed = {name: member for item in made for name, member in _listed_members(item).items()}
    return ManifestModel(
        name=merging.name,
        file=part.models[merging.name],
        action_key=merged_key(merging, {model["member"]: item.key for item, model in members}),
        source=None,
        nodes=merged.nodes,
        fallback_nodes=sum(model["fallback_nodes"] for _, model in members),
        compatibility=merged.compatibility,
        left=[
            {**left, "node": f"{merging.prefixes[model['member']]}{left['node']}" if left["node"] else ""}
            for _, model in members
            for left in model.get("left", ())
        ],
        merged=[
            {"name": model["member"], "action_key": item.key, "source": _source(listed[model["member"]], model)}
            for item, model in members
        ],
    )


def _target(part: Part) -> dict[str, Any]:
    target = part.target
    return {
        "name": target.name,
        "eps": [_ep(ep) for ep in target.eps],
        "session_options": dict(target.session_options),
        "environment": dict(target.environment),
        "unchecked_options": list(target.unchecked),
        **({} if part.reproducible else {"reproducible": "no"}),
        **({"not_reproducible": part.known_to_differ} if part.known_to_differ else {}),
    }


def _ep(ep: PlannedEp) -> dict[str, Any]:
    device = ep.device
    return {
        "ep": ep.entry.ep,
        "module": ep.entry.module,
        "device": {
            "type": device.type,
            "vendor": device.vendor,
            "metadata": dict(device.metadata),
            "virtual": device.virtual,
        },
        "provider_options": ep.lasting_options,
    }


def _listed_members(made: Made) -> dict[str, Mapping[str, Any]]:
    """What the document behind a group's key says of each member, by its name, with the name of its model."""
    models = {member.name: member.model.name for member in made.group.members}
    return {
        member["name"]: {**member, "model": models[member["name"]], **prepared_by(made.prepared(member["name"]))}
        for member in made.document["members"]
    }


def _source(listed: Mapping[str, Any], model: Mapping[str, Any]) -> dict[str, Any]:
    named = {"model": listed["model"]} if listed["model"] != listed["name"] else {}
    sizes = {"sizes": listed["inputs"]} if "inputs" in listed else {}
    prepared = {"prepared": listed["prepared"]} if "prepared" in listed else {}
    return {"sha256": listed["graph"], "external_data": listed["external"], **named, **sizes, **prepared, **model["source"]}


def _relinked(node: Mapping[str, Any], renames: Mapping[str, str]) -> dict[str, Any]:
    if "reference" not in node:
        return dict(node)
    return {**node, "reference": renames.get(node["reference"], node["reference"])}
