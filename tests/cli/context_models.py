"""Compiled models of one EPContext node for `relink` and `merge`, made without an EP."""

from __future__ import annotations

from pathlib import Path

import onnx
from onnx import TensorProto, helper


def compiled(
    path: Path,
    takes: str = "x",
    gives: str = "y",
    source: str = "QNNExecutionProvider",
    *,
    binary: str | None = None,
    author: str = "me",
) -> Path:
    """Return a model from the value `takes` to the value `gives`, and its context binary."""
    reference = binary or f"{path.stem}_qnn.bin"
    path.parent.mkdir(parents=True, exist_ok=True)
    (path.parent / reference).write_bytes(f"context of {reference}".encode())
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 4]) for name in (takes, gives)]
    name = f"{source}_{path.stem}"
    attributes = {"source": source, "main_context": 1, "embed_mode": 0, "ep_cache_context": reference, "partition_name": name}
    node = helper.make_node("EPContext", [takes], [gives], name, domain="com.microsoft", **attributes)
    model = helper.make_model(helper.make_graph([node], path.stem, values[:1], values[1:]))
    helper.set_model_props(model, {"author": author})
    onnx.save(model, path)
    return path


def files(folder: Path) -> dict[str, bytes]:
    """Return every file below a folder, by its relative POSIX path."""
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}
