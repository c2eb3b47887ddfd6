"""Weightless contexts of a plugin EP in the real ONNX Runtime: a build emits the weights beside the model."""

from __future__ import annotations

import re

import numpy
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from epbuild.onnxfile.read.headers import read_header
from tests.e2e.contoso_library import EP, build_library, needs_compiler
from tests.support.projects import Project

pytestmark = [pytest.mark.gate, needs_compiler]

SIZE = 4096
CATALOG = f"""\
ep = "{EP}"
short = "contoso"
kind = "plugin"
origin = "measured with contoso_ep.c"
module = "contoso_ep"
sources = ["{EP}"]
devices = ["cpu"]
weightless = {{ cpu = "external" }}
"""
RECIPE = f"""\
epbuild: 1
name: weightless
catalogs: [contoso.toml]
toolchains:
  onnxruntime: {{packages: [onnxruntime==1.31.1, onnxruntime-qnn==2.7.0]}}
models: {{add: add.onnx}}
targets:
  here:
    toolchain: onnxruntime
    ep: {EP}
    library: libcontoso_ep.so
    session_options: {{ep.enable_weightless: true}}
groups:
  all:
    models: [add]
    targets: [here]
    compile: {{embed: true, initializers: {{store: external, file: add.weights, threshold: 0}}}}
outputs:
  - {{layout: directory, path: dist}}
"""


def test_a_weightless_model_runs_with_the_weights_beside_it(project: Project) -> None:
    build_library(project.folder)
    (project.folder / "contoso.toml").write_text(CATALOG, encoding="utf-8")
    weights = numpy.random.default_rng(0).random(SIZE, numpy.float32)
    values = {name: [helper.make_tensor_value_info(name, TensorProto.FLOAT, [SIZE])] for name in "xy"}
    nodes, tensors = [helper.make_node("Add", ["x", "w"], ["y"], "add")], [numpy_helper.from_array(weights, "w")]
    graph = helper.make_graph(nodes, "add", values["x"], values["y"], tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(model, project.folder / "add.onnx", save_as_external_data=True, location="add.data", size_threshold=0)
    project.recipe.write_text(RECIPE, encoding="utf-8")
    project.build()
    files = project.files()
    assert sorted(files) == ["add.data", "add.weights", "add_ctx.onnx", "manifest.json"]
    assert len(files["add_ctx.onnx"]) < weights.nbytes
    assert read_header(project.folder / "dist/add_ctx.onnx").external_locations == ("add.weights",)
    done = project.epbuild("verify", "dist", "--numbers", "--recipe", "epbuild.yaml")
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search("^numbers +1 passed$", done.stdout, re.MULTILINE)
    project.edit(", initializers: {store: external, file: add.weights, threshold: 0}", "")
    assert "the models would contain the weights" in project.epbuild("validate").stderr
