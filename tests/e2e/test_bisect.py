"""`epbuild bisect` with the real QNN EP on its emulator: planted faults in models of 200 nodes."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.support.projects import Project

pytestmark = [
    pytest.mark.gate,
    pytest.mark.skipif(sys.platform != "linux", reason="the HTP emulator that runs compiled contexts comes in the Linux wheel"),
]

RECIPE = """\
epbuild: 1
name: faults
toolchains:
  qnn: {packages: [onnxruntime==1.31.1, onnxruntime-qnn==2.7.0]}
models: {model: model.onnx}
targets:
  npu: {toolchain: qnn, ep: QNNExecutionProvider, provider_options: {backend_type: htp, soc_model: SM8750}}
groups:
  main: {models: [model], targets: [npu]}
outputs:
  - {layout: directory, path: dist}
"""
NODES, BEFORE, WIDTH = 200, 130, 64


class Chain:
    """Model under construction: residual layers of four nodes, with a fault in the middle."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.weights: list[Any] = []
        self.random = numpy.random.default_rng(0)

    def weight(self, value: Any, dtype: type = numpy.float32) -> str:
        self.weights.append(numpy_helper.from_array(numpy.asarray(value, dtype), f"weight{len(self.weights)}"))
        return str(self.weights[-1].name)

    def add(self, operator: str, *inputs: str, name: str = "", **attributes: Any) -> str:
        name = name or f"{operator}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, inputs, [f"{name}:0"], name=name, **attributes))
        return f"{name}:0"

    def add_layer(self, x: str) -> str:
        y = self.add("MatMul", x, self.weight(self.random.normal(size=(WIDTH, WIDTH)) / 8))
        return self.add("Add", x, self.add("Mul", self.add("Tanh", y), self.weight(0.1)))

    def plant(self, fault: str, x: str) -> str:
        match fault:
            case "overflow":
                return self.add("Mul", self.add("Mul", x, self.weight(1e6), name="planted"), self.weight(1e-6))
            case "nan":
                return self.add("Sqrt", x, name="planted")
            case "unsupported":
                return self.add("Shrink", x, name="planted", lambd=0.01)
            case "norm":  # as torch.onnx.export writes it: QNN fails on the last Mul
                mean = self.add("ReduceMean", self.add("Pow", x, self.weight(2)), self.weight([-1], numpy.int64), name="mean")
                scale = self.add("Reciprocal", self.add("Sqrt", self.add("Add", mean, self.weight(1e-5))))
                y = self.add("Mul", self.weight(numpy.ones(WIDTH)), self.add("Mul", x, scale), name="planted")
                # The CPU EP has no Relu for 16-bit integers, so the search cannot run the model.
                return self.add("Cast", self.add("Relu", self.add("Cast", y, to=TensorProto.INT16)), to=TensorProto.FLOAT)
        return x


def write_model(path: Path, fault: str) -> None:
    """Write a model of 200 nodes with this fault after 130 nodes."""
    chain, x = Chain(), "x"
    while len(chain.nodes) < BEFORE:
        x = chain.add_layer(x)
    x = chain.plant(fault, x)
    while len(chain.nodes) <= NODES - 4:
        x = chain.add_layer(x)
    while len(chain.nodes) < NODES:
        x = chain.add("Tanh", x)
    ends = [[helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 8, WIDTH])] for name in ("x", x)]
    graph = helper.make_graph(chain.nodes, "chain", *ends, chain.weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), path)


def bisect(project: Project, fault: str, *options: str) -> dict[str, Any]:
    """Search for a fault in a new project, and return the document."""
    project.recipe.write_text(RECIPE, encoding="utf-8")
    write_model(project.folder / "model.onnx", fault)
    done = project.epbuild("bisect", "compile:main/npu/model", "--json", *options)
    assert done.returncode == (0 if fault == "none" else 1), done.stdout + done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    assert document["nodes"] == NODES
    assert document["compiles"] <= 12 or options
    assert done.stderr.count("compile ") >= document["compiles"]  # progress
    return document


def test_a_float16_overflow_is_named_with_values_and_inputs(project: Project) -> None:
    found = bisect(project, "overflow")
    assert (found["fault"], [node["node"] for node in found["part"]]) == ("numbers", ["planted"])
    wrong = next(row for row in found["tensors"] if row["bad"])
    assert (wrong["tensor"], wrong["got"]) == ("planted:0", pytest.approx(131008))
    assert found["advice"] == [
        "Values above 65,504 on the CPU EP: planted. Rescale these values, or quantize the model.",
        (
            'To run planted, Mul_133 on the CPU in float32, add `split: {at: ["Add_131:0", "Mul_133:0"]}` to the model, and list it in the '
            "group as `model_0`, `{model: model_1, compile: none}` and `model_2`."
        ),
    ]
    folder = project.folder / ".epbuild/bisect/compile+main+npu+model"
    part = onnx.load(folder / "part.onnx")
    assert [node.name for node in part.graph.node] == ["planted"]
    given, expected = numpy.load(folder / "inputs.npz"), numpy.load(folder / "expected.npz")
    numpy.testing.assert_allclose(given[part.graph.input[0].name] * 1e6, expected["planted:0"], rtol=1e-5)


@pytest.mark.exhaustive
@pytest.mark.parametrize(("fault", "kind"), [("unsupported", "fallback"), ("nan", "source"), ("none", None)])
def test_other_faults_are_named(fault: str, kind: str | None, project: Project) -> None:
    found = bisect(project, fault)
    assert found["fault"] == kind
    assert [node["node"] for node in found["part"]] == ([] if fault == "none" else ["planted"])


@pytest.mark.exhaustive
def test_a_part_that_fails_to_compile_is_found_without_a_run(project: Project) -> None:
    found = bisect(project, "norm")
    assert (found["fault"], found["complete"]) == ("compile", False)
    assert found["message"].startswith("smallest part after 12 compiles: 8 of 200 nodes")
    assert "QNN_COMMON_ERROR_MEM_ALLOC" in found["reason"]
    assert "Add `{rewrite: qnn}` to the model's 'prepare'." in found["advice"][0]
    assert [Path(file).name for file in found["files"]] == ["part.onnx"]
    found = bisect(project, "norm", "--max-compiles", "24")
    assert found["complete"]
    assert [node["operator"] for node in found["part"]] == ["Pow", "ReduceMean", "Add", "Sqrt", "Reciprocal", "Mul", "Mul"]
