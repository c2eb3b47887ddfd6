"""The manifest: what was emitted, from what, with what. No absolute path, no time, no host: two equal builds have equal manifests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from epbuild.archive.artifact import Artifact
from epbuild.output.jsonfile import JsonFile

FORMAT = 1


@dataclass(frozen=True)
class ManifestModel:
    """One emitted EPContext model: where it came from and what is in it. `nodes` and `source` are plain data, as in the record.

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
    """`figures` of its outputs against those of its source, or why they were not `unjudged`; nothing where nobody asked."""


def render(
    *,
    recipe: str,
    group: str,
    share_weights: bool,
    target: Mapping[str, Any],
    toolchain: Mapping[str, Any],
    models: Sequence[ManifestModel],
    files: Sequence[Artifact],
    custom_ops: Sequence[Mapping[str, str]] = (),
    provenance: str | None = None,
) -> JsonFile:
    """The manifest.

    `provenance` is the path of the statement about these files and the manifest, which it therefore cannot list.
    """
    document = {
        "format": FORMAT,
        "recipe": recipe,
        "group": group,
        "share_weights": share_weights,
        "target": dict(target),
        "toolchain": dict(toolchain),
        **({"custom_ops": [dict(ops) for ops in custom_ops]} if custom_ops else {}),
        "models": [
            {
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
            for model in models
        ],
        "files": [{"path": file.path, "role": file.role, "size": file.size, "sha256": file.sha256} for file in files],
        **({"provenance": provenance} if provenance is not None else {}),
    }
    return JsonFile(document)
