"""Patterns on which an EP is known to fail."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from epbuild.catalog.catalog import entry
from epbuild.onnxfile.read.graph_nodes import read_graphs
from epbuild.plan.known_patterns import count_patterns
from tests.support.plan_recipes import RECIPE, edited, plan_of, write_models

REWRITES = entry("QNNExecutionProvider").rewrites
SUMMARY = "an RMSNorm whose weight is the first factor, as torch.onnx.export writes it"


def norm(name: str, first: bool = True, constant: bool = True) -> list[Any]:
    """Return the nodes of an RMSNorm. Its weight is the first factor or the second, and a constant or an input."""
    weight = f"{name}_weight"
    made = [helper.make_node("Constant", [], [weight], value=numpy_helper.from_array(numpy.ones(4, numpy.float32)))]
    return [
        *(made if constant else []),
        helper.make_node("Reciprocal", ["root"], [f"{name}_r"]),
        helper.make_node("Mul", ["x", f"{name}_r"], [f"{name}_n"]),
        helper.make_node("Mul", [weight, f"{name}_n"] if first else [f"{name}_n", weight], [name]),
    ]


def write(path: Path, nodes: list[Any], inputs: tuple[str, ...] = ("x", "root")) -> Path:
    takes = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4]) for name in inputs]
    gives = [helper.make_tensor_value_info(nodes[-1].output[0], TensorProto.FLOAT, [4])]
    graph = helper.make_graph(nodes, "graph", takes, gives)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), path)
    return path


def branch(name: str) -> Any:
    return helper.make_graph(norm(name), name, [], [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4])])


def test_patterns_are_counted_in_a_graph_and_its_subgraphs(tmp_path: Path) -> None:
    choice = helper.make_node("If", ["c"], ["y"], then_branch=branch("then"), else_branch=branch("else"))
    model = write(tmp_path / "m.onnx", [*norm("a"), choice], ("x", "root", "c"))
    assert count_patterns(model, REWRITES) == {SUMMARY: 3}


@pytest.mark.parametrize("nodes", [norm("a", first=False), norm("a", constant=False)])
def test_similar_nodes_are_no_pattern(tmp_path: Path, nodes: list[Any]) -> None:
    assert count_patterns(write(tmp_path / "m.onnx", nodes, ("x", "root", "a_weight")), REWRITES) == {}


def test_unreadable_files_have_no_patterns(tmp_path: Path) -> None:
    model = write(tmp_path / "m.onnx", norm("a"))
    model.write_bytes(model.read_bytes()[:-20])
    assert count_patterns(model, REWRITES) == {}
    assert count_patterns(tmp_path / "missing.onnx", REWRITES) == {}


def test_nodes_are_read_as_onnx_reads_them(tmp_path: Path) -> None:
    custom = helper.make_node("Mine", ["x", ""], ["z"], domain="my.domain")
    path = write(tmp_path / "m.onnx", [*norm("a"), custom])
    [graph] = read_graphs(path)
    expected = [(node.op_type, tuple(node.input), tuple(node.output)) for node in onnx.load(path).graph.node]
    assert graph.nodes == [*expected[:-1], ("my.domain:Mine", ("x", ""), ("z",))]
    assert graph.constants == {"a_weight"}


DYNAMIC = [
    helper.make_node("MatMulInteger", ["x", "x"], ["i"]),
    helper.make_node("DynamicQuantizeLSTM", ["i"], ["j"], domain="com.microsoft"),
    helper.make_node("MatMulInteger", ["j", "x"], ["y"]),
]


def test_plan_warns_of_dynamically_quantized_nodes_once_per_ep(tmp_path: Path) -> None:
    write_models(tmp_path)
    write(tmp_path / "models" / "prefill.onnx", DYNAMIC, ("x",))
    plan = plan_of(tmp_path, edited(RECIPE, ("targets: [cpu]", "targets: [phone, cpu]")))
    phone, cpu = (warning for warning in plan.warnings if warning.code == "EPB266")
    assert phone.message.startswith(
        "the model 'prefill' has 3 dynamically quantized nodes (2 MatMulInteger, 1 DynamicQuantizeLSTM), which QNN"
    )
    assert phone.hint == "To replace them with float32 nodes, add `prepare: [{dequantize: {}}]` to the model."
    assert "has 1 dynamically quantized node (1 DynamicQuantizeLSTM), which OpenVINO" in cpu.message


def test_a_prepared_model_and_a_supported_operator_get_no_warning(tmp_path: Path) -> None:
    write_models(tmp_path)
    write(tmp_path / "models" / "prefill.onnx", DYNAMIC, ("x",))
    write(tmp_path / "models" / "classifier.onnx", DYNAMIC[2:], ("x", "j"))
    dequantized = "prefill: {path: models/prefill.onnx, prepare: [{dequantize: {}}]}"
    assert plan_of(tmp_path, edited(RECIPE, ("prefill: models/prefill.onnx", dequantized))).warnings == ()
