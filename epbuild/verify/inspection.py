"""Inspection of ONNX models: their contents as JSON-compatible data."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from msgspec import Struct, field
from msgspec.structs import asdict

from epbuild.catalog.catalog import find_source_entry
from epbuild.core.defaults import MANIFEST
from epbuild.core.errors import Problem, VerifyError
from epbuild.core.safepath import BadReference, locate
from epbuild.core.shown import format_path
from epbuild.onnxfile.read.context_parts import SizePart, list_context_parts
from epbuild.onnxfile.read.epcontext import EPContextNode, read_compatibility
from epbuild.onnxfile.read.headers import read_header
from epbuild.onnxfile.read.model_header import ModelHeader, format_operator
from epbuild.onnxfile.read.payload import Payload
from epbuild.onnxfile.read.weights_files import find_weights, list_weights_parts, name_weights
from epbuild.onnxfile.read.wire import MalformedModel
from epbuild.plan.result import FallbackNode, ValueType
from epbuild.verify.artifact import list_artifact_files
from epbuild.verify.contexts import read_context_target
from epbuild.verify.manifest import BadManifest, read_manifest
from epbuild.verify.signature import get_signature

if TYPE_CHECKING:
    from epbuild.verify.inspected import BrokenModel, InspectedModel, InspectedPart, InspectedWeights, Inspection, SharedFile

FORMAT = 1
_ATTRIBUTES = (
    *("source", "partition_name", "main_context", "embed_mode", "ep_sdk_version"),
    *("onnx_model_filename", "hardware_architecture", "notes", "max_size"),
)
"""Node attributes to copy into the document."""
_FOLDERS_UP = 4
"""Number of folders to search for a model's manifest, from the model's own folder upward."""


def inspect_model(path: Path) -> InspectedModel:
    """Describe an ONNX file, compiled or not. Raises VerifyError (EPB600, EPB602) if it is unreadable or incomplete."""
    return _describe(path, _read_model(path), _Contexts())


def inspect_files(paths: Iterable[Path]) -> Inspection:
    """Describe ONNX files, including files in folders, and the files that several of them share.

    An incomplete model has a `problem` instead of a description. Raises VerifyError (EPB600) for a path that does not exist
    or cannot be read, and for a folder without models.
    """
    contexts = _Contexts()
    found: list[InspectedModel | BrokenModel] = []
    models: list[tuple[Path, ModelHeader]] = []
    for path in paths:
        for file in _find_models(path):
            try:
                if path.is_dir():
                    locate(path, file.relative_to(path).as_posix(), "model")
                header = _read_model(file)
            except BadReference as error:
                found.append({"file": str(file), "problem": str(error)})
            except VerifyError as error:
                found.append({"file": str(file), "problem": error.problems[0].message})
            else:
                found.append(_describe(file, header, contexts))
                models.append((file, header))
    return {"format": FORMAT, "models": found, "shared": _find_shared(models)}


class _Contexts(Struct, frozen=True):
    """Cache of the digests, targets and parts of contexts, because several models can refer to one context."""

    digest: Callable[[Payload], str] = field(default_factory=lambda: cache(Payload.sha256))
    target: Callable[[Payload, str | None], str | None] = field(default_factory=lambda: cache(read_context_target))
    parts: Callable[[Payload, str | None], tuple[SizePart, ...]] = field(default_factory=lambda: cache(_list_parts))


def _list_parts(context: Payload, source: str | None) -> tuple[SizePart, ...]:
    return list_context_parts(context, find_source_entry(source))


def _read_model(path: Path) -> ModelHeader:
    try:
        if path.exists() and not path.is_file():
            raise VerifyError(Problem("EPB600", f"{format_path(path)} is not a file"))
        return read_header(path)
    except FileNotFoundError as error:
        raise VerifyError(Problem("EPB600", f"no such file: {format_path(path)}")) from error
    except MalformedModel as error:
        raise VerifyError(Problem("EPB602", f"{format_path(path)} is not a complete ONNX file: {error}")) from error
    except (OSError, ValueError) as error:
        raise _make_read_error(path, error) from error


def _make_read_error(path: Path, error: Exception) -> VerifyError:
    return VerifyError(Problem("EPB600", f"{format_path(path)} cannot be read: {getattr(error, 'strerror', None) or error}"))


def _find_models(path: Path) -> Sequence[Path]:
    """Return the models in a folder and its subfolders, or the file itself. Skip hidden and linked folders."""
    if not path.is_dir():
        return (path,)
    try:
        models = [path / name for name in list_artifact_files(path) if name.endswith(".onnx")]
    except OSError as error:
        raise _make_read_error(path, error) from error
    if not models:
        raise VerifyError(Problem("EPB600", f"{format_path(path)} contains no ONNX model"))
    return models


def _describe(path: Path, header: ModelHeader, contexts: _Contexts) -> InspectedModel:
    typed = get_signature(header)
    described = {
        "format": FORMAT,
        "file": str(path),
        "size": path.stat().st_size,
        "ir_version": header.ir_version,
        "producer": header.producer_name,
        "opsets": dict(header.opsets),
        "graph": header.graph_name,
        "inputs": _describe_values(typed.inputs),
        "outputs": _describe_values(typed.outputs),
        "ep_context_nodes": [_describe_node(path, node, contexts) for node in header.ep_context_nodes],
        "other_operators": _count_other_operators(header),
        "left": [asdict(left) for left in _find_fallback_nodes(path, header)],
        "initializers": {
            "count": len(header.initializers),
            "inline_bytes": sum(initializer.inline_bytes for initializer in header.initializers),
        },
        "external_data": list(header.external_data),
        "compatibility": read_compatibility(header.metadata),
    }
    return cast("InspectedModel", described)


def _describe_values(values: Iterable[ValueType]) -> list[dict[str, Any]]:
    return [
        {"name": value.name, "type": value.type, "shape": None if value.shape is None else list(value.shape)} for value in values
    ]


def _describe_node(path: Path, node: EPContextNode, contexts: _Contexts) -> dict[str, Any]:
    """Describe a node with all attributes of the operator's schema.

    `written` has the types of the attributes that the node has, including an EP's attributes that `others` cannot show.
    """
    described: dict[str, Any] = {
        "name": node.name,
        "subgraph": node.depth > 0,
        **{name: getattr(node, name) for name in _ATTRIBUTES},
        "others": dict(node.others),
        "written": dict(node.written),
        "reference": node.reference,
        **dict.fromkeys(("size", "sha256", "weights", "target", "problem")),
        "parts": [],
    }
    try:
        payload = Payload.of(path, node)
        if payload is None:
            missing = "the node neither embeds a context nor refers to one" if node.main_context else None
            return described | {"problem": missing}
        size = {"size": payload.size}
        if payload.size == 0:
            return described | size | {"problem": "the context is empty" if node.main_context else None}
        described |= size | {"sha256": contexts.digest(payload), "target": contexts.target(payload, node.source)}
        described["parts"] = [asdict(part) for part in contexts.parts(payload, node.source)]
        return described | {"weights": _describe_weights(path, node, contexts)}
    except BadReference as error:
        return described | {"problem": str(error)}
    except OSError as error:
        return described | {"problem": f"the context cannot be read: {error.strerror or error}"}


def _describe_weights(path: Path, node: EPContextNode, contexts: _Contexts) -> InspectedWeights | None:
    entry = find_source_entry(node.source)
    weights = find_weights(path, node, entry)
    if weights is None:
        return None
    payload = Payload.whole(path.parent / weights)
    parts: list[InspectedPart] = [
        {"names": list(part.names), "offset": part.offset, "size": part.size} for part in list_weights_parts(path, node, entry)
    ]
    return {"reference": weights, "size": payload.size, "sha256": contexts.digest(payload), "parts": parts}


def _count_other_operators(header: ModelHeader) -> dict[str, int]:
    """Count the operators other than EPContext, most frequent first."""
    counts = {
        format_operator(domain, name): count
        for (domain, name), count in header.operators.items()
        if (domain, name) != ("com.microsoft", "EPContext")
    }
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def _find_fallback_nodes(path: Path, header: ModelHeader) -> tuple[FallbackNode, ...]:
    """Return the fallback nodes of a compiled model, with the reasons in its manifest. Return an empty tuple for a source model."""
    if not header.is_compiled or not header.remaining_nodes:
        return ()
    reasons = {(left.node, left.operator): left.reason for left in _read_fallback_nodes(path)}
    return tuple(FallbackNode(*node, reasons.get(node)) for node in read_header(path, name_nodes=True).other_nodes)


def _read_fallback_nodes(path: Path) -> tuple[FallbackNode, ...]:
    """Return the fallback nodes that a model's manifest lists. Return an empty tuple if no manifest lists the model."""
    for folder in path.absolute().parents[:_FOLDERS_UP]:
        try:
            manifest = read_manifest(folder / MANIFEST) if (folder / MANIFEST).is_file() else None
        except (BadManifest, OSError):
            continue  # `verify` reports unreadable manifests.
        name = path.absolute().relative_to(folder).as_posix()
        if manifest is None or name not in manifest.files or manifest.files[name].size != path.stat().st_size:
            continue
        return next((model.left for model in manifest.models if model.file == name), ())
    return ()


def _find_shared(models: Iterable[tuple[Path, ModelHeader]]) -> list[SharedFile]:
    """Return the files that several models refer to."""
    users: dict[str, dict[str, None]] = {}
    names: dict[str, Path] = {}
    for path, header in models:
        for file in _find_referenced_files(path, header):
            real = os.path.realpath(file)
            names.setdefault(real, file)
            users.setdefault(real, {})[str(path)] = None
    shared: list[SharedFile] = []
    for real, found in users.items():
        if len(found) > 1:
            size = names[real].stat().st_size
            shared.append({"file": str(names[real]), "size": size, "models": list(found), "saved": size * (len(found) - 1)})
    return shared


def _find_referenced_files(path: Path, header: ModelHeader) -> Iterator[Path]:
    """Yield the existing context binaries, their weights files and external data files of a model."""
    nodes = header.ep_context_nodes
    weights = (name_weights(node.reference, find_source_entry(node.source)) for node in nodes if node.reference is not None)
    for reference in (*(node.reference for node in nodes), *weights, *header.external_data):
        try:
            if reference is not None:
                yield locate(path.parent, reference)
        except BadReference:
            continue
