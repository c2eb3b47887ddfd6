"""`python make_many.py FOLDER GROUPS MEMBERS FILES`: generator of small models, with a folder for each group.

Each folder has FILES files. The weights are in external data files, which are distributed evenly over the models.
"""

from __future__ import annotations

import sys
from pathlib import Path

from onnx import ModelProto, TensorProto, helper


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


def main(folder: Path, groups: int, members: int, files_of_a_group: int) -> None:
    each, more = divmod(files_of_a_group, members)
    for group in range(groups):
        place = folder / f"g{group}"
        place.mkdir(parents=True)
        for member in range(members):
            name, files = f"g{group}-m{member}", each - 1 + (member < more)
            (place / f"{name}.onnx").write_bytes(make(name, files).SerializeToString())
            for number in range(files):
                (place / f"{name}.{number}.data").write_bytes(f"{group:08}{number:08}".encode())


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
