"""Models that share one weights file: same numbers in ONNX Runtime, same results of the real QNN EP."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import numpy
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from epbuild.core.defaults import MANIFEST
from epbuild.onnxfile.edit.initializers import share_initializers
from epbuild.onnxfile.read.headers import read_header
from tests.support.projects import Project, compiled, toolchain_python

pytestmark = pytest.mark.gate

DECODER = "emit:decoder/snapdragon-SM8750/*"
SHARE_BOTH = "share:both/npu"
SHARE = "share:decoder/snapdragon-SM8750"
FOLDER = "dist/quickstart/decoder/snapdragon-SM8750"
WEIGHTS = "decoder.weights.bin"
PARTS = """\
epbuild: 1
name: parts
toolchains:
  qnn: {packages: [onnxruntime==1.31.1, onnxruntime-qnn==2.7.0]}
models: {first: first.onnx, second: second.onnx}
targets:
  npu: {toolchain: qnn, ep: QNNExecutionProvider, provider_options: {backend_type: htp, soc_model: SC8380XP}}
groups:
  both:
    models: [first, second]
    targets: [npu]
    share_weights: true
    share_initializers: true
    compile: {initializers: {store: source}}
    expect: {fallback_nodes: any}
outputs:
  - {layout: directory, path: dist}
"""
_RUN = """
import sys
import numpy
import onnxruntime

model, answer = sys.argv[1:]
session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
random = numpy.random.default_rng(3)
kinds = {"tensor(float)": "float32", "tensor(float16)": "float16", "tensor(int64)": "int64", "tensor(int32)": "int32"}
feeds = {}
for value in session.get_inputs():
    shape = [size if isinstance(size, int) else 1 for size in value.shape]
    feeds[value.name] = random.integers(0, 2, shape).astype(kinds[value.type])
names = [value.name for value in session.get_outputs()]
numpy.savez(answer, **dict(zip(names, session.run(names, feeds))))
"""


def outputs(folder: Path, model: Path) -> dict[str, bytes]:
    """Return the CPU EP's outputs for inputs of a fixed seed, run in a provisioned toolchain."""
    script, answer = folder / "run.py", folder / "answer.npz"
    script.write_text(_RUN, encoding="utf-8")
    answer.unlink(missing_ok=True)
    command = [str(toolchain_python("onnxruntime-qnn==2.7.0")), "-I", str(script), str(model), str(answer)]
    done = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    with numpy.load(answer) as arrays:
        return {name: array.tobytes() for name, array in arrays.items()}


def test_models_with_one_weights_file_compute_identical_numbers(quickstart: Project, tmp_path: Path) -> None:
    quickstart.build("epbuild.yaml", DECODER)  # which provisions the toolchain
    sources = {name: quickstart.folder / f"models/tiny-llm/{name}.onnx" for name in ("prefill", "decode")}
    for threshold in (1024, 128):
        made = tmp_path / str(threshold)
        # Each in a folder of its own, as they are staged: the file is a hard link in one of them.
        copies = {made / name / source.name: source for name, source in sources.items()}
        found = share_initializers(copies, WEIGHTS, threshold)
        assert found.stored_bytes < 0.6 * found.total_bytes
        for copy, source in copies.items():
            assert any(weight.external for weight in read_header(copy).initializers)
            assert outputs(tmp_path, copy) == outputs(tmp_path, source)


@pytest.fixture
def folders(project: Project) -> Project:
    """Create the folders of the example in ONNX Runtime's design, with the data still beside the models."""
    graphs = project.folder / "model_folder"
    graphs.mkdir()
    weights = numpy.random.default_rng(0).standard_normal((64, 64)).astype(numpy.float32)
    value = helper.make_tensor_value_info
    for name, rows in (("first", 1), ("second", 4)):
        graph = helper.make_graph(
            [helper.make_node("MatMul", ["x", "w"], ["y"], name="mm")],
            name,
            [value("x", TensorProto.FLOAT, [rows, 64])],
            [value("y", TensorProto.FLOAT, [rows, 64])],
            [numpy_helper.from_array(weights, "w")],
        )
        made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        onnx.save(made, graphs / f"{name}.onnx", save_as_external_data=True, location="weights.bin", size_threshold=0)
    text = PARTS.replace("first.onnx", "{path: model_folder/first.onnx}").replace(
        "second.onnx", "{path: model_folder/second.onnx}"
    )
    project.recipe.write_text(text, encoding="utf-8")
    return project


def move_data(project: Project) -> None:
    (project.folder / "external_data_folder").mkdir()
    (project.folder / "model_folder/weights.bin").rename(project.folder / "external_data_folder/weights.bin")


def name_folder(project: Project) -> None:
    project.edit(".onnx}", ".onnx, external_data: external_data_folder}")


def test_external_data_in_another_folder_builds_identical_outputs(folders: Project) -> None:
    folders.edit("    share_weights: true\n    share_initializers: true\n", "")
    folders.edit("path: dist", 'path: dist, include_source: "base/${model}.onnx", sbom: true')
    folders.build()
    before = folders.files()
    move_data(folders)
    done = folders.epbuild("validate")
    assert done.returncode == 2
    assert "EPB203" in done.stderr
    name_folder(folders)
    assert compiled(folders.build()) == set()  # file locations are not part of the key
    here = folders.files()
    assert [name for name in before if here[name] != before[name]] == ["bom.cdx.json", MANIFEST]
    assert b"external_data_folder/weights.bin" in here["bom.cdx.json"]
    # Nothing of that came from the first build.
    folders.cache = folders.cache.with_name("other-cache")
    (folders.folder / "dist").rename(folders.folder / "old")
    assert compiled(folders.build()) == {"compile:both/npu/first", "compile:both/npu/second"}
    assert folders.files() == here
    done = folders.epbuild("verify", "dist", "--numbers", "--recipe", "epbuild.yaml")
    assert done.returncode == 0, done.stdout + done.stderr


def test_external_data_in_another_folder_is_merged_into_the_weights_file(folders: Project) -> None:
    folders.edit("    compile: {initializers: {store: source}}\n", "")
    folders.build()
    before = folders.files()
    move_data(folders)
    name_folder(folders)
    folders.cache = folders.cache.with_name("other-cache")
    (folders.folder / "dist").rename(folders.folder / "old")
    assert SHARE_BOTH in compiled(folders.build())
    assert folders.files() == before
    folders.edit("    share_initializers: true\n", "")
    folders.edit("external_data:", "load_from: memory, external_data:")
    assert SHARE_BOTH in compiled(folders.build())


def test_a_threshold_that_removes_shapes_is_refused_by_onnx_runtime_and_reported(quickstart: Project) -> None:
    quickstart.edit("share_weights: true", "share_weights: true\n    share_initializers: {threshold: 1}")
    done = quickstart.epbuild("run", "epbuild.yaml", DECODER)
    assert done.returncode == 1
    assert "Cannot parse data from external tensors" in done.stdout + done.stderr


def test_qnn_compiles_one_weights_file_to_identical_bytes(quickstart: Project) -> None:
    quickstart.build("epbuild.yaml", DECODER)
    before = quickstart.files(FOLDER)
    quickstart.edit("share_weights: true", "share_weights: true\n    share_initializers: true")
    events = quickstart.build("epbuild.yaml", DECODER)
    assert SHARE in compiled(events)
    [note] = [event["note"] for event in events if event["event"] == "step_finished" and event["step"] == SHARE]
    assert "weights shared in ONNX: " in note
    after = quickstart.files(FOLDER)
    assert after.keys() == before.keys()
    assert [name for name in before if after[name] != before[name]] == [MANIFEST]
    assert quickstart.epbuild("verify", FOLDER).returncode == 0
    manifest = json.loads(after[MANIFEST])
    assert {model["source"]["weights_file"] for model in manifest["models"]} == {WEIGHTS}


def test_cpu_nodes_read_the_one_file_if_initializers_stay_in_the_source(project: Project) -> None:
    width = 64
    middle = numpy.random.default_rng(2).random((width, width), numpy.float32)
    for seed, name in enumerate(("first", "second")):
        values = {value: helper.make_tensor_value_info(value, TensorProto.FLOAT, [width, width]) for value in "xyhd"}
        nodes = [
            helper.make_node("MatMul", ["x", "w"], ["h"], name="before"),
            # QNN has no kernel for it: it falls back to the CPU.
            helper.make_node("CDist", ["h", "k"], ["d"], name="outside", domain="com.microsoft", metric="euclidean"),
            helper.make_node("MatMul", ["d", "w"], ["y"], name="after"),
        ]
        own = numpy.random.default_rng(10 + seed).random((width, width), numpy.float32)
        weights = [numpy_helper.from_array(middle, "k"), numpy_helper.from_array(own, "w")]
        inner = [values["h"], values["d"]]
        graph = helper.make_graph(nodes, name, [values["x"]], [values["y"]], weights, value_info=inner)
        opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
        onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), project.folder / f"{name}.onnx")
    project.recipe.write_text(PARTS, encoding="utf-8")
    project.build()
    dist = project.folder / "dist"
    data = (dist / "both.weights.bin").read_bytes()
    assert len(data) == 3 * middle.nbytes
    for name in ("first", "second"):
        [found] = read_header(dist / f"{name}_ctx.onnx").initializers
        assert found.external is not None
        assert data[found.external.offset :][: found.external.length] == middle.tobytes()
    assert project.epbuild("verify", "dist").returncode == 0
