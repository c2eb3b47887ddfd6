"""Reports of a real build with failed models, written by another process too, with changes since the last."""

from __future__ import annotations

import json
import re
import sys
from typing import Any

import jsonschema
import pytest

from epbuild.core.canonical import read_schema
from tests.e2e.fallback_models import write_models, write_refused
from tests.support.projects import Project

RECIPE = """\
epbuild: 1
name: zoo
toolchains:
  qnn: {packages: [onnxruntime==1.31.1, onnxruntime-qnn==2.7.0]}
models: {quantized: quantized.onnx, mixed: mixed.onnx, whole: whole.onnx, refused: refused.onnx}
targets:
  npu: {toolchain: qnn, ep: QNNExecutionProvider, provider_options: {backend_type: htp, soc_model: SM8750}}
groups:
  whole: {models: [whole], targets: [npu]VERIFY}
  quantized: {models: [quantized], targets: [npu], expect: {fallback_nodes: any}}
  mixed: {models: [mixed], targets: [npu]}
  refused: {models: [refused], targets: [npu], expect: {fallback_nodes: any}}
outputs:
  - {layout: directory, path: "dist/${group}"}
""".replace(
    "VERIFY", ", verify: true" if sys.platform == "linux" else ""
)  # the emulator that runs contexts is in the Linux wheel


@pytest.mark.gate
def test_a_report_of_a_real_build_matches_its_events_and_shows_changes(project: Project) -> None:
    write_models(project.folder)
    write_refused(project.folder / "refused.onnx")
    project.recipe.write_text(RECIPE, encoding="utf-8")

    done = project.epbuild("run", "--keep-going", "--report", "build.json", "--trace", "trace.json", "--json")
    assert done.returncode == 1
    events = [json.loads(line) for line in done.stdout.splitlines()]
    report = read(project, "build.json")
    covered = {row["model"]: row for row in report["coverage"]}
    assert {name: row["outcome"] for name, row in covered.items()} == {
        "whole": "whole",
        "quantized": "partial",
        "mixed": "partial",
        "refused": "failed",
    }
    for event in (event for event in events if event["event"] == "model_covered"):
        for name in ("outcome", "ep_context_nodes", "reason", "size", "accuracy"):
            assert covered[event["model"]][name] == event[name]
    for name in ("whole", "quantized", "mixed"):
        [context] = covered[name]["contexts"]
        parts = [(part["kind"], part["name"].partition(",")[0]) for part in context["parts"]]
        assert parts == [("graph", name)] * covered[name]["ep_context_nodes"]
        assert 0 < sum(part["size"] for part in context["parts"]) < context["size"] < covered[name]["size"]
    assert covered["refused"]["contexts"] == []
    assert {row["operator"] for row in covered["quantized"]["outside"]} == {"QuantizeLinear", "DequantizeLinear"}
    assert "offload_graph_io_quantization" in covered["quantized"]["outside"][0]["advice"][0]
    steps = {step["id"]: step for step in report["steps"]}
    finished = {event["step"]: event for event in events if event["event"] == "step_finished"}
    for ident, event in finished.items():
        if event["outcome"] != "skipped":
            assert (steps[ident]["size"], steps[ident]["took"]) == (event["size"], event["seconds"])
    failed = {ident: [error["code"] for error in step["errors"]] for ident, step in steps.items() if step["errors"]}
    assert failed == {"compile:mixed/npu/mixed": ["EPB655"], "compile:refused/npu/refused": ["EPB401"]}
    assert "QNN Mod Op only support fmod == 0" in steps["compile:refused/npu/refused"]["log"]
    assert {ident for ident, step in steps.items() if step["log"]} == failed.keys()
    assert "other sizes do not help" in steps["compile:refused/npu/refused"]["errors"][0]["hint"]
    assert steps["compile:whole/npu/whole"]["memory"] > 1_000_000
    assert {output["path"]: bool(output["files"]) for output in report["outputs"]} == {
        "dist/whole": True,
        "dist/quantized": True,
        "dist/mixed": False,
        "dist/refused": False,
    }
    [target] = report["targets"]
    assert (target["soc"], target["eps"][0]["version"]) == ("SM8750", "2.7.0")
    [ended] = [event for event in events if event["event"] == "run_finished"]
    assert (report["build"]["seconds"], report["build"]["exit_code"]) == (ended["seconds"], 1)
    trace = json.loads((project.folder / "trace.json").read_text(encoding="utf-8"))
    assert steps.keys() >= {event["name"] for event in trace["traceEvents"] if event.get("cat") in ("compile", "emit")}

    if sys.platform == "linux":
        [accuracy] = report["accuracy"]
        assert (accuracy["member"], accuracy["output"], accuracy["outcome"]) == ("whole", "y", "passed")
        assert accuracy["figures"]["cosine"] == covered["whole"]["accuracy"]["cosine"]
        assert accuracy["limits"].keys() <= accuracy["figures"].keys()

    later = json.loads(project.epbuild("report", "--json").stdout)
    assert {**later, "made_at": ""} == {**report, "made_at": ""}
    text = project.epbuild("report").stdout
    assert "Coverage: 4 models for 1 target: 1 whole, 2 partial, 1 failed" in text
    assert "Failed: 2 steps, for 2 reasons" in text

    project.edit("models: [mixed], targets: [npu]", "models: [mixed], targets: [npu], expect: {fallback_nodes: any}")
    project.edit("soc_model: SM8750", "soc_model: SM8750, offload_graph_io_quantization: 0")
    assert project.epbuild("run", "--keep-going", "--report", "build.json").returncode == 1
    against = read(project, "build.json")["against"]
    assert (against["kind"], against["path"], against["made_at"]) == ("report", "build.json", report["made_at"])
    changes = {change["member"]: change for change in against["models"]}
    sides = [
        (changes["quantized"][side]["outcome"], changes["quantized"][side]["fallback_nodes"]) for side in ("before", "after")
    ]
    assert sides == [("partial", 2), ("whole", 0)]
    [mixed] = [change for change in against["outputs"] if change["path"] == "dist/mixed"]
    assert mixed["before"] is None
    assert mixed["after"] > 0
    assert project.epbuild("report", "-o", "page.html").returncode == 0
    page = (project.folder / "page.html").read_text(encoding="utf-8")
    [data] = re.findall(r'<script type="application/json" id="report">(.*?)</script>', page, re.DOTALL)
    assert json.loads(data)["coverage"] == read(project, "build.json")["coverage"]
    same = project.epbuild("report", "--against", "page.html").stdout
    assert same.endswith("nothing has changed\n")

    if sys.platform == "linux":  # the recipe's limits are checked against measured numbers
        project.edit("verify: true", "verify: {metrics: {snr_db: 200}}")
        strict = json.loads(project.epbuild("report", "--json").stdout)
        assert [(row["outcome"], row["limits"]) for row in strict["accuracy"]] == [("failed", {"snr_db": 200})]
        assert {step["id"] for step in strict["steps"] if "EPB646" in {error["code"] for error in step["errors"]}} == {
            "verify:whole/npu"
        }


def read(project: Project, name: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((project.folder / name).read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator(read_schema("report")).validate(document)
    return document
