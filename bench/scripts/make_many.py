"""`python make_many.py FOLDER GROUPS MEMBERS`: write small models in a folder for each group; the weights are in external data files.

A model has one data file; the first four of each group have two. So a group of N models has 2 x N + 4 files.
"""

from __future__ import annotations

import sys
from pathlib import Path

from onnx import ModelProto, TensorProto, helper

_TWICE = 4


def make(name: str, files: int) -> ModelProto:
    weights = []
    for number in range(files):
        weight = TensorProto(name=f"w{number}", data_type=TensorProto.FLOAT, dims=[4], data_location=TensorProto.EXTERNAL)
        weight.external_data.add(key="location", value=f"{name}.{number}.data")
        weights.append(weight)
    nodes = [helper.make_node("Add", [f"x{number}", f"w{number}"], [f"x{number + 1}"]) for number in range(files)]
    ends = [helper.make_tensor_value_info(end, TensorProto.FLOAT, [4]) for end in ("x0", f"x{files}")]
    graph = helper.make_graph(nodes, name, ends[:1], ends[1:], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def main(folder: Path, groups: int, members: int) -> None:
    for group in range(groups):
        place = folder / f"g{group}"
        place.mkdir(parents=True)
        for member in range(members):
            name, files = f"g{group}-m{member}", 2 if member < _TWICE else 1
            (place / f"{name}.onnx").write_bytes(make(name, files).SerializeToString())
            for number in range(files):
                (place / f"{name}.{number}.data").write_bytes(f"{group:08}{number:08}".encode())


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
