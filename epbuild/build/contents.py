"""What an output consists of: the artifacts of its parts under the names that the plan gives them, and what is written about them.

Most of it is in the store and stays there for now. What is made for the output alone, such as a model whose references follow a renamed
binary, is written into a folder to work in.
"""

from __future__ import annotations

import hashlib
import posixpath
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from epbuild.build.merging import MergedModel, draft_names, merge, merged_key
from epbuild.emit import Content, ManifestModel, Placed, Role, Stored, StoredModel, arrange, render
from epbuild.errors import BuildError, Problem, StepId
from epbuild.onnxfile import relink
from epbuild.plan import MANIFEST, Emission, Merging, Part, PlannedEp, PlannedTarget, SessionGroup
from epbuild.store import BlobStore

if TYPE_CHECKING:
    from epbuild.emit import EmittedModel, Inference


@dataclass(frozen=True)
class Made:
    """A session group with what it came to: its key, the document behind the key, and its result."""

    group: SessionGroup
    key: str
    document: Mapping[str, Any]
    result: Mapping[str, Any]


@dataclass(frozen=True)
class LaidOut:
    """A part with its files, whose paths are below the output's root, and its models as the manifest tells of them."""

    part: Part
    made: tuple[Made, ...]
    models: tuple[ManifestModel, ...]
    contents: tuple[Content, ...]

    def base_models(self) -> list[EmittedModel]:
        """The part's models as they were before compiling, where they lie beside the compiled ones."""
        from epbuild.emit import base_models

        return base_models(self.models, self.part.base, self.part.folder)

    def path(self, name: str) -> str:
        """The path below the output's root of what is called `name` in the part."""
        return posixpath.join(self.part.folder, name)


class Workbench:
    """Where an output's own files are made: `folder` holds them at the paths that they will have below the output's root."""

    def __init__(self, folder: Path, store: BlobStore) -> None:
        self.folder = folder
        self._store = store

    def written(self, path: str, role: Role, data: bytes) -> Content:
        """A file with that content."""
        file = self.folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
        return Content(path, role, len(data), hashlib.sha256(data).hexdigest(), file)

    def made(self, path: str, role: Role) -> Content:
        """A file that lies here already."""
        file = self.folder / path
        with file.open("rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
        return Content(path, role, file.stat().st_size, digest, file)

    def stored(self, path: str, role: Role, artifact: Stored) -> Content:
        """An artifact as it is, which stays in the store."""
        return Content(path, role, artifact.size, artifact.digest)

    def fetched(self, path: str, role: Role, artifact: Stored) -> Content:
        """An artifact as it is, brought here."""
        self._store.materialise(artifact.digest, self.folder / path)
        return Content(path, role, artifact.size, artifact.digest, self.folder / path)

    def relinked(self, path: str, role: Role, artifact: Stored, renames: Mapping[str, str]) -> Content:
        """A model whose references to binaries are changed."""
        file = self.folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        original = self.folder.with_name("original")  # not called as the file is, whose name may be as long as any
        self._store.materialise(artifact.digest, original)
        relink(original, file, renames)
        original.unlink()
        return self.made(path, role)


def lay_out(emission: Emission, part: Part, made: Sequence[Made], bench: Workbench, say: Callable[[str], None]) -> LaidOut:
    """The files of a part, less its manifest; `say` is told how models were merged.

    Raises BuildError when two files would get one path, or the models cannot be merged, and MissingBlob or DamagedBlob when an artifact has
    to be made again.
    """
    merging = part.merging
    stored = [model for item in made for model in _stored_models(item)]
    names = part.models if merging is None else draft_names(part, merging)
    placed = arrange(stored, names, part.binaries, MANIFEST, emission.id)
    contents = [_content(item, part.folder, bench, here=merging is not None) for item in placed]
    if merging is None:
        models = tuple(_models(part, made, placed))
    else:
        merged = merge(part, merging, bench.folder / part.folder, say)
        models = (_merged_model(part, merging, made, merged),)
        drafts = {posixpath.join(part.folder, name) for name in names.values()}
        contents = [content for content in contents if content.path not in drafts]
        contents.append(bench.made(posixpath.join(part.folder, part.models[merging.name]), "model"))
    return LaidOut(part, tuple(made), models, tuple(contents))


def base_contents(emission: Emission, laid: LaidOut, folder: str, others: Sequence[Content]) -> list[Content]:
    """The part's models as they were before compiling, below `folder`, with that of their external data which is not there already.

    `others` are the files that are there already: an EP may have left external data in its place. Raises BuildError when one of these
    files would be in the place of another one.
    """
    taken = {content.path.casefold(): content for content in others}
    found = []
    for item in laid.made:
        for member, listed in zip(item.group.members, item.document["members"], strict=True):
            name = laid.part.base.get(member.name)
            if name is None:
                continue
            path = posixpath.join(folder, name)
            files = [Content(path, "base-model", member.graph.stat().st_size, listed["graph"], member.graph)]
            for location, source in member.external.items():
                beside = posixpath.normpath(posixpath.join(posixpath.dirname(path), location))
                files.append(Content(beside, "base-data", source.stat().st_size, listed["external"][location], source))
            for content in files:
                other = taken.setdefault(content.path.casefold(), content)
                if other is content:
                    found.append(content)
                elif (other.path, other.sha256) != (content.path, content.sha256):
                    raise _in_the_way(emission, f"two different files would be written to '{content.path}'")
    for content in taken.values():
        inside = next((str(above) for above in PurePosixPath(content.path).parents if str(above).casefold() in taken), None)
        if inside is not None:
            raise _in_the_way(emission, f"'{inside}' would be a file and the folder of '{content.path}'")
    return found


def _in_the_way(emission: Emission, what: str) -> BuildError:
    hint = "Put ${model} into the folder of 'base', and let it hold nothing else."
    return BuildError(Problem("EPB422", f"with the models as they were before compiling, {what}", StepId(emission.id), hint))


def inference_of(target: PlannedTarget, ep: PlannedEp, *, share: bool) -> Inference:
    """The options that a session with `ep` needs to run what was compiled for the target; `share`: its models share weights."""
    from epbuild.emit import for_inference  # few outputs say it

    files = [*target.session_files, *ep.files]
    return for_inference(target.session_options, ep.provider_options, share=share, files=files, only_compiling=ep.only_compiling)


def in_order(contents: Sequence[Content]) -> tuple[Content, ...]:
    """The contents by their paths. Raises ValueError when two have one."""
    ordered = tuple(sorted(contents, key=lambda content: PurePosixPath(content.path).parts))
    if len({content.path.casefold() for content in ordered}) < len(ordered):
        raise ValueError("two files have one path")
    return ordered


def part_manifest(laid: LaidOut, contents: Sequence[Content], recipe: str, provenance: str | None) -> bytes:
    """The manifest of a part; `contents` are all the files of it, and their paths there are relative to the part's folder."""
    prefix = f"{laid.part.folder}/" if laid.part.folder else ""
    toolchain = laid.made[0].document["toolchain"]
    return render(
        recipe=recipe,
        group=laid.part.group,
        share_weights=laid.made[0].group.share,
        target=_target(laid.part.target),
        toolchain={name: toolchain[name] for name in ("python", "platform", "distributions")},
        models=laid.models,
        files=[replace(content, path=content.path.removeprefix(prefix)) for content in in_order(contents)],
        provenance=provenance,
    )


def _content(item: Placed, folder: str, bench: Workbench, *, here: bool) -> Content:
    path = posixpath.join(folder, item.path)
    if item.renames:
        return bench.relinked(path, item.role, item.artifact, item.renames)
    return bench.fetched(path, item.role, item.artifact) if here else bench.stored(path, item.role, item.artifact)


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
            source=_source(item.document, model),
            nodes=[_relinked(node, references[part.models[model["member"]]]) for node in model["nodes"]],
            fallback_nodes=model["fallback_nodes"],
            compatibility=model["compatibility"],
        )
        for item in made
        for model in item.result["models"]
    ]


def _merged_model(part: Part, merging: Merging, made: Sequence[Made], merged: MergedModel) -> ManifestModel:
    members = [(item, model) for item in made for model in item.result["models"]]
    return ManifestModel(
        name=merging.name,
        file=part.models[merging.name],
        action_key=merged_key(merging, {model["member"]: item.key for item, model in members}),
        source=None,
        nodes=merged.nodes,
        fallback_nodes=sum(model["fallback_nodes"] for _, model in members),
        compatibility=merged.compatibility,
        merged=[
            {"name": model["member"], "action_key": item.key, "source": _source(item.document, model)} for item, model in members
        ],
    )


def _target(target: PlannedTarget) -> dict[str, Any]:
    return {
        "name": target.name,
        "eps": [_ep(ep) for ep in target.eps],
        "session_options": dict(target.session_options),
        "environment": dict(target.environment),
        "unchecked_options": list(target.unchecked),
        **({"not_reproducible": target.known_to_differ} if target.known_to_differ else {}),
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


def _source(document: Mapping[str, Any], model: Mapping[str, Any]) -> dict[str, Any]:
    found = next(item for item in document["members"] if item["name"] == model["member"])
    return {"sha256": found["graph"], "external_data": found["external"], **model["source"]}


def _relinked(node: Mapping[str, Any], renames: Mapping[str, str]) -> dict[str, Any]:
    if "reference" not in node:
        return dict(node)
    return {**node, "reference": renames.get(node["reference"], node["reference"])}
