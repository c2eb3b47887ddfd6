"""Searches of `bisect` in models that a fake EP compiles: invalid inputs, and limits on the number of compiles."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import onnx
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from epbuild.catalog.catalog import entry
from epbuild.commands.bisect.case import Case
from epbuild.commands.bisect.compiling import explain_failure
from epbuild.commands.bisect.numbers import compare_outputs
from epbuild.commands.bisect.values import Bisection, BisectRequest
from epbuild.core.errors import BuildError, Problem, StepId, VerifyError
from epbuild.onnxfile.edit.excerpts import ModelGraph


class FakeProber:
    """Prober of an EP that computes Neg instead of Tanh for the node `planted`."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.compiles, self.folders = folder, 1, 0
        self.step, self.title, self.lines = StepId("compile:g/npu/m"), "npu", print
        self.member = SimpleNamespace(name="m", model=SimpleNamespace(name="m", dimensions={}, prepare=()))
        target = SimpleNamespace(name="npu", eps=[SimpleNamespace(entry=entry("QNNExecutionProvider"))])
        self.group = SimpleNamespace(target=target)

    def make_folder(self) -> Path:
        self.folders += 1
        folder = self.folder / str(self.folders)
        folder.mkdir()
        return folder

    def compile(self, path: Path, what: str) -> onnx.ModelProto:
        self.compiles += 1
        model = onnx.load(path)
        for node in model.graph.node:
            node.op_type = "Neg" if node.name == "planted" else node.op_type
        return model

    def run_compiled(self, model: onnx.ModelProto, samples: Any) -> list[dict[str, Any]]:
        names = [value.name for value in model.graph.output]
        return [dict(zip(names, ReferenceEvaluator(model).run(names, inputs), strict=True)) for inputs in samples]

    def run_source(self, path: Path, samples: Any) -> list[dict[str, Any]]:
        return self.run_compiled(onnx.load(path), samples)


def make_case(folder: Path, count: int, planted: int, **request: Any) -> Case:
    """Return a case of a chain of nodes, of which one computes other values on the EP."""
    nodes = [
        helper.make_node("Tanh", [f"v{n}"], [f"v{n + 1}"], name="planted" if n == planted else f"node{n}") for n in range(count)
    ]
    ends = [[helper.make_tensor_value_info(name, TensorProto.FLOAT, [8])] for name in ("v0", f"v{count}")]
    model = helper.make_model(helper.make_graph(nodes, "g", *ends), opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    onnx.save(model, folder / "model.onnx")
    prober: Any = FakeProber(folder)
    asked = BisectRequest(folder / "epbuild.yaml", prober.step, **request)
    return Case(asked, prober, None, folder / "found", folder / "model.onnx", ModelGraph(folder / "model.onnx", {}))


def search_numbers(folder: Path, count: int, planted: int, limit: int | None) -> Bisection:
    case = make_case(folder, count, planted, max_compiles=limit)
    prober: Any = case.prober
    whole: Any = prober.compile(case.model, "the whole model")
    prober.compiles = 1
    return compare_outputs(case, whole)


@pytest.mark.parametrize(
    ("limit", "complete", "message"),
    [
        (None, True, "1 of 200 nodes computes other values on npu than on the CPU EP"),
        (1, False, "smallest part after 1 compile: in the whole model, 200 of 200 nodes together compute other values on npu"),
        (2, False, "smallest part after 2 compiles: in the whole model, 121 of 200 nodes together compute other values on npu"),
    ],
)
def test_wrong_values_are_searched_within_the_limit(limit: int | None, complete: bool, message: str, tmp_path: Path) -> None:
    found = search_numbers(tmp_path, 200, 120, limit)
    assert found.message.startswith(message)
    assert found.complete == complete
    assert found.compiles <= (limit or 12)


def test_the_first_node_is_found_completely_only_if_compiled_alone(tmp_path: Path) -> None:
    for limit, complete in ((2, False), (3, True)):
        (tmp_path / str(limit)).mkdir()
        found = search_numbers(tmp_path / str(limit), 3, 0, limit)
        assert ([node.node for node in found.part], found.complete, found.compiles) == (["planted"], complete, limit)
        assert ("in the whole model" in found.message) != complete


def test_invalid_inputs_are_reported_when_sizes_need_a_run(tmp_path: Path) -> None:
    case = make_case(tmp_path, 2, 0, inputs=tmp_path / "missing.npz")
    model = onnx.load(case.model)
    model.graph.node[0].domain = "not.imported"
    onnx.save(model, case.model)
    case = Case(case.request, case.prober, None, case.folder, case.model, ModelGraph(case.model, {}))
    with pytest.raises(VerifyError, match="the inputs of the model 'm' are invalid"):
        explain_failure(case, BuildError(Problem("EPB301", "it fails", case.prober.step)))
