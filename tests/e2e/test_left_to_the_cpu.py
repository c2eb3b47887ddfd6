"""CPU fallback of the real QNN EP: every build reports it, with the EP's reason for each node."""

from __future__ import annotations

import json

from tests.e2e.fallback_models import write_models
from tests.support.projects import Project

RECIPE = """\
epbuild: 1
name: left
toolchains:
  qnn: {packages: [onnxruntime==1.31.1, onnxruntime-qnn==2.7.0]}
models: {quantized: quantized.onnx, mixed: mixed.onnx, whole: whole.onnx}
targets:
  npu: {toolchain: qnn, ep: QNNExecutionProvider, provider_options: {backend_type: htp, soc_model: SM8750}}
groups:
  all: {models: [quantized, mixed, whole], targets: [npu]}
outputs:
  - {layout: directory, path: dist}
"""
UNSUPPORTED = "QNN Mod Op only support fmod == 0 for now"


def test_fallback_nodes_fail_with_the_eps_reasons_after_one_compile(project: Project) -> None:
    write_models(project.folder)
    project.recipe.write_text(RECIPE, encoding="utf-8")

    done = project.epbuild("run", "--keep-going")
    assert done.returncode == 1
    said = " ".join(done.stdout.split())
    assert (
        f"QNNExecutionProvider did not compile 1 node of the model 'mixed': 1 Mod. The EP logged: {UNSUPPORTED} (1 node)" in said
    )
    assert (
        "QNNExecutionProvider did not compile 2 nodes of the model 'quantized': 1 DequantizeLinear and 1 QuantizeLinear" in said
    )
    assert "Set the provider option offload_graph_io_quantization to 0" in said
    log = project.epbuild("log", "compile:all/npu/mixed").stdout
    assert UNSUPPORTED in log
    assert "Qnn_OpConfig" not in log, "what the EP says of every tensor is in nobody's way"

    table = json.loads(project.epbuild("coverage", "--json").stdout)
    assert {row["model"]: row["outcome"] for row in table["rows"]} == {
        "quantized": "partial",
        "mixed": "partial",
        "whole": "whole",
    }
    [mixed] = [row for row in table["rows"] if row["model"] == "mixed"]
    assert mixed["left"] == [{"operator": "Mod", "count": 1, "reason": UNSUPPORTED, "nodes": ["remainder"]}]

    project.edit("targets: [npu]}", "targets: [npu], expect: {fallback_nodes: any}}")
    events = project.build()
    assert {event["outcome"] for event in events if event["event"] == "step_finished"} == {"restored", "current", "emitted"}
    manifest = json.loads(project.files()["manifest.json"])
    assert {model["name"]: model["fallback_nodes"] for model in manifest["models"]} == {"quantized": 2, "mixed": 1, "whole": 0}
    [inspected] = json.loads(project.epbuild("inspect", "dist/mixed_ctx.onnx", "--json").stdout)["left"]
    assert inspected == {"node": "remainder", "operator": "Mod", "reason": UNSUPPORTED}

    project.edit("soc_model: SM8750", "soc_model: SM8750, offload_graph_io_quantization: 0")
    project.edit("fallback_nodes: any", "fallback_nodes: 1")
    project.build()
    manifest = json.loads(project.files()["manifest.json"])
    assert {model["name"]: model["fallback_nodes"] for model in manifest["models"]} == {"quantized": 0, "mixed": 1, "whole": 0}
