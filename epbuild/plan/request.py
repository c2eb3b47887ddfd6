"""`CompileRequest`: the document of a compile that is keyed, sent and quoted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from msgspec import Struct

from epbuild.catalog.catalog import session_keys
from epbuild.core.safepath import real_path
from epbuild.plan.custom_ops import CustomOpLibraries
from epbuild.plan.key import action_key
from epbuild.plan.member import Member
from epbuild.plan.steps import SessionGroup
from epbuild.plan.target import OptionFile, PlannedEp
from epbuild.recipe.model import CompileSettings

FORMAT = 2
CONTRACT = 5
"""Raised when the worker or the session group contract changes what a compile writes, or what is recorded of it."""
HERE = "here"
"""Where a worker finds, beside the document, what only this machine knows: paths, and how packages are opened."""


class CompileRequest(Struct, frozen=True):
    """All that the result of a session group depends on, as one JSON document, and which of its options are not part of the key.

    The worker gets the document with `places` of this machine beside it.
    """

    document: Mapping[str, Any]
    unkeyed: tuple[frozenset[str], ...]
    """The options of each EP that the catalog lists as not changing what a compile writes."""
    unkeyed_session: frozenset[str]
    """The session keys of that kind."""

    @classmethod
    def of(cls, group: SessionGroup, digests: Mapping[Path, str], toolchain: Mapping[str, Any]) -> CompileRequest:
        """The request of a session group. `digests` are the SHA-256 of its files; `toolchain` is its fingerprint's document."""
        target = group.target
        document = {
            "format": FORMAT,
            "contract": CONTRACT,
            "members": [_member(member, digests) for member in group.members],
            "share_weights": group.share,
            **_shared_initializers(group),
            "eps": [_ep(ep, digests) for ep in target.eps],
            "session_options": dict(target.session_options),
            "session_files": _digested(target.session_files, digests),
            "environment": dict(target.environment),
            **_custom_ops(group, digests),
            "catalog": {"session": session_keys().revision},
            "toolchain": toolchain,
        }
        return cls(document, tuple(ep.silent for ep in target.eps), target.silent)

    @property
    def keyed(self) -> dict[str, Any]:
        """The document less what is not part of the key."""
        return {
            **self.document,
            "eps": [
                {**ep, **{part: _less(ep[part], left_out) for part in ("options", "files")}}
                for ep, left_out in zip(self.document["eps"], self.unkeyed, strict=True)
            ],
            **{part: _less(self.document[part], self.unkeyed_session) for part in ("session_options", "session_files")},
        }

    @property
    def key(self) -> str:
        return action_key(self.keyed)


def places(
    eps: Iterable[PlannedEp], custom_ops: Iterable[CustomOpLibraries], node_log: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """What a worker needs beside the document to open EPs and custom operators on this machine, and how it is to log nodes.

    Nothing of it is part of a key, but for what the catalog's revision and the digests of libraries stand for there.
    """
    return {
        "eps": [
            {
                "kind": ep.entry.kind,
                "module": ep.entry.module,
                "library": _path(ep.library),
                "registration": f"{ep.entry.ep}.virtual" if ep.device.virtual else ep.entry.ep,
                "prefer": list(ep.entry.devices),
            }
            for ep in eps
        ],
        "custom_ops": [{"name": ops.name, "module": ops.name, "library": _path(ops.library)} for ops in custom_ops],
        "node_log": node_log,
    }


def ep_document(ep: PlannedEp) -> dict[str, Any]:
    """An EP as sessions are given it: its name, its device and its options."""
    return {
        "name": ep.entry.ep,
        "device": {
            "type": ep.device.type,
            "vendor": ep.device.vendor,
            "metadata": dict(ep.device.metadata),
            "virtual": ep.device.virtual,
        },
        "options": dict(ep.provider_options),
    }


def _ep(ep: PlannedEp, digests: Mapping[Path, str]) -> dict[str, Any]:
    return {
        **ep_document(ep),
        "catalog": ep.entry.digest,
        "library": digests[ep.library] if ep.library else None,
        "files": _digested(ep.files, digests),
    }


def _member(member: Member, digests: Mapping[Path, str]) -> dict[str, Any]:
    settings = member.compile
    values = {name: getattr(settings, name) for name in _setting_names()}
    return {
        "name": member.name,
        "graph": digests[member.graph],
        "external": {location: digests[path] for location, path in member.external.items()},
        "source": member.source,
        "output": member.output,
        "read": member.model.read,
        **_inputs(member),
        "free_dimensions": dict(member.model.free_dimensions),
        "denoted_dimensions": dict(member.model.denoted_dimensions),
        "compile": {
            **values,
            "external_file": member.external_file,
            "external_threshold": settings.external_threshold if settings.external_file else None,
        },
    }


@cache
def _setting_names() -> list[str]:
    """The settings of a member, less where they are written."""
    return [name for name in CompileSettings.__struct_fields__ if not name.endswith("_where")]


def _inputs(member: Member) -> dict[str, Any]:
    """The sizes that inputs are given. What they come to in a prepared model follows from that, and is known only once its graph is."""
    shapes = member.inputs if member.prepared is None else {name: shape.sizes for name, shape in member.asked.items()}
    return {"inputs": {name: list(shape) for name, shape in shapes.items()}} if shapes else {}


def _shared_initializers(group: SessionGroup) -> dict[str, Any]:
    if group.weights_file is None:
        return {}
    return {"share_initializers": {"file": group.weights_file, "threshold": group.initializer_threshold}}


def _custom_ops(group: SessionGroup, digests: Mapping[Path, str]) -> dict[str, Any]:
    # What a package ships is in the toolchain's fingerprint.
    listed = [{"name": ops.name, "library": digests[ops.library] if ops.library else None} for ops in group.custom_ops]
    return {"custom_ops": listed} if listed else {}


def _digested(files: Mapping[str, OptionFile], digests: Mapping[Path, str]) -> dict[str, str]:
    return {name: digests[file.path] for name, file in files.items()}


def _less(options: Mapping[str, str], left_out: frozenset[str]) -> dict[str, str]:
    return {name: value for name, value in options.items() if name not in left_out}


def _path(library: Path | None) -> str | None:
    return str(real_path(library)) if library else None
