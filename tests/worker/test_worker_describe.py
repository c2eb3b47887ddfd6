"""`worker/describe.py`: every version of the QNN System API's structures is read, and unknown ones are refused."""

from __future__ import annotations

import runpy
from ctypes import POINTER, c_uint8, c_uint32, cast, pointer
from types import SimpleNamespace
from typing import Any

import pytest

from epbuild.worker.scripts import DESCRIBE

script = SimpleNamespace(**runpy.run_path(str(DESCRIBE)))


def make_tensor(name: bytes, data_type: int, *, version: int = 1, encoding: int | None = None) -> Any:
    tensor = script.Tensor(version=version)
    sizes = (c_uint32 * 2)(1, 8)
    tensor.info.name, tensor.info.data_type, tensor.info.rank, tensor.info.sizes = name, data_type, 2, sizes
    if version > 1:
        tensor.info.dynamic = (c_uint8 * 2)(1, 0)
    if encoding is not None:
        quantization = tensor.info.quantization
        quantization.definition, quantization.encoding, quantization.scale, quantization.offset = 1, encoding, 0.5, -3
    return tensor


def make_description(version: int, graph_version: int, *tensors: Any) -> Any:
    graph = script.Graph(version=graph_version)
    graph.info.name, graph.info.input_count, graph.info.inputs = b"g", len(tensors), (script.Tensor * len(tensors))(*tensors)
    description = script.Description(version=version)
    info = description.info.new if version == 3 else description.info.old
    info.build, info.graph_count, info.graphs = b"v2.20", 1, cast(pointer(graph), POINTER(script.Graph))
    return description


@pytest.mark.parametrize(("version", "graph_version"), [(1, 1), (2, 2), (3, 3)])
def test_all_versions_of_a_description_are_read(version: int, graph_version: int) -> None:
    tensors = (make_tensor(b"a", 0x0232), make_tensor(b"b", 0x0416, version=2, encoding=0), make_tensor(b"c", 0x0408, encoding=1))
    found = script.read_description(make_description(version, graph_version, *tensors))
    assert (found["sdk"], [graph["name"] for graph in found["graphs"]]) == ("v2.20", ["g"])
    assert found["graphs"][0]["inputs"] == [
        {"name": "a", "type": "float32", "shape": [1, 8], "quantized": False},
        {"name": "b", "type": "uint16", "shape": [None, 8], "quantized": True, "scale": 0.5, "zero_point": 3},
        {"name": "c", "type": "uint8", "shape": [1, 8], "quantized": True},
    ]


@pytest.mark.parametrize(
    ("description", "words"),
    [
        (make_description(4, 3), "unknown version 4"),
        (make_description(3, 9), "a graph in an unknown layout"),
        (make_description(3, 3, make_tensor(b"x", 0x0232, version=7)), "a tensor in an unknown layout"),
        (make_description(3, 3, make_tensor(b"x", 0x0304)), "'x' has the type 0x0304, which no ONNX type stands for"),
    ],
)
def test_unknown_layouts_and_types_are_refused(description: Any, words: str) -> None:
    with pytest.raises(script.Unreadable, match=words):
        script.read_description(description)
