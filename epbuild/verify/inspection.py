"""What is inside an EPContext model, as plain data: its nodes, their binaries and targets, and what is left for other EPs."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from epbuild.catalog import entry, known_eps
from epbuild.errors import Problem, VerifyError
from epbuild.onnxfile import BadReference, EPContextNode, MalformedModel, ModelHeader, ValueInfo, read_header, resolve
from epbuild.verify.checks import read_target

FORMAT = 1
_COMPATIBILITY = "ep_compatibility_info."
# TensorProto.DataType, by number.
_TYPES = (
    "undefined", "float32", "uint8", "int8", "uint16", "int16", "int32", "int64", "string", "bool", "float16", "double", "uint32",
    "uint64", "complex64", "complex128", "bfloat16", "float8e4m3fn", "float8e4m3fnuz", "float8e5m2",
    "float8e5m2fnuz", "uint4", "int4", "float4e2m1",
)  # fmt: skip


def inspect_model(path: Path) -> dict[str, Any]:
    """The contents of an ONNX file, compiled or not. Raises VerifyError (EPB600, EPB602) when it cannot be read or is not whole."""
    try:
        header = read_header(path)
    except FileNotFoundError as error:
        raise VerifyError(Problem("EPB600", f"there is no file {path}")) from error
    except OSError as error:
        raise VerifyError(Problem("EPB600", f"{path} cannot be read: {error.strerror}")) from error
    except MalformedModel as error:
        raise VerifyError(Problem("EPB602", f"{path} is not a whole ONNX file: {error}")) from error
    return {
        "format": FORMAT,
        "file": str(path),
        "size": path.stat().st_size,
        "graph": header.graph_name,
        "inputs": [_value(value) for value in header.inputs],
        "outputs": [_value(value) for value in header.outputs],
        "ep_context_nodes": [_node(path, node) for node in header.ep_context_nodes],
        "other_operators": _others(header),
        "external_data": list(header.external_locations),
        "compatibility": {
            name.removeprefix(_COMPATIBILITY): value for name, value in header.metadata.items() if name.startswith(_COMPATIBILITY)
        },
    }


def _node(path: Path, node: EPContextNode) -> dict[str, Any]:
    described: dict[str, Any] = {
        "name": node.name,
        "source": node.source,
        "partition_name": node.partition_name,
        "main_context": node.main_context,
        "embed_mode": node.embed_mode,
        "ep_sdk_version": node.ep_sdk_version,
        "hardware_architecture": node.hardware_architecture,
        "notes": node.notes,
        "others": dict(node.others),
        "reference": node.reference,
        "size": node.payload[1] if node.payload else None,
        "sha256": None,
        "target": None,
        "problem": None,
    }
    if node.reference is not None:
        try:
            binary = resolve(path, node)
        except BadReference as error:
            described["problem"] = str(error)
        else:
            described |= {"size": binary.stat().st_size, "sha256": _digest(binary), "target": _target(binary, node.source)}
    elif node.main_context and not node.embed_mode:
        described["problem"] = "the node holds no context and names none"
    return described


def _target(binary: Path, source: str | None) -> str | None:
    """What the binary was made for, where the catalog knows how this EP writes it down."""
    patterns = (found.target_pattern for found in map(entry, known_eps()) if source in found.sources)
    pattern = next(patterns, None)
    return read_target(binary, pattern) if pattern else None


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _others(header: ModelHeader) -> dict[str, int]:
    """The operators that are not EPContext nodes, most frequent first."""
    counts = {
        f"{domain}::{name}" if domain not in ("", "ai.onnx") else name: count
        for (domain, name), count in header.operators.items()
        if (domain, name) != ("com.microsoft", "EPContext")
    }
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def _value(value: ValueInfo) -> dict[str, Any]:
    kind = _TYPES[value.elem_type] if value.elem_type < len(_TYPES) else f"type {value.elem_type}"
    return {"name": value.name, "type": kind, "shape": None if value.shape is None else list(value.shape)}
