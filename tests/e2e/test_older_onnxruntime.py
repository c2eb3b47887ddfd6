"""ONNX Runtimes without ModelCompiler: same recipe, staging and checks, and the same kind of artifacts."""

from __future__ import annotations

import json

import numpy
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from epbuild.core.defaults import MANIFEST
from epbuild.onnxfile.read.headers import read_header
from tests.support.gate import mark_rest_exhaustive
from tests.support.projects import Project, compiled
from tests.support.quick_builds import write_model

RECIPE = """\
epbuild: 1
name: older
toolchains:
  openvino: {{packages: [onnxruntime-openvino=={version}]}}
models: {{plain: {{path: plain.onnx}}, partly: {{path: partly.onnx}}}}
targets:
  cpu: {{toolchain: openvino, ep: OpenVINOExecutionProvider, provider_options: {{device_type: CPU}}}}
groups:
  both:
    models: [plain, {{model: partly, compile: {{initializers: {{store: external, file: "${{model}}.bin", threshold: 0}}}}}}]
    targets: [cpu]
    # At another level the two first nodes would be one, and so few are left to others.
    compile: {{node_name_prefix: "${{model}}_", graph_optimization_level: disable_all}}
    expect: {{fallback_nodes: any}}
outputs:
  - {{layout: directory, path: dist}}
"""
VERSIONS = ("1.21.0", "1.22.0")


def write_partly_model(project: Project) -> None:
    """Write a model whose last node falls back to the CPU and has an initializer."""
    random = numpy.random.default_rng(0)
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [
            # The EP leaves fewer than three nodes to other EPs.
            helper.make_node("MatMul", ["x", "w"], ["m"], name="taken"),
            helper.make_node("Add", ["m", "b"], ["a"], name="too"),
            helper.make_node("Relu", ["a"], ["r"], name="as well"),
            helper.make_node("CDist", ["r", "c"], ["y"], name="left", domain="com.microsoft", metric="euclidean"),
        ],
        "partly",
        [value("x", TensorProto.FLOAT, [1, 64])],
        [value("y", TensorProto.FLOAT, [1, 8])],
        [
            numpy_helper.from_array(random.normal(size=(64, 64)).astype(numpy.float32), "w"),
            numpy_helper.from_array(random.normal(size=(64,)).astype(numpy.float32), "b"),
            numpy_helper.from_array(random.normal(size=(8, 64)).astype(numpy.float32), "c"),
        ],
        value_info=[value(name, TensorProto.FLOAT, [1, 64]) for name in "mar"],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), project.folder / "partly.onnx")


@pytest.fixture(params=mark_rest_exhaustive(VERSIONS, sample=VERSIONS[:1]))
def older(project: Project, request: pytest.FixtureRequest) -> Project:
    write_model(project.folder / "plain.onnx", 0)
    write_partly_model(project)
    project.recipe.write_text(RECIPE.format(version=request.param), encoding="utf-8")
    return project


def test_models_build_as_they_do_with_a_model_compiler(older: Project) -> None:
    assert compiled(older.build()) == {"compile:both/cpu/plain", "compile:both/cpu/partly"}
    files = older.files()
    assert set(files) == {
        "plain_ctx.onnx", "plain_openvino.bin", "partly_ctx.onnx", "partly_openvino.bin", "partly.bin", MANIFEST,
    }  # fmt: skip
    for name, left in (("plain", 0), ("partly", 1)):
        header = read_header(older.folder / "dist" / f"{name}_ctx.onnx")
        (node,) = header.ep_context_nodes
        assert node.name.startswith(f"{name}_OpenVINOExecutionProvider_")
        assert (node.source, node.reference) == ("OpenVINOExecutionProvider", f"{name}_openvino.bin")
        assert header.remaining_nodes == left
    assert len(files["partly.bin"]) == 8 * 64 * 4
    assert [model["fallback_nodes"] for model in json.loads(files[MANIFEST])["models"]] == [0, 1]
    assert older.epbuild("verify", "dist").returncode == 0
    # Compiled from bytes and embedded, the same model works.
    older.edit("{path: plain.onnx}", "{path: plain.onnx, load_from: memory}")
    older.edit("models: [plain, ", "models: [{model: plain, compile: {embed: true}}, ")
    assert compiled(older.build()) == {"compile:both/cpu/plain"}
    (node,) = read_header(older.folder / "dist/plain_ctx.onnx").ep_context_nodes
    assert node.payload is not None
    assert "plain_openvino.bin" not in older.files()


def test_a_model_without_nodes_for_the_ep_fails_as_with_a_model_compiler(older: Project) -> None:
    graph = onnx.load(older.folder / "partly.onnx")
    del graph.graph.node[:3]
    graph.graph.node[0].input[0] = "x"
    del graph.graph.initializer[:2]
    onnx.save(graph, older.folder / "partly.onnx")
    done = older.epbuild("run", "-k")
    assert done.returncode == 1
    assert "Unable to compile any nodes" in done.stdout + done.stderr or "[EPB603]" in done.stdout + done.stderr
    assert not (older.folder / "dist").exists()


def test_a_refused_option_fails_with_the_eps_message_and_no_fallback(older: Project) -> None:
    older.edit(
        "provider_options: {device_type: CPU}", "provider_options: {device_type: CPU, bogus: 1}, allow_unknown_options: true"
    )
    done = older.epbuild("run", "--json")
    assert done.returncode == 1
    assert "Invalid OpenVINO EP option: bogus" in done.stdout
