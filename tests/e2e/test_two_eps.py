"""One model that two real EPs compile: QNN takes what it supports, and OpenVINO the rest."""

from __future__ import annotations

import sys

import pytest

from epbuild.onnxfile.read.headers import read_header
from tests.e2e.fallback_models import write_models
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
    done = project.epbuild("verify", "dist", "--load")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "load           1 passed" in done.stdout
