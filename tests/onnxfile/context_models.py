"""Compiled models in files as EPs write them: an EPContext node with inputs and outputs, and its context binary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx
from onnx import TensorProto, helper

QNN = "QNNExecutionProvider"
OPENVINO = "OpenVINOExecutionProvider"


def context(inputs: Sequence[str], outputs: Sequence[str], source: str = QNN, name: str | None = None, **attributes: Any) -> Any:
    node_name = name or f"{source}_{'_'.join(outputs)}"
    given = {"main_context": 1, "source": source, "partition_name": node_name, **attributes}
    return helper.make_node("EPContext", list(inputs), list(outputs), node_name, domain="com.microsoft", **given)


def value(name: str, shape: Sequence[int | str | None] = (1, 4), elem_type: int = TensorProto.FLOAT) -> Any:
    return helper.make_tensor_value_info(name, elem_type, list(shape))


def write(
    path: Path,
    nodes: Sequence[Any],
    inputs: Sequence[Any],
    outputs: Sequence[Any],
    opsets: Mapping[str, int] | None = None,
    metadata: Mapping[str, str] | None = None,
    **graph: Any,
) -> Path:
    """Write the model of these nodes to `path`, and return the path."""
    made = helper.make_graph(nodes, path.stem, inputs, outputs, **graph)
    versions = [helper.make_opsetid(*item) for item in (opsets or {"": 21, "com.microsoft": 1}).items()]
    proto = helper.make_model(made, opset_imports=versions)
    helper.set_model_props(proto, dict(metadata or {}))
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(proto, path)
    return path


def compiled(
    path: Path,
    takes: str = "x",
    gives: str = "y",
    source: str = QNN,
    binary: str | None = None,
    payload: bytes | None = None,
    **more: Any,
) -> Path:
    """Write a model with one EPContext node from the value `takes` to the value `gives`.

    The node embeds `payload` if there is one. Otherwise it refers to `binary`, which is written unless it exists.
    """
    if payload is not None:
        node = context([takes], [gives], source, more.pop("node", None), embed_mode=1, ep_cache_context=payload)
    else:
        reference = binary or f"{path.stem}_qnn.bin"
        file = path.parent / reference
        file.parent.mkdir(parents=True, exist_ok=True)
        if not file.exists():
            file.write_bytes(f"context of {path.stem}".encode())
        node = context([takes], [gives], source, more.pop("node", None), embed_mode=0, ep_cache_context=reference)
    return write(path, [node], [value(takes)], [value(gives)], **more)


IR = """\
<?xml version="1.0"?>
<net name="onnx_Frontend_IR" version="11">
	<layers>
		<layer id="1" name="w" type="Const" version="opset1">
			<data element_type="f32" shape="2, 2" offset="16" size="16" />
		</layer>
	</layers>
</net>
"""
"""An OpenVINO model as its tools write it, shortened. Its weights are the bytes 16 to 32 of the file beside it."""


def encapsulated(path: Path, takes: str = "x", gives: str = "y", name: str = "net", **more: Any) -> Path:
    """Write an EPContext model around an OpenVINO model in two files, NAME.xml and NAME.bin."""
    path.parent.mkdir(parents=True, exist_ok=True)
    (path.parent / f"{name}.xml").write_text(IR, encoding="utf-8")
    (path.parent / f"{name}.bin").write_bytes(bytes(range(32)))
    return compiled(path, takes, gives, OPENVINO, f"{name}.xml", **more)


def files(folder: Path) -> dict[str, bytes]:
    """Return every file below a folder by its relative POSIX path."""
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def sectioned(size: int, **sections: int) -> bytes:
    """Return a context of QNN with sections of these sizes: of the graph with the name, or of shared weights for `shared`."""
    entries = b""
    for number, (name, length) in enumerate(sections.items()):
        title = (b"WEIGHTS/0" if name == "shared" else f"PICKLE/{256 + number}/{name}".encode()) + b"\0"
        entries += b"".join(field.to_bytes(8, "little") for field in (length, 4096, 4096, 0))
        entries += (len(title) - 1).to_bytes(4, "little") + title
    return (b"\0\0\0\2\0\0\0\3" + entries).ljust(size, b"\0")
