"""Features of the recipe language with the real EP: settings reach it, and its files are emitted."""

from __future__ import annotations

import json
from pathlib import Path

import numpy
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from epbuild.onnxfile.read.headers import read_header
from epbuild.onnxfile.read.model_header import ModelHeader
from tests.support.projects import Project, compiled, toolchain_python

pytestmark = pytest.mark.gate

RECIPE = """
epbuild: 1
name: language
toolchains:
  qnn: {packages: [onnxruntime==1.31.1, onnxruntime-qnn==2.7.0]}
models:
  model:
    path: model.onnx
    dimensions: {seq: 16}
targets:
  npu:
    toolchain: qnn
    ep: QNNExecutionProvider
    provider_options: {backend_type: htp, soc_model: SM8750}
groups:
  group:
    models: [model]
    targets: [npu]
    expect: {fallback_nodes: any}
outputs:
  - {layout: directory, path: dist}
"""


def _model(path: Path) -> None:
    """Write a matrix product for the NPU and two distances for the CPU, with a symbolic dimension and external weights."""
    random = numpy.random.default_rng(0)
    weights = [
        numpy_helper.from_array(random.standard_normal(shape).astype(numpy.float32), name)
        for name, shape in (("weights", (64, 64)), ("centers", (512, 64)), ("far", (8, 512)))
    ]
    nodes = [
        helper.make_node("MatMul", ["x", "weights"], ["product"], name="product"),
        helper.make_node("CDist", ["product", "centers"], ["near"], name="near", domain="com.microsoft", metric="euclidean"),
        helper.make_node("CDist", ["near", "far"], ["y"], name="far", domain="com.microsoft", metric="euclidean"),
    ]
    value = helper.make_tensor_value_info
    ends = [value("x", TensorProto.FLOAT, ["seq", 64])], [value("y", TensorProto.FLOAT, ["seq", 8])]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(helper.make_graph(nodes, "g", *ends, weights), opset_imports=opsets, ir_version=8)
    onnx.save(model, path, save_as_external_data=True, location="weights.bin", size_threshold=0)


@pytest.fixture
def language(project: Project) -> Project:
    _model(project.folder / "model.onnx")
    project.recipe.write_text(RECIPE, encoding="utf-8")
    return project


def _header(project: Project) -> ModelHeader:
    return read_header(project.folder / "dist/model_ctx.onnx")


def test_a_symbolic_dimension_gets_its_size(language: Project) -> None:
    language.build()
    assert [value.shape for value in _header(language).inputs] == [(16, 64)]


def test_remaining_initializers_are_inline_by_default(language: Project) -> None:
    language.build()
    assert set(language.files()) == {"model_ctx.onnx", "model_qnn.bin", "manifest.json"}
    assert _header(language).external_locations == ()


def test_remaining_initializers_can_be_stored_in_an_external_file(language: Project) -> None:
    language.edit(
        "    targets: [npu]\n",
        "    targets: [npu]\n    compile: {initializers: {store: external, file: '${model}.init', threshold: 1}}\n",
    )
    language.build()
    assert set(language.files()) == {"model_ctx.onnx", "model_qnn.bin", "model.init", "manifest.json"}
    assert _header(language).external_locations == ("model.init",)


def test_only_named_initializers_are_stored_in_the_external_file(language: Project) -> None:
    language.edit(
        "    targets: [npu]\n",
        "    targets: [npu]\n    compile: {initializers: {store: external, file: far.init, threshold: 0, names: ['f*', typo]}}\n",
    )
    assert "'typo' matches no initializer of the model 'model'" in language.epbuild("validate").stderr
    language.build()
    model = onnx.load(language.folder / "dist/model_ctx.onnx")  # reads the external file
    source = {weight.name: weight for weight in onnx.load(language.folder / "model.onnx").graph.initializer}
    assert {item.name: item.external is not None for item in _header(language).initializers} == {"far": True, "centers": False}
    for weight in model.graph.initializer:
        numpy.testing.assert_array_equal(numpy_helper.to_array(weight), numpy_helper.to_array(source[weight.name]))


def test_remaining_initializers_can_stay_in_the_emitted_source_data(language: Project) -> None:
    language.edit("    targets: [npu]\n", "    targets: [npu]\n    compile: {initializers: {store: source}}\n")
    language.build()
    assert set(language.files()) == {"model_ctx.onnx", "model_qnn.bin", "weights.bin", "manifest.json"}
    assert language.files()["weights.bin"] == (language.folder / "weights.bin").read_bytes()


def test_a_model_can_be_read_from_bytes_with_its_external_data(language: Project) -> None:
    language.build()
    from_file = language.files()
    language.edit("    path: model.onnx\n", "    path: model.onnx\n    load_from: memory\n")
    assert compiled(language.build()) == {"compile:group/npu/model"}
    assert language.files()["model_ctx.onnx"] != from_file["model_ctx.onnx"], "QNN names a part after the way it got the model"


def test_a_users_plugin_library_can_be_named(language: Project) -> None:
    language.build()
    package = toolchain_python("onnxruntime-qnn").parents[1].rglob("onnxruntime_qnn")
    library = next(path for folder in package for path in folder.iterdir() if "providers_qnn" in path.name)
    before = language.files()
    language.edit("    ep: QNNExecutionProvider\n", f"    ep: QNNExecutionProvider\n    library: '{library}'\n")
    assert compiled(language.build()) == {"compile:group/npu/model"}
    after = language.files()
    assert {name for name in before if before[name] != after[name]} == {"manifest.json"}


def test_an_environment_variable_of_the_worker_is_part_of_the_key(language: Project) -> None:
    language.build()
    language.edit("    ep: QNNExecutionProvider\n", "    ep: QNNExecutionProvider\n    environment: {MY_SETTING: 1}\n")
    plan = json.loads(language.epbuild("plan", "--json").stdout)
    assert "environment variable MY_SETTING added: 1" in plan["steps"][0]["reasons"]


def test_a_member_can_have_its_own_compile_settings(language: Project) -> None:
    _model(language.folder / "other.onnx")
    language.edit("targets:\n  npu", "  other: {path: other.onnx, dimensions: {seq: 8}}\ntargets:\n  npu")
    language.edit("models: [model]", "models: [model, {model: other, compile: {embed: true}}]")
    language.build()
    assert set(language.files()) == {"model_ctx.onnx", "model_qnn.bin", "other_ctx.onnx", "manifest.json"}


def test_a_variable_can_be_set_for_one_run(language: Project) -> None:
    language.edit("toolchains:\n", "vars: {soc: SM8750}\ntoolchains:\n")
    language.edit("soc_model: SM8750}", "soc_model: '${vars.soc}'}")
    language.build()
    assert compiled(language.build("--set", "vars.soc=SM8650")) == {"compile:group/npu/model"}
    assert b"soc_type=SM8650;" in language.files()["model_qnn.bin"]
    assert compiled(language.build()) == set(), "the first result is still in the store"


def test_unknown_options_pass_on_request_and_are_in_the_manifest(language: Project) -> None:
    language.edit("soc_model: SM8750}", "soc_model: SM8750, from_the_future: 1}")
    assert language.epbuild("run").returncode == 2
    language.edit("    ep: QNNExecutionProvider\n", "    ep: QNNExecutionProvider\n    allow_unknown_options: true\n")
    language.build()
    manifest = json.loads(language.files()["manifest.json"])
    assert manifest["target"]["unchecked_options"] == ["from_the_future"]


def test_several_eps_compile_in_their_order_of_preference(language: Project) -> None:
    language.build()
    alone = language.files()
    qnn = "{ep: QNNExecutionProvider, provider_options: {backend_type: htp, soc_model: SM8750}}"
    one = "    ep: QNNExecutionProvider\n    provider_options: {backend_type: htp, soc_model: SM8750}\n"
    language.edit(one, f"    eps:\n      - {qnn}\n      - {{ep: CPUExecutionProvider}}\n")
    assert compiled(language.build()) == {"compile:group/npu/model"}
    both = language.files()
    assert {name for name in alone if alone[name] != both[name]} == {"manifest.json"}
    language.edit(
        f"      - {qnn}\n      - {{ep: CPUExecutionProvider}}\n", f"      - {{ep: CPUExecutionProvider}}\n      - {qnn}\n"
    )
    done = language.epbuild("run")
    assert done.returncode == 2
    message = "takes every node and is listed before QNNExecutionProvider, for which no nodes are left."
    assert f"{message} List CPUExecutionProvider last. [EPB256]" in " ".join(done.stderr.split())
    assert language.files() == both


def test_a_recipe_can_extend_a_recipe_in_another_folder(language: Project) -> None:
    base = language.folder / "base"
    base.mkdir()
    for name in ("model.onnx", "weights.bin", "epbuild.yaml"):
        (language.folder / name).rename(base / name)
    language.recipe.write_text(
        "extends: base/epbuild.yaml\nname: phone\ntargets:\n  npu:\n    provider_options: {soc_model: SM8650}\n", encoding="utf-8"
    )
    language.build()
    assert b"soc_type=SM8650;" in language.files()["model_qnn.bin"]
    assert json.loads(language.files()["manifest.json"])["recipe"] == "phone"
    assert not (base / "dist").exists()
