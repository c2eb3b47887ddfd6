"""Lays one group's artifacts out for one target: from results in the store to a directory with a manifest, swapped in whole."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from epbuild import __version__
from epbuild.build.merging import MergedModel, draft_names, merge, merged_key, settings_of
from epbuild.emit import (
    ManifestFile,
    ManifestModel,
    Ours,
    Placed,
    Stored,
    StoredModel,
    arrange,
    emitted_files,
    mend,
    prepare,
    render,
    swap_in,
)
from epbuild.errors import StoreError
from epbuild.onnxfile import relink
from epbuild.plan import MANIFEST, Emission, Merging, PlannedEp, PlannedTarget, SessionGroup
from epbuild.store import BlobStore, Digests

FORMAT = 3


@dataclass(frozen=True)
class Made:
    """A session group with what it came to: its key, the document behind the key, and its result."""

    group: SessionGroup
    key: str
    document: Mapping[str, Any]
    result: Mapping[str, Any]


def emission_document(emission: Emission, made: Sequence[Made], recipe: str) -> dict[str, Any]:
    """Everything that the emitted bytes depend on; its digest is the emission's key."""
    return {
        "format": FORMAT,
        "epbuild": __version__,
        "layout": emission.layout,
        "recipe": recipe,
        "models": dict(emission.models),
        "context binaries": {member: dict(names) for member, names in emission.binaries.items()},
        "made": {item.group.id: {"key": item.key, "artifacts": _digests(item.result)} for item in made},
        "options": {ep.entry.ep: dict(ep.provider_options) for ep in emission.target.eps},
        "session_options": dict(emission.target.session_options),
        "environment": dict(emission.target.environment),
        "unchecked": list(emission.target.unchecked),
        **({"merge": settings_of(emission.merging)} if emission.merging is not None else {}),
    }


def emit(
    emission: Emission,
    made: Sequence[Made],
    recipe: str,
    store: BlobStore,
    before: Collection[str],
    digests: Digests,
    say: Callable[[str], None],
) -> dict[str, Any]:
    """Write the directory; returns each file's digest and size by its path. A file that is there already as it has to be stays that file.

    `before` are the files that the last emission here wrote; `say` is told how models were merged. Raises BuildError when something of
    the user's is in the way, or the models cannot be merged, EnvironmentFailure when the place cannot be written, MissingBlob or
    DamagedBlob when an artifact has to be made again.
    """
    models = [model for item in made for model in _stored_models(item)]
    merging = emission.merging
    names = emission.models if merging is None else draft_names(emission, merging)
    placed = arrange(models, names, emission.binaries, MANIFEST, emission.id)
    ours = _ours(before)
    with prepare(emission.directory, ours, emission.id) as staged:
        files = [_place(item, staged, store, digests, emission.directory / item.path) for item in placed]
        if merging is None:
            listed = _models(emission, made, placed)
        else:
            with digests.relinking(_same(files, staged, emission.directory)):
                merged = merge(emission, merging, staged, say)
            listed = [_merged_model(emission, merging, made, merged)]
            drafts = frozenset(names.values())
            files = [file for file in files if file.path not in drafts]
            files.append(_merged_file(emission.models[merging.name], staged, digests, emission.directory))
            files.sort(key=lambda file: PurePosixPath(file.path).parts)
        manifest = staged / MANIFEST
        manifest.write_bytes(_manifest(emission, made, recipe, listed, files))
        files.append(ManifestFile(MANIFEST, "manifest", manifest.stat().st_size, digests.of(manifest)))
        with digests.relinking(_same(files, staged, emission.directory)):
            swap_in(staged, emission.directory, ours, emission.id)
    return {file.path: {"digest": file.sha256, "size": file.size} for file in files}


def lease_name(emission: Emission) -> str:
    """The lease of the workspace under which an emission's directory is touched."""
    return re.sub(r"[^A-Za-z0-9._-]+", ".", emission.id)


def clear_away(emission: Emission, before: Collection[str]) -> None:
    """Remove what killed builds left beside the directory of an emission whose lease is held. Raises OSError."""
    mend(emission.directory, _ours(before))


def _ours(before: Collection[str]) -> Ours:
    return lambda folder: emitted_files(folder / MANIFEST) | frozenset(before)


def _place(item: Placed, staged: Path, store: BlobStore, digests: Digests, there: Path) -> ManifestFile:
    path = staged / item.path
    if not item.renames:
        if not _stays(there, path, item.artifact.digest, digests):
            store.materialise(item.artifact.digest, path)
        return ManifestFile(item.path, item.role, item.artifact.size, item.artifact.digest)
    original = path.with_name(f"{path.name}.original")
    store.materialise(item.artifact.digest, original)
    relink(original, path, item.renames)
    original.unlink()
    found = ManifestFile(item.path, item.role, path.stat().st_size, digests.of(path))
    _stays(there, path, found.sha256, digests)
    return found


def _stays(there: Path, path: Path, digest: str, digests: Digests) -> bool:
    """Make `path` the very file that is `there`, if it has that digest: what watches it sees no change, and nothing is copied."""
    draft = path.with_name(f"{path.name}.same")
    try:
        if there.is_symlink() or digests.of(there) != digest:
            return False
        path.parent.mkdir(parents=True, exist_ok=True)
        with digests.relinking([there]):
            os.link(there, draft)
        draft.replace(path)
    except (OSError, StoreError):
        return False
    return True


def _merged_file(path: str, staged: Path, digests: Digests, directory: Path) -> ManifestFile:
    found = ManifestFile(path, "model", (staged / path).stat().st_size, digests.of(staged / path))
    _stays(directory / path, staged / path, found.sha256, digests)
    return found


def _same(files: Sequence[ManifestFile], staged: Path, directory: Path) -> list[Path]:
    """The files of the output that are in the new tree as they are."""
    return [there for file in files if _is_same(there := directory / file.path, staged / file.path)]


def _is_same(there: Path, path: Path) -> bool:
    return there.is_file() and there.samefile(path)


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


def _digests(result: Mapping[str, Any]) -> dict[str, str]:
    return {name: blob["digest"] for name, blob in result["artifacts"].items()}


def _manifest(
    emission: Emission, made: Sequence[Made], recipe: str, models: Sequence[ManifestModel], files: Sequence[ManifestFile]
) -> bytes:
    target = emission.target
    toolchain = made[0].document["toolchain"]
    return render(
        recipe=recipe,
        group=emission.group,
        share_weights=made[0].group.share,
        target=_target(target),
        toolchain={name: toolchain[name] for name in ("python", "platform", "distributions")},
        models=models,
        files=files,
    )


def _models(emission: Emission, made: Sequence[Made], placed: Sequence[Placed]) -> list[ManifestModel]:
    references = {item.path: item.renames for item in placed}
    return [
        ManifestModel(
            name=model["member"],
            file=emission.models[model["member"]],
            action_key=item.key,
            source=_source(item.document, model),
            nodes=[_relinked(node, references[emission.models[model["member"]]]) for node in model["nodes"]],
            fallback_nodes=model["fallback_nodes"],
            compatibility=model["compatibility"],
        )
        for item in made
        for model in item.result["models"]
    ]


def _merged_model(emission: Emission, merging: Merging, made: Sequence[Made], merged: MergedModel) -> ManifestModel:
    members = [(item, model) for item in made for model in item.result["models"]]
    return ManifestModel(
        name=merging.name,
        file=emission.models[merging.name],
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
        "provider_options": dict(ep.provider_options),
    }


def _source(document: Mapping[str, Any], model: Mapping[str, Any]) -> dict[str, Any]:
    found = next(item for item in document["members"] if item["name"] == model["member"])
    return {"sha256": found["graph"], "external_data": found["external"], **model["source"]}


def _relinked(node: Mapping[str, Any], renames: Mapping[str, str]) -> dict[str, Any]:
    if "reference" not in node:
        return dict(node)
    return {**node, "reference": renames.get(node["reference"], node["reference"])}
