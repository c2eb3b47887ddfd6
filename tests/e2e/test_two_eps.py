"""One model that two real EPs compile: QNN takes what it supports, and OpenVINO the rest."""

from __future__ import annotations

import sys

import numpy
import pytest
from onnx.helper import make_node

from epbuild.onnxfile.read.headers import read_header
from tests.e2e.fallback_models import save, write_models
from tests.e2e.machine_needs import need_device
from tests.support.projects import Project

pytestmark = [
    pytest.mark.gate,
    pytest.mark.skipif(sys.platform != "linux", reason="the HTP emulator that runs compiled contexts comes in the Linux wheel"),
]

QNN, OPENVINO = "QNNExecutionProvider", "OpenVINOExecutionProvider"
PACKAGES = ("onnxruntime==1.31.1", "onnxruntime-qnn==2.7.0", "onnxruntime-ep-openvino==1.8.1")
RECIPE = f"""\
epbuild: 1
name: two
toolchains:
  both: {{packages: [{", ".join(PACKAGES)}]}}
models: {{mixed: mixed.onnx}}
targets:
  npu:
    toolchain: both
    eps:
      - {{ep: {QNN}, provider_options: {{backend_type: htp, soc_model: SM8750}}}}
      - {{ep: {OPENVINO}, device: {{type: cpu}}}}
groups:
  all: {{models: [mixed], targets: [npu], expect: {{fallback_nodes: 0}}}}
outputs:
  - {{layout: directory, path: dist}}
"""


def test_each_ep_compiles_its_part_of_the_model(project: Project) -> None:
    need_device("CPU", ep=OPENVINO, module="onnxruntime_ep_openvino", packages=PACKAGES)
    write_models(project.folder)
    project.recipe.write_text(RECIPE, encoding="utf-8")
    project.build()
    nodes = read_header(project.folder / "dist/mixed_ctx.onnx").ep_context_nodes
    assert [(node.source, node.reference) for node in nodes] == [
        (QNN, "mixed_qnn.bin"),
        (OPENVINO, "mixed_openvino.bin"),
        (QNN, None),
    ]
    check_load(project)


@pytest.mark.exhaustive
def test_a_second_ep_compiles_the_rest_of_a_compiled_model(project: Project) -> None:
    need_device("CPU", ep=OPENVINO, module="onnxruntime_ep_openvino", packages=PACKAGES)
    # OpenVINO refuses models in which several nodes of QNN share a context.
    multiply, remainder = make_node("MatMul", ["x", "w"], ["p"], "multiply"), make_node("Mod", ["p", "p"], ["y"], "mod", fmod=1)
    save(project.folder / "mixed.onnx", [multiply, remainder], w=numpy.eye(8, dtype=numpy.float32))
    second = f"      - {{ep: {OPENVINO}, device: {{type: cpu}}}}\n"
    project.recipe.write_text(RECIPE.replace(second, "").replace("fallback_nodes: 0", "fallback_nodes: any"), encoding="utf-8")
    project.build()
    (project.folder / "dist").rename(project.folder / "first")
    project.edit("mixed.onnx", "first/mixed_ctx.onnx")
    assert "To compile its other nodes with a second EP" in project.epbuild("validate").stderr
    project.recipe.write_text(RECIPE.replace("mixed.onnx", "first/mixed_ctx.onnx"), encoding="utf-8")
    project.build()
    nodes = read_header(project.folder / "dist/mixed_ctx.onnx").ep_context_nodes
    assert [node.source for node in nodes] == [QNN, OPENVINO]
    assert project.files()["mixed_qnn.bin"] == project.files("first")["mixed_qnn.bin"]
    check_load(project)


def check_load(project: Project) -> None:
    done = project.epbuild("verify", "dist", "--load")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "load           1 passed" in done.stdout
