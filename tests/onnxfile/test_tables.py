"""Lookup tables: they are found at any place in a model, and no other Gather counts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from epbuild.onnxfile.read.tables import find_table_sizes


def write(path: Path, nodes: list[Any], **initializers: Any) -> Path:
    """Write a model with the inputs `ids` and `types`."""
    takes = [helper.make_tensor_value_info(name, TensorProto.INT64, [1, 4]) for name in ("ids", "types")]
    gives = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    tensors = [numpy_helper.from_array(np.asarray(value), name) for name, value in initializers.items()]
    onnx.save(helper.make_model(helper.make_graph(nodes, "g", takes, gives, tensors)), path)
    return path


WORDS = np.zeros((50, 3), np.float32)


def constant(name: str, value: Any) -> Any:
    return helper.make_node("Constant", [], [name], value=numpy_helper.from_array(value))


@pytest.mark.parametrize(
    ("nodes", "found"),
    [
        ([helper.make_node("Gather", ["words", "ids"], ["y"])], {"ids": 50}),
        ([helper.make_node("Gather", ["words", "ids"], ["y"], axis=1)], {"ids": 3}),
        ([helper.make_node("Gather", ["words", "ids"], ["y"], axis=-1)], {"ids": 3}),
        ([helper.make_node("Gather", ["words", "ids"], ["y"], axis=7)], {}),
        (
            [
                helper.make_node("Cast", ["ids"], ["narrow"], to=TensorProto.INT32),
                helper.make_node("Reshape", ["narrow", "shape"], ["flat"]),
                helper.make_node("Gather", ["words", "flat"], ["y"]),
            ],
            {"ids": 50},
        ),
        (
            [
                constant("few", np.zeros((2, 3), np.float32)),
                helper.make_node("Gather", ["words", "ids"], ["word"]),
                helper.make_node("Gather", ["few", "types"], ["type"]),
                helper.make_node("Add", ["word", "type"], ["y"]),
            ],
            {"ids": 50, "types": 2},
        ),
        (
            [
                constant("few", np.zeros((7, 3), np.float32)),
                helper.make_node("Gather", ["words", "ids"], ["word"]),
                helper.make_node("Gather", ["few", "ids"], ["position"]),
                helper.make_node("Add", ["word", "position"], ["y"]),
            ],
            {"ids": 7},
        ),
        (
            [
                helper.make_node("DequantizeLinear", ["codes", "scale"], ["table"]),
                helper.make_node("Gather", ["table", "ids"], ["y"]),
            ],
            {"ids": 9},
        ),
        ([helper.make_node("Gather", ["types", "ids"], ["y"])], {}),
        ([helper.make_node("Add", ["ids", "types"], ["sum"]), helper.make_node("Gather", ["words", "sum"], ["y"])], {}),
        ([helper.make_node("Gather", ["ids", "place"], ["one"]), helper.make_node("Identity", ["words"], ["y"])], {}),
    ],
)
def test_rows_of_a_table_are_counted_through_its_gather(tmp_path: Path, nodes: list[Any], found: dict[str, int]) -> None:
    shape, place = np.array([4], np.int64), np.int64(0)
    codes, scale = np.zeros((9, 3), np.uint8), np.float32(0.1)
    path = write(tmp_path / "m.onnx", nodes, words=WORDS, shape=shape, place=place, codes=codes, scale=scale)
    assert find_table_sizes(path) == found
