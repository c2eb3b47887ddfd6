"""Preparations keep the files of external data whose weights they do not change."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from epbuild.worker.preparations import infer_shapes, opset, step

SIZE = 64
GAP = 4096


class Folder:
    """Staging directory with a model whose external data has gaps, which onnx would write without them."""

    def __init__(self, path: Path, data: str = "weights.bin") -> None:
        self.path = path
        self.data = data
        self.weights = {f"w{i}": np.random.default_rng(i).random((SIZE, SIZE), np.float32) for i in range(20)}
        self.request: dict[str, Any] = {"source": str(path / "in/m.onnx"), "output": str(path / "out/m.onnx"), "options": {}}
        (path / "in" / data).parent.mkdir(parents=True)
        (path / "out").mkdir()
        self._write()

    def _write(self) -> None:
        arrays: dict[str, np.ndarray[Any, Any]] = {**self.weights, "shape": np.array([1, SIZE], np.int64)}
        tensors = []
        with (self.path / "in" / self.data).open("wb") as file:
            for name, array in arrays.items():
                tensor = numpy_helper.from_array(array, name)
                onnx.external_data_helper.set_external_data(tensor, self.data, file.tell(), array.nbytes)
                tensor.ClearField("raw_data")
                file.write(array.tobytes() + bytes(GAP))
                tensors.append(tensor)
        names = ["x", *(f"y{i}" for i in range(len(self.weights)))]
        nodes = [helper.make_node("MatMul", [names[i], f"w{i}"], [names[i + 1]]) for i in range(len(self.weights))]
        nodes.append(helper.make_node("Reshape", [names[-1], "shape"], ["z"]))
        x, z = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, SIZE]) for name in "xz")
        graph = helper.make_graph(nodes, "g", [x], [z], tensors)
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), self.path / "in/m.onnx")
        shutil.copy(self.path / "in" / self.data, self.path / "original")

    def is_kept(self) -> bool:
        """Return whether the data was moved beside the output with its bytes."""
        kept = self.path / "out" / self.data
        return kept.exists() and kept.read_bytes() == (self.path / "original").read_bytes()

    def files(self) -> set[str]:
        return {path.relative_to(self.path / "out").as_posix() for path in (self.path / "out").rglob("*") if path.is_file()}

    def check(self, **changed: np.ndarray[Any, Any]) -> onnx.ModelProto:
        """Check that the output has the weights of the source, except for the `changed` ones. Return the output without its weights."""
        model = onnx.load(self.path / "out/m.onnx")
        found = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
        assert all((found[name] == changed.get(name, array)).all() for name, array in self.weights.items() if name in found)
        assert found.keys() >= changed.keys()
        return onnx.load(self.path / "out/m.onnx", load_external_data=False)


@pytest.mark.parametrize("data", ["weights.bin", "m.onnx.data", "parts/weights.bin"])
def test_shape_inference_keeps_the_file(tmp_path: Path, data: str) -> None:
    folder = Folder(tmp_path, data)
    infer_shapes.infer_shapes(folder.request)
    assert folder.is_kept()
    assert folder.files() == {"m.onnx", data}
    model = folder.check()
    assert len(model.graph.value_info) == 20
    assert [tensor.name for tensor in model.graph.initializer if not tensor.data_location] == ["shape"], "runtimes need it inline"


def test_a_conversion_that_loads_the_weights_keeps_the_file(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    opset.convert({**folder.request, "options": {"target_version": 21}})
    assert folder.is_kept()
    assert folder.check().opset_import[0].version == 21


@pytest.mark.parametrize("data", ["weights.bin", "m.onnx.data"])
def test_a_changed_weight_is_written_to_another_file(tmp_path: Path, data: str) -> None:
    folder = Folder(tmp_path, data)
    model = step.load_model(folder.request)
    model.graph.initializer[0].CopyFrom(numpy_helper.from_array(folder.weights["w0"] + 1, "w0"))
    step.save(model, folder.request)
    assert folder.is_kept()
    other = "m.onnx.data2" if data == "m.onnx.data" else "m.onnx.data"
    assert folder.files() == {"m.onnx", data, other}
    folder.check(w0=folder.weights["w0"] + 1)


@pytest.mark.parametrize("load", [step.load_model, step.load_header])
def test_a_part_of_a_model_does_not_keep_the_whole_file(tmp_path: Path, load: Any) -> None:
    folder = Folder(tmp_path)
    model = load(folder.request)
    del model.graph.node[10:], model.graph.initializer[10:]
    step.save(model, folder.request)
    assert folder.files() == {"m.onnx", "m.onnx.data"}
    folder.check()


def test_a_weight_in_a_branch_stays_in_its_file(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    model = step.load_header(folder.request)
    inner = helper.make_graph([], "inner", [], [helper.make_tensor_value_info("inside", TensorProto.FLOAT, [SIZE, SIZE])])
    inner.initializer.append(model.graph.initializer.pop(0))
    inner.initializer[0].name = "inside"
    model.graph.node.insert(0, helper.make_node("If", ["c"], ["w0"], then_branch=inner, else_branch=inner))
    onnx.save(model, folder.path / "in/m.onnx")
    infer_shapes.infer_shapes(folder.request)
    assert folder.is_kept()
    assert folder.files() == {"m.onnx", "weights.bin"}
