"""`python make_context_models.py FOLDER COUNT`: generator of compiled models in the folders a and b.

Each model has a context binary of its own. No two models share a name or a context. Below c, each model is in a folder of its
own, and all binaries have the same name.
"""

from __future__ import annotations

import sys
from pathlib import Path

from onnx import ModelProto, TensorProto, helper


def make(name: str, binary: str) -> ModelProto:
    attributes = {"main_context": 1, "embed_mode": 0, "ep_cache_context": binary, "source": "QNNExecutionProvider"}
    ends = [helper.make_tensor_value_info(f"{end}_{name}", TensorProto.FLOAT, [1, 4]) for end in "xy"]
    names = [end.name for end in ends]
    node = helper.make_node("EPContext", names[:1], names[1:], name, domain="com.microsoft", partition_name=name, **attributes)
    graph = helper.make_graph([node], name, ends[:1], ends[1:])
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def main(folder: Path, count: int) -> None:
    for side in "abc":
        for number in range(count):
            name = f"{side}{number}"
            place, binary = (folder / side / name, "context.bin") if side == "c" else (folder / side, f"{name}.bin")
            place.mkdir(parents=True, exist_ok=True)
            (place / f"{name}.onnx").write_bytes(make(name, binary).SerializeToString())
            (place / binary).write_bytes(f"context {name:>8}".encode())


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
