"""Key document of a compile, and the request for the worker."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from epbuild.catalog.catalog import read_session_revision
from epbuild.core.safepath import resolve_links
from epbuild.plan.custom_ops import CustomOpLibraries
from epbuild.plan.member import Member
from epbuild.plan.steps import SessionGroup
from epbuild.plan.target import OptionFile, PlannedEp
from epbuild.recipe.model import CompileSettings

FORMAT = 2
CONTRACT = 6
"""Contract version. Increment it when a change to the worker or to the session group contract changes the content of results."""
HERE = "here"
"""Field of the worker's document for values that are valid only on this machine, such as paths."""

_Value = TypeVar("_Value")


def compile_document(group: SessionGroup, digests: Mapping[Path, str], toolchain: Mapping[str, Any]) -> dict[str, Any]:
    """Return the key document of a session group, which lists everything that the group's result depends on.

    `digests` maps the group's files to their SHA-256. `toolchain` is the fingerprint of the toolchain. The document excludes options
    and session keys that, according to the catalog, do not affect the compiled files.
    """
    target = group.target
    return {
        "format": FORMAT,
        "contract": CONTRACT,
        "members": [_build_member(member, group.target.eps, digests) for member in group.members],
        **({} if group.compiled else {"compiled": False}),
        "share_weights": group.share,
        **_build_shared_initializers(group),
        "eps": [_build_ep(ep, digests) for ep in target.eps],
        "session_options": _exclude(target.session_options, target.unkeyed),
        "session_files": _get_digests(_exclude(target.session_files, target.unkeyed), digests),
        "environment": dict(target.environment),
        **_build_custom_ops(group, digests),
        "catalog": {"session": read_session_revision()},
        "toolchain": toolchain,
    }


def build_worker_document(
    group: SessionGroup, document: Mapping[str, Any], node_log: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return the document that the worker of a session group reads: the key document plus all options and this machine's paths."""
    target = group.target
    eps = [{**ep, "options": dict(planned.provider_options)} for ep, planned in zip(document["eps"], target.eps, strict=True)]
    here = resolve_places(target.eps, group.custom_ops, node_log)
    return {**document, "eps": eps, "session_options": dict(target.session_options), HERE: here}


def resolve_places(
    eps: Iterable[PlannedEp], custom_ops: Iterable[CustomOpLibraries], node_log: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return the values of the field `HERE`: paths and modules of EPs and custom operators, and the settings of the node log.

    These values are not part of the key. Instead, the key contains the catalog's revision and the digests of libraries.
    """
    return {
        "eps": [
            {
                "kind": ep.entry.kind,
                "module": ep.entry.module,
                "library": _resolve_path(ep.library),
                "registration": f"{ep.entry.ep}.virtual" if ep.device.virtual else ep.entry.ep,
                "prefer": list(ep.entry.devices),
            }
            for ep in eps
        ],
        "custom_ops": [{"name": ops.name, "module": ops.name, "library": _resolve_path(ops.library)} for ops in custom_ops],
        "node_log": node_log,
    }


def build_ep_document(ep: PlannedEp) -> dict[str, Any]:
    """Return the name, device and options of an EP for a session."""
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


def _build_ep(ep: PlannedEp, digests: Mapping[Path, str]) -> dict[str, Any]:
    return {
        **build_ep_document(ep),
        "options": _exclude(ep.provider_options, ep.unkeyed),
        "catalog": ep.entry.digest,
        "library": digests[ep.library] if ep.library else None,
        "files": _get_digests(_exclude(ep.files, ep.unkeyed), digests),
    }


def _build_compiled(member: Member, eps: Sequence[PlannedEp]) -> dict[str, Any]:
    """Return the EPs that already compiled a part of a member's source. They must not compile the model again."""
    sources = member.compiled_files.context_sources
    names = [ep.entry.ep for ep in eps if any(ep.entry.has_source(source) for source in sources)]
    return {"compiled_by": names} if names else {}


def _build_member(member: Member, eps: Sequence[PlannedEp], digests: Mapping[Path, str]) -> dict[str, Any]:
    settings = member.compile
    values = {name: getattr(settings, name) for name in _list_setting_names()}
    if not settings.initializer_names:
        del values["initializer_names"]  # keeps the keys of earlier releases
    return {
        "name": member.name,
        "graph": digests[member.graph],
        "external": {location: digests[path] for location, path in member.external.items()},
        "source": member.source,
        "output": member.output,
        "read": "bytes" if member.model.load_from == "memory" else "file",
        **_build_inputs(member),
        **_build_dimensions(member),
        **_build_compiled(member, eps),
        "compile": {
            **values,
            "external_file": member.external_file,
            "external_threshold": settings.external_threshold if settings.external_file else None,
        },
    }


@cache
def _list_setting_names() -> list[str]:
    """Return the names of the compile settings, without the fields for positions in the recipe."""
    return [name for name in CompileSettings.__struct_fields__ if not name.endswith("_where")]


def _build_inputs(member: Member) -> dict[str, Any]:
    """Return the new shapes of a member's inputs, or the recipe's sizes for a prepared model, whose graph is not known yet."""
    shapes = member.inputs if member.prepared is None else {name: shape.sizes for name, shape in member.input_shapes.items()}
    return {"inputs": {name: list(shape) for name, shape in shapes.items()}} if shapes else {}


def _build_dimensions(member: Member) -> dict[str, Any]:
    """Return the sizes of dimensions by name and by denotation.

    For a prepared model, each size is in both mappings, because the graph is not known yet. ONNX Runtime ignores unknown keys.
    """
    sizes = member.model.dimensions
    if member.prepared is not None:
        return {"free_dimensions": dict(sizes), "denoted_dimensions": dict(sizes)}
    return {
        "free_dimensions": {key: size for key, size in sizes.items() if key not in member.denotations},
        "denoted_dimensions": {key: size for key, size in sizes.items() if key in member.denotations},
    }


def _build_shared_initializers(group: SessionGroup) -> dict[str, Any]:
    if group.weights_file is None:
        return {}
    return {"share_initializers": {"file": group.weights_file, "threshold": group.initializer_threshold}}


def _build_custom_ops(group: SessionGroup, digests: Mapping[Path, str]) -> dict[str, Any]:
    # The toolchain's fingerprint covers the libraries of packages.
    listed = [{"name": ops.name, "library": digests[ops.library] if ops.library else None} for ops in group.custom_ops]
    return {"custom_ops": listed} if listed else {}


def _get_digests(files: Mapping[str, OptionFile], digests: Mapping[Path, str]) -> dict[str, str]:
    return {name: digests[file.path] for name, file in files.items()}


def _exclude(options: Mapping[str, _Value], left_out: frozenset[str]) -> dict[str, _Value]:
    return {name: value for name, value in options.items() if name not in left_out}


def _resolve_path(library: Path | None) -> str | None:
    return str(resolve_links(library)) if library else None
