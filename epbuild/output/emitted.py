"""The models of an output as its bill of materials tells of them: what each was made of, and what it needs beside itself."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from epbuild.output.manifest import ManifestModel
from epbuild.output.materials import Built


@dataclass(frozen=True)
class EmittedModel:
    """A model in an output: its name, and its POSIX path below the output's root."""

    name: str
    file: str
    sources: tuple[str, ...]
    """The source models that it was made of: one, or those that were merged."""
    actions: tuple[str, ...] = ()
    """The session groups that compiled it; none for one that is shipped as it was before."""
    refers: tuple[str, ...] = ()
    """The paths of the emitted files that it needs beside itself."""
    inputs: Sequence[Mapping[str, Any]] = ()
    """The name, type and shape of each, as in the manifest."""
    outputs: Sequence[Mapping[str, Any]] = ()
    compatibility: Mapping[str, str] = field(default_factory=dict)
    """The compatibility string of each EP."""


def compiled_models(
    models: Iterable[ManifestModel], built: Iterable[Built], data: Mapping[str, Sequence[str]], folder: str = ""
) -> list[EmittedModel]:
    """The models of one group for one target, which lie below `folder`, as the manifest there lists them.

    `built` are the session groups that they come from; `data` has, by the source model, the external data that lies beside the model.
    """
    actions = {item.key: item.action for item in built}
    found = []
    for model in models:
        members = model.merged or [{"name": model.name, "action_key": model.action_key, "source": model.source}]
        names = [str(member["name"]) for member in members]
        file = posixpath.join(folder, model.file)
        binaries = [str(node["reference"]) for node in model.nodes if "reference" in node]
        source = model.source or {}
        found.append(
            EmittedModel(
                name=model.name,
                file=file,
                sources=tuple(dict.fromkeys(_source_of(str(member["name"]), member["source"]) for member in members)),
                actions=tuple(dict.fromkeys(actions[str(member["action_key"])] for member in members)),
                refers=_beside(file, [*binaries, *(location for name in names for location in data[name])]),
                inputs=source.get("inputs", ()),
                outputs=source.get("outputs", ()),
                compatibility=model.compatibility,
            )
        )
    return found


def base_models(models: Iterable[ManifestModel], base: Mapping[str, str], folder: str = "") -> list[EmittedModel]:
    """Those of the same models that are also shipped as they were before compiling, under the names `base` below `folder`."""
    found = []
    for model in models:
        if model.name in base and model.source is not None:
            file = posixpath.join(folder, base[model.name])
            refers = _beside(file, model.source["external_data"])
            found.append(base_model(model.name, file, model.source, refers))
    return found


def base_model(name: str, file: str, source: Mapping[str, Any], refers: tuple[str, ...]) -> EmittedModel:
    """A model that is shipped as it was before compiling, of the `source` that the manifest has."""
    # What it was compiled with is not what it says itself where it was given sizes.
    known = {} if "sizes" in source else {kind: source.get(kind, ()) for kind in ("inputs", "outputs")}
    return EmittedModel(name, file, (_source_of(name, source),), refers=refers, **known)


def _source_of(member: str, source: Mapping[str, Any] | None) -> str:
    """The name in the recipe of the model that a member is."""
    return str((source or {}).get("model", member))


def _beside(file: str, names: Iterable[str]) -> tuple[str, ...]:
    """What a model names, as paths below the output's root."""
    return tuple(sorted({posixpath.normpath(posixpath.join(posixpath.dirname(file), name)) for name in names}))
