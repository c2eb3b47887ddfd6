"""The manifest: what was published, from what, with what.

It has no absolute path, no time and no host: two equal builds have equal manifests.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct, field

from epbuild.archive.artifact import Artifact
from epbuild.core.canonical import JsonFile

FORMAT = 1


class ManifestModel(Struct, frozen=True):
    """One published EPContext model: where it came from and what is in it. `nodes` and `source` are plain data, as in the record.

    A model that was merged has no source of its own; `merged` has the name, the action key and the source of each of its members.
    """

    name: str
    file: str
    action_key: str
    source: Mapping[str, Any] | None
    nodes: Sequence[Mapping[str, Any]]
    fallback_nodes: int
    compatibility: Mapping[str, str]
    left: Sequence[Mapping[str, Any]] = ()
    """The nodes that were left outside the EP, each with its operator and why."""
    merged: Sequence[Mapping[str, Any]] = ()
    numbers: Mapping[str, Any] = field(default_factory=dict)
    """`figures` of its outputs against those of its source, or why they were not `unjudged`; nothing where no check was asked for."""


class PartManifest(Struct, frozen=True):
    """All that is in the manifest of a group for a target."""

    recipe: str
    group: str
    share_weights: bool
    target: Mapping[str, Any]
    toolchain: Mapping[str, Any]
    models: Sequence[ManifestModel]
    files: Sequence[Artifact]
    custom_ops: Sequence[Mapping[str, str]] = ()
    provenance: str | None = None
    """The path of the statement about these files and the manifest, which it therefore cannot list."""

    @property
    def file(self) -> JsonFile:
        return JsonFile(
            {
                "format": FORMAT,
                "recipe": self.recipe,
                "group": self.group,
                "share_weights": self.share_weights,
                "target": dict(self.target),
                "toolchain": dict(self.toolchain),
                **({"custom_ops": [dict(ops) for ops in self.custom_ops]} if self.custom_ops else {}),
                "models": [_listed_model(model) for model in self.models],
                "files": listed(self.files),
                **({"provenance": self.provenance} if self.provenance is not None else {}),
            }
        )


def listed(files: Iterable[Artifact]) -> list[dict[str, Any]]:
    """Files as a manifest lists them."""
    return [{"path": file.path, "role": file.role, "size": file.size, "sha256": file.sha256} for file in files]


def _listed_model(model: ManifestModel) -> dict[str, Any]:
    return {
        "name": model.name,
        "file": model.file,
        "action_key": model.action_key,
        **({"source": dict(model.source)} if model.source is not None else {}),
        **({"merged": [dict(member) for member in model.merged]} if model.merged else {}),
        "ep_context_nodes": [dict(node) for node in model.nodes],
        "fallback_nodes": model.fallback_nodes,
        **({"left": [dict(node) for node in model.left]} if model.left else {}),
        "compatibility": dict(model.compatibility),
        **model.numbers,
    }


def beside(file: str, names: Iterable[str]) -> tuple[str, ...]:
    """What a model at the path `file` refers to by these names, as paths below the output's root, each once."""
    folder = posixpath.dirname(file)
    return tuple(dict.fromkeys(posixpath.normpath(posixpath.join(folder, name)) for name in names))


def named_files(model: ManifestModel, folder: str, data: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    """The files that a model refers to, which lies below `folder`; `data` has the external data beside it, by its source models."""
    binaries = [str(node["reference"]) for node in model.nodes if "reference" in node]
    members = [str(member["name"]) for member in model.merged] or [model.name]
    external = (location for member in members for location in data[member])
    return beside(posixpath.join(folder, model.file), [*binaries, *external])
