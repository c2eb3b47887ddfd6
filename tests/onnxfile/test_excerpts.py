"""Excerpts of models, whose types are inferred without a run of the model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from epbuild.onnxfile.edit.excerpts import ModelGraph, get_types


def write_model(path: Path, *nodes: onnx.NodeProto) -> ModelGraph:
    """Write a model that multiplies by a weight, reshapes by the shape of a value, and then has the given nodes."""
    weight = np.arange(256 * 128, dtype=np.float32).reshape(256, 128)
    first = (
        helper.make_node("MatMul", ["x", "weight"], ["product"]),
        helper.make_node("Shape", ["product"], ["tail"], start=1),
        helper.make_node("Reshape", ["product", "tail"], ["flat"]),
        helper.make_node("Tanh", ["flat"], ["y"]),
    )
    ends = [[helper.make_tensor_value_info(name, TensorProto.FLOAT, None)] for name in ("x", "y")]
    ends[0] = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 4, 256])]
    graph = helper.make_graph([*first, *nodes], "graph", *ends, [numpy_helper.from_array(weight, "weight")])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), path)
    return ModelGraph(path, {"batch": 1})


def test_an_excerpt_with_inferred_types_computes_what_the_model_does(tmp_path: Path) -> None:
    graph = write_model(tmp_path / "model.onnx")
    types = graph.infer_types()
    assert graph.find_untyped(types) is None
    x = np.random.default_rng(0).normal(size=(1, 4, 256)).astype(np.float32)
    names = [*graph.list_inner_values(), "y"]
    values = dict(zip(names, ReferenceEvaluator(str(tmp_path / "model.onnx")).run(names, {"x": x}), strict=True))
    assert {name: types[name] for name in names} == get_types(values)
    graph.save_excerpt(graph.nodes[1:], types, tmp_path / "part.onnx")
    onnx.checker.check_model(tmp_path / "part.onnx", full_check=True)
    [got] = ReferenceEvaluator(str(tmp_path / "part.onnx")).run(None, {"product": values["product"]})
    np.testing.assert_array_equal(got, values["y"])


def test_a_wrong_declared_shape_of_an_output_is_corrected(tmp_path: Path) -> None:
    graph = write_model(tmp_path / "model.onnx")
    types = graph.infer_types()
    model = onnx.load(tmp_path / "model.onnx")
    model.graph.output.append(helper.make_tensor_value_info("product", TensorProto.FLOAT, [1, 4, 999]))
    onnx.save(model, tmp_path / "model.onnx")
    assert ModelGraph(tmp_path / "model.onnx", {"batch": 1}).infer_types() == types


def test_a_value_whose_size_depends_on_data_is_untyped(tmp_path: Path) -> None:
    nodes = (
        helper.make_node("NonZero", ["x"], ["places"]),
        helper.make_node("Transpose", ["places"], ["listed"]),
        helper.make_node("GatherND", ["x", "listed"], ["z"]),
    )
    graph = write_model(tmp_path / "model.onnx", *nodes)
    assert graph.find_untyped(graph.infer_types()) is None  # the output does not need these nodes
    model = onnx.load(tmp_path / "model.onnx")
    model.graph.output[0].name = "z"
    onnx.save(model, tmp_path / "model.onnx")
    graph = ModelGraph(tmp_path / "model.onnx", {"batch": 1})
    types = graph.infer_types()
    assert graph.find_untyped(types) == "places"
    model.graph.node[-1].domain = "not.imported"
    onnx.save(model, tmp_path / "odd.onnx")
    assert list(ModelGraph(tmp_path / "odd.onnx", {"batch": 1}).infer_types()) == ["x"]
    [*_, gather] = graph.nodes
    assert [graph.node(index).op_type for index in graph.add_untyped([gather], types)] == ["NonZero", "Transpose", "GatherND"]
