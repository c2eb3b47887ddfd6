"""Manifest of a part: its models, their sources, and its files.

It has no absolute path, no time and no host: two equal builds have equal manifests.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct, field

from epbuild.archive.artifact import FileEntry
from epbuild.core.canonical import JsonFile

FORMAT = 1


class ManifestModel(Struct, frozen=True):
    """Model of an output. `nodes` and `source` are plain data, as in the action record.

    A merged model has no source of its own: `merged` has the name, the action key and the source of each member.
    """

    name: str
    file: str
    action_key: str
    source: Mapping[str, Any] | None
    nodes: Sequence[Mapping[str, Any]]
    fallback_nodes: int
    compatibility: Mapping[str, str]
    left: Sequence[Mapping[str, Any]] = ()
    """Fallback nodes, each with its operator and the reason why the EP did not take it."""
    merged: Sequence[Mapping[str, Any]] = ()
    compiled: bool = True
    """False if the recipe has `compile: none` for the model, which then runs on the CPU EP."""
    compiled_size: int | None = None
    """Bytes of the compile result with this action key. None for a merged model, whose members have results of their own."""
    numbers: Mapping[str, Any] = field(default_factory=dict)
    """`figures` that compare the outputs with the source model's, or `unjudged` with the reason; empty if the model was not verified."""


class PartManifest(Struct, frozen=True):
    """Content of the manifest for one group and one target."""

    recipe: str
    group: str
    share_weights: bool
    target: Mapping[str, Any]
    toolchain: Mapping[str, Any]
    models: Sequence[ManifestModel]
    files: Sequence[FileEntry]
    custom_ops: Sequence[Mapping[str, str]] = ()
    provenance: str | None = None
    """Path of the provenance file for these files and the manifest. The manifest cannot list this file."""
    encryption: Mapping[str, Any] | None = None

    @property
    def file(self) -> JsonFile:
        """Manifest as a JSON file."""
        return JsonFile(
            {
                "format": FORMAT,
                "recipe": self.recipe,
                "group": self.group,
                "share_weights": self.share_weights,
                "target": dict(self.target),
                "toolchain": dict(self.toolchain),
                **({"custom_ops": [dict(ops) for ops in self.custom_ops]} if self.custom_ops else {}),
                "models": [_describe_model(model) for model in self.models],
                "files": list_files(self.files),
                **({"provenance": self.provenance} if self.provenance is not None else {}),
                **({"encryption": dict(self.encryption)} if self.encryption is not None else {}),
            }
        )


def list_files(files: Iterable[FileEntry]) -> list[dict[str, Any]]:
    """Return files as manifests list them, in the order of their paths."""
    ordered = sorted(files, key=lambda file: file.path.split("/"))
    return [_describe_file(file) for file in ordered]


def _describe_file(file: FileEntry) -> dict[str, Any]:
    plain = {"plain": {"size": file.plain.size, "sha256": file.plain.digest}} if file.plain is not None else {}
    shared = {"shared": file.shared} if file.shared is not None else {}
    return {"path": file.path, "role": file.role, "size": file.size, "sha256": file.digest, **plain, **shared}


def _describe_model(model: ManifestModel) -> dict[str, Any]:
    return {
        "name": model.name,
        "file": model.file,
        "action_key": model.action_key,
        **({"compiled_size": model.compiled_size} if model.compiled_size is not None else {}),
        **({} if model.compiled else {"compiled": False}),
        **({"source": dict(model.source)} if model.source is not None else {}),
        **({"merged": [dict(member) for member in model.merged]} if model.merged else {}),
        "ep_context_nodes": [dict(node) for node in model.nodes],
        "fallback_nodes": model.fallback_nodes,
        **({"left": [dict(node) for node in model.left]} if model.left else {}),
        "compatibility": dict(model.compatibility),
        **model.numbers,
    }


def resolve_beside(file: str, names: Iterable[str]) -> tuple[str, ...]:
    """Resolve `names` relative to the model `file`. Return the paths below the output's root, without duplicates."""
    folder = posixpath.dirname(file)
    return tuple(dict.fromkeys(posixpath.normpath(posixpath.join(folder, name)) for name in names))


def find_references(model: ManifestModel, folder: str, data: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    """Return the paths of the files that a model below `folder` refers to. `data` has the locations of external data, by member."""
    binaries = resolve_beside(
        posixpath.join(folder, model.file), [str(node["reference"]) for node in model.nodes if "reference" in node]
    )
    return tuple(dict.fromkeys((*binaries, *find_data(model, folder, data))))


def find_data(model: ManifestModel, folder: str, data: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    """Return the paths of the external data of a model below `folder`. `data` has the locations of external data, by member."""
    members = [str(member["name"]) for member in model.merged] or [model.name]
    return resolve_beside(posixpath.join(folder, model.file), [location for member in members for location in data[member]])
