"""`wrap`: EPContext models around binaries of the real QNN EP compute the same numbers, bit for bit."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy
import onnx
import pytest
from onnx import numpy_helper

from tests.e2e.test_relink_merge import RECIPE, epbuild, outputs, same, write_sources
from tests.support.projects import Project, toolchain_python

pytestmark = [
    pytest.mark.gate,
    pytest.mark.skipif(sys.platform != "linux", reason="the HTP emulator that runs compiled contexts comes in the Linux wheel"),
]


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """Return a model of two partitions and a model with quantized inputs and outputs, both compiled."""
    folder = tmp_path_factory.mktemp("wrap")
    project = Project(folder / "project", folder / "cache")
    project.folder.mkdir()
    write_sources(project.folder)
    listed = "models: {first: first.onnx, second: second.onnx, split"
    recipe = RECIPE.replace(listed, "models: {split").replace("models: [first, second, split", "models: [split")
    project.recipe.write_text(recipe, encoding="utf-8")
    project.build()
    return project


def test_quantized_inputs_and_outputs_become_floats_of_equal_numbers(parts: Project, tmp_path: Path) -> None:
    built = parts.folder / "dist/quantized_ctx.onnx"
    epbuild(parts, "wrap", "dist/quantized_qnn.bin", "-o", str(tmp_path / "real/m.onnx"))
    before, wrapped = outputs(tmp_path, built, {"x": 7}), outputs(tmp_path, tmp_path / "real/m.onnx", {"x_dq": 7})
    assert same({"y": wrapped["y_dq"]}, before)
    constants = [numpy_helper.to_array(tensor) for tensor in onnx.load(tmp_path / "real/m.onnx").graph.initializer]
    assert constants == [numpy.float32(16 / 65535), numpy.uint16(32768)] * 2
    epbuild(parts, "wrap", "dist/quantized_qnn.bin", "-o", str(tmp_path / "whole"), "--quantized-io")
    [value] = onnx.load(tmp_path / "whole/quantized_qnn_ctx.onnx").graph.input
    assert (value.name, value.type.tensor_type.elem_type) == ("x", onnx.TensorProto.UINT16)


def test_each_graph_of_a_binary_becomes_a_model_beside_it(parts: Project, tmp_path: Path) -> None:
    binary = tmp_path / "from-qairt.bin"
    binary.write_bytes((parts.folder / "dist/split_qnn.bin").read_bytes())
    done = parts.epbuild("wrap", str(binary), "--json")
    assert done.returncode == 0, done.stderr
    graphs = json.loads(done.stdout)["graphs"]
    [node] = json.loads(parts.epbuild("inspect", "--json", graphs[0]["model"]).stdout)["ep_context_nodes"]
    sizes = {part["name"]: part["size"] for part in node["parts"]}
    # Each graph has its weights of 64 x 64 numbers in half precision, and the parts are nearly the whole file.
    assert sizes.keys() == {graph["name"] for graph in graphs}
    assert min(sizes.values()) > 64 * 64 * 2
    assert 0 < node["size"] - sum(sizes.values()) <= 16_384
    values = [[(value["name"], value["type"], value["shape"]) for value in graph["inputs"]] for graph in graphs]
    assert values == [[("x", "float32", [64, 64])], [("d", "float32", [64, 64])]]
    python = str(toolchain_python("onnxruntime-qnn==2.7.0"))
    epbuild(parts, "verify", str(tmp_path), "--load", "--interpreter", python, "--option", "backend_type=htp", "--strict")
    first, second = (Path(graph["model"]) for graph in graphs)
    feed = {"x": 7}
    whole = outputs(tmp_path, parts.folder / "dist/split_ctx.onnx", feed)
    source = outputs(tmp_path, first, feed)
    assert list(source) == ["h"]
    assert list(outputs(tmp_path, second, {"d": 7})) == list(whole) == ["y"]
    # The models are ordinary EPContext models for the other commands.
    epbuild(parts, "relink", str(tmp_path), "--binary", "npu/moved.bin", "--in-place")
    assert same(outputs(tmp_path, first, feed), source)


def test_a_file_that_is_no_context_binary_is_refused_with_one_sentence(parts: Project, tmp_path: Path) -> None:
    (tmp_path / "cut.bin").write_bytes((parts.folder / "dist/split_qnn.bin").read_bytes()[:50_000])
    for path, shown in ((tmp_path / "cut.bin", tmp_path / "cut.bin"), (parts.folder / "split.onnx", "split.onnx")):
        done = parts.epbuild("wrap", str(path), "-o", str(tmp_path / "out"))
        assert (done.returncode, done.stdout) == (2, "")
        assert f"onnxruntime-qnn 2.7.0 does not read {shown} as a context binary: " in done.stderr
        assert done.stderr.endswith("[EPB668]\n")
    assert not (tmp_path / "out").exists()
