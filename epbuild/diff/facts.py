"""Facts of an artifact for a comparison, by category.

Only the headers of models are read. Contexts and data are hashed in chunks.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any, Literal

from msgspec import Struct

from epbuild.catalog.catalog import find_source_entry, name_source_ep
from epbuild.core.errors import Problem, VerifyError
from epbuild.core.safepath import BadReference, locate
from epbuild.core.shown import format_path
from epbuild.diff.sizes import FileSizes, read_model_sizes
from epbuild.onnxfile.read.epcontext import COMPATIBILITY, SCHEMA_TYPES, EPContextNode, read_compatibility
from epbuild.onnxfile.read.model_header import Initializer, ModelHeader
from epbuild.onnxfile.read.payload import Payload
from epbuild.onnxfile.read.weights_files import find_weights
from epbuild.verify.artifact import ArtifactFolder
from epbuild.verify.contexts import read_context_target
from epbuild.verify.facts import Model
from epbuild.verify.manifest import Manifest, list_sources
from epbuild.verify.signature import get_signature

Category = Literal["graph", "graph or weights", "weights", "target", "settings", "toolchain", "context", "names"]
"""Category of facts. `context`: bytes that the EP wrote.

`graph or weights`: a file that contains graph and weights, if only the digest of the file is known.
"""

Facts = dict[Category, dict[str, Any]]

SOURCE_FILE = "source file"
ACTION_KEY = "action key"
"""Name of the fact for a model's action key. Only manifests contain action keys."""

_DEFAULT_DOMAINS = ("", "ai.onnx")
_UNCOMPILED_ROLES = ("base-model", "base-data", "genai-config", "adapter", "asset")
"""Roles of files that are not compiled."""


class Incomparable(VerifyError):
    """Error for an artifact that cannot be read (EPB630). The verdict is neither `same` nor `different`."""

    exit_code = 2


class ModelFacts(Struct, frozen=True):
    """Facts of a model: `inside` from the model's file, `outside` from its manifest and its other files."""

    name: str | None
    """Name in the manifest."""
    file: str
    sha256: str
    holds_weights: bool
    """True if the model's file has initializers. The header does not contain their values."""
    embeds: bool
    """True if the model's file contains its contexts."""
    inside: Facts
    outside: Facts
    data: Mapping[str, Mapping[str, str]]
    """Digests of external data by location, for the source and for the model itself."""
    files: FileSizes

    @property
    def label(self) -> str:
        return self.name or self.file


class ArtifactFacts(Struct, frozen=True):
    """Facts of an artifact. `whole` has the manifest's facts that are not about a single model; empty without a manifest."""

    has_manifest: bool
    whole: Facts
    models: tuple[ModelFacts, ...]
    accepts_other_bytes: bool = False
    """True if the artifact's recipe accepts compiles that are not reproducible."""


def read_facts(artifact: ArtifactFolder, sha256: Callable[[Payload], str]) -> ArtifactFacts:
    """Return the facts of an artifact. `sha256` computes digests. Raises Incomparable (EPB630)."""
    if artifact.flaw is not None:
        raise _make_error(f"the manifest in {format_path(artifact.folder)} cannot be used: {artifact.flaw}")
    manifest = artifact.manifest
    listed = {model["file"]: model for model in manifest.document.get("models", ())} if manifest is not None else {}
    models = tuple(_read_model_facts(model, listed.get(model.file), sha256) for model in artifact.models)
    if manifest is None:
        return ArtifactFacts(has_manifest=False, whole={}, models=models)
    accepts_other_bytes = bool(manifest.models) and "allow_nondeterminism" in manifest.document["target"]
    return ArtifactFacts(True, _read_manifest_facts(manifest), models, accepts_other_bytes)


def _read_manifest_facts(manifest: Manifest) -> Facts:
    document = manifest.document
    other_files = {
        "files of the output": {file.path: file.sha256 for file in manifest.files.values() if file.role in _UNCOMPILED_ROLES}
    }
    if not manifest.models:  # The artifact is a package: each of its models has its own folder and manifest.
        return {"settings": other_files, "names": {"package": document["package_name"]}}
    target, toolchain = document["target"], document["toolchain"]
    return {
        "target": {
            "eps": {ep["ep"]: {"options": ep["provider_options"], "device": ep.get("device", {})} for ep in target["eps"]},
            "EP order": ", ".join(ep["ep"] for ep in target["eps"]),
        },
        "settings": {
            **other_files,
            "share_weights": document["share_weights"],
            "allow_nondeterminism": target.get("allow_nondeterminism", False),
            "session_options": target["session_options"],
            "run_options": target.get("run_options", {}),
            "environment": target["environment"],
            "unchecked_options": ", ".join(target["unchecked_options"]),
            "custom_ops": {
                ops.get("module") or ops["library"]: ops.get("sha256", "package") for ops in document.get("custom_ops", ())
            },
        },
        "toolchain": {name: toolchain[name] for name in ("python", "platform", "distributions")},
        "names": {"recipe": document["recipe"], "group": document["group"], "target": target["name"]},
    }


def _read_model_facts(model: Model, listed: Mapping[str, Any] | None, sha256: Callable[[Payload], str]) -> ModelFacts:
    header = model.header
    if isinstance(header, str):
        raise _make_error(f"{format_path(model.path)} {header}")
    try:
        external_data = {name: sha256(Payload.whole(locate(model.data_folder, name))) for name in header.external_locations}
        outside = _read_context_facts(model, sha256)
        digest = sha256(Payload.whole(model.path))
    except (BadReference, OSError) as error:
        raise _make_error(f"{format_path(model.path)}: {getattr(error, 'strerror', None) or error}") from error
    inside = _read_header_facts(header)
    for number, node in enumerate(header.ep_context_nodes):
        for sense, facts in _read_node_facts(node).items():
            inside[sense].setdefault("nodes", {})[str(number)] = facts
    sources = list_sources(listed) if listed is not None else {}
    if listed is not None:
        files = {name: source["sha256"] for name, source in sources.items()}
        outside["graph or weights"] = {SOURCE_FILE: files if "merged" in listed else files[listed["name"]]}
        outside["settings"] = {ACTION_KEY: listed["action_key"]}
    name = listed["name"] if listed is not None else None
    return ModelFacts(
        name=name,
        file=model.file,
        sha256=digest,
        holds_weights=any(initializer.inline_bytes for initializer in header.initializers),
        embeds=any(node.payload is not None for node in header.ep_context_nodes),
        inside=inside,
        outside=outside,
        data={"source data": _collect_source_data(sources), "external data": external_data},
        files=read_model_sizes(model, name or model.file),
    )


def _read_context_facts(model: Model, sha256: Callable[[Payload], str]) -> Facts:
    """Return the digest, the size and the target of each node's context. Raises BadReference and OSError."""
    contexts: dict[str, Any] = {}
    targets: dict[str, Any] = {}
    for number, node in enumerate(model.nodes):
        payload = Payload.of(model.path, node)
        weights = find_weights(model.path, node, find_source_entry(node.source))
        if payload is None:
            contexts[str(number)] = {"context": None, "size": None}
            targets[str(number)] = {"compiled for": None}
        else:
            contexts[str(number)] = {"context": sha256(payload), "size of the context": payload.size}
            if weights is not None:
                contexts[str(number)]["weights of the context"] = sha256(Payload.whole(model.path.parent / weights))
            targets[str(number)] = {"compiled for": read_context_target(payload, node.source)}
    return {"context": {"nodes": contexts}, "target": {"nodes": targets}}


def _collect_source_data(sources: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Return the digests of the sources' external data by location, or by model and location if several models were merged."""
    several = len(sources) > 1
    return {
        f"{name}/{location}" if several else location: digest
        for name, source in sources.items()
        for location, digest in source["external_data"].items()
    }


def _read_header_facts(header: ModelHeader) -> Facts:
    model_signature = get_signature(header)
    metadata = {name: value for name, value in header.metadata.items() if not name.startswith(COMPATIBILITY)}
    others = {
        "::".join(filter(None, key)): count for key, count in header.operators.items() if key != ("com.microsoft", "EPContext")
    }
    compatibility_fields = {ep: _split_compatibility(ep, text) for ep, text in read_compatibility(header.metadata).items()}
    opsets = {name or "ai.onnx": version for name, version in header.opsets.items()}
    return {
        "graph": {
            "inputs": {value.name: _format_type(value.type, value.shape) for value in model_signature.inputs},
            "outputs": {value.name: _format_type(value.type, value.shape) for value in model_signature.outputs},
            "input order": ", ".join(value.name for value in header.inputs),
            "output order": ", ".join(value.name for value in header.outputs),
            "EPContext nodes": len(header.ep_context_nodes),
            "operators outside the EP": others,
            "initializers": {item.name: _format_type(f"type {item.elem_type}", item.dims) for item in header.initializers},
            "opsets": {name: version for name, version in opsets.items() if name in _DEFAULT_DOMAINS},
            "metadata": metadata,
        },
        "target": {"compatibility": {ep: fields for ep, (fields, _) in compatibility_fields.items()}},
        "settings": {"initializers kept": {item.name: _describe_location(item) for item in header.initializers}},
        "toolchain": {
            "compatibility": {ep: versions for ep, (_, versions) in compatibility_fields.items()},
            "producer": header.producer_name,
            "IR version": header.ir_version,
            "opsets": {name: version for name, version in opsets.items() if name not in _DEFAULT_DOMAINS},
        },
        "names": {"graph name": header.graph_name},
    }


def _read_node_facts(node: EPContextNode) -> Facts:
    reference = PurePosixPath(node.reference).as_posix() if node.reference is not None else None
    ep = name_source_ep(node.source)
    return {
        "target": {"EP": ep, "hardware": node.hardware_architecture},
        "settings": {
            "location of the context": "in the model" if node.embed_mode else "in a file",
            "main_context": node.main_context,
            "max_size": node.max_size,
            "notes": node.notes,
            "other attributes": ", ".join(f"{name} {value}" for name, value in sorted({**node.others, **node.unread}.items())),
            "attributes with explicit defaults": ", ".join(sorted(_find_defaults(node))),
        },
        "toolchain": {"SDK": node.ep_sdk_version},
        "names": {
            "node name": node.name,
            "spelling of the EP": node.source if node.source != ep else None,
            "partition name": node.partition_name,
            "source file name": node.onnx_model_filename,
            "context binary": reference,
        },
    }


def _find_defaults(node: EPContextNode) -> Iterator[str]:
    """Yield the attributes that the node sets to their defaults."""
    is_default = {"main_context": node.main_context == 1, "embed_mode": node.embed_mode == 1, "max_size": node.max_size == 0}
    for name, kind in node.written:
        if kind == SCHEMA_TYPES.get(name) and is_default.get(name, getattr(node, name, None) == ""):
            yield name


def _split_compatibility(ep: str, text: str) -> tuple[dict[str, str], dict[str, str]]:
    """Return the fields of a compatibility string that describe the target, and the fields that describe the toolchain.

    Text that the catalog cannot parse is a field of the target.
    """
    entry = find_source_entry(ep)
    match = re.search(entry.compatibility.pattern, text) if entry is not None and entry.compatibility.pattern else None
    if entry is None or match is None:
        return {"text": text}, {}
    fields = {name: value for name, value in match.groupdict().items() if value is not None}
    rest = text
    for name in sorted(fields, key=match.start, reverse=True):
        rest = f"{rest[: match.start(name)]}{rest[match.end(name) :]}"
    versions = {name: value for name, value in fields.items() if name in entry.compatibility.versions}
    return {**{name: value for name, value in fields.items() if name not in versions}, "the rest": rest}, versions


def _describe_location(item: Initializer) -> str:
    if item.external is None:
        return "in the model"
    length = "all bytes" if item.external.length is None else f"{item.external.length} bytes"
    return f"in a file: {length} {'from' if item.external.length is None else 'at'} offset {item.external.offset}"


def _format_type(kind: str, shape: Any) -> str:
    return f"{kind}[{'?' if shape is None else ', '.join('?' if size is None else str(size) for size in shape)}]"


def _make_error(message: str) -> Incomparable:
    return Incomparable(Problem("EPB630", f"cannot compare the artifacts: {message}"))
