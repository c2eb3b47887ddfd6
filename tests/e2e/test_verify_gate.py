"""`verify` in a recipe with the real QNN EP: numbers are checked before anything is emitted."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.support.projects import Project
from tests.support.quick_builds import RECIPE, write_project

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="the HTP emulator that runs compiled contexts comes in the Linux wheel"
)

LEFT = "  left: {models: [left], targets: [npu]}\n"
RIGHT = "  right: {models: [right], targets: [npu]}\n"
BOTH = "  left: {models: [left, right], targets: [npu], share_weights: true, verify: true}\n"


def events_of(project: Project, *arguments: str, status: int) -> list[dict[str, Any]]:
    done = project.epbuild("run", "--keep-going", *arguments, "--json")
    assert done.returncode == status, done.stdout + done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def models(project: Project, group: str) -> dict[str, Any]:
    manifest = json.loads((project.folder / "dist" / group / "manifest.json").read_text(encoding="utf-8"))
    return {model["name"]: model for model in manifest["models"]}


def test_only_passing_models_are_emitted_with_their_figures(project: Project) -> None:
    write_project(project)
    strict = RIGHT.replace("}", ", verify: {metrics: {snr_db: 200}}}")
    project.recipe.write_text(RECIPE.replace(LEFT, LEFT.replace("}", ", verify: true}")).replace(RIGHT, strict), encoding="utf-8")
    events = events_of(project, status=1)
    (figures,) = models(project, "left")["left"]["figures"]
    assert figures["cosine"] > 0.999
    assert (figures["evidence"], figures["reference"]) == ("made", "source")
    assert not (project.folder / "dist/right").exists()
    (failed,) = [event for event in events if event["event"] == "step_failed"]
    assert failed["step"] == "verify:right/npu"
    (problem,) = failed["problems"]
    assert problem["code"] == "EPB646"
    assert ", below the limit 200" in problem["message"]
    # Every report says that it was compiled and failed its check.
    outcomes = {event["model"]: (event["outcome"], event["verify"]) for event in events if event["event"] == "model_covered"}
    assert outcomes == {"left": ("whole", None), "right": ("failed verify", "verify:right/npu")}
    built = json.loads(project.epbuild("report", "--json").stdout)["build"]
    covered = json.loads(project.epbuild("coverage", "--json").stdout)["rows"]
    assert [(row["model"], row["outcome"]) for row in covered] == [("left", "whole"), ("right", "failed verify")]
    assert covered[1]["reason"] == problem["message"]
    report = json.loads(project.epbuild("report", "--json").stdout)
    assert [row["outcome"] for row in report["coverage"]] == ["whole", "failed verify"]
    assert report["build"] == built
    for command in (("report",), ("coverage",), ("coverage", "--markdown")):
        assert "2 models for 1 target: 1 whole, 1 failed verify" in project.epbuild(*command).stdout
    # Changed limits are checked against the measured numbers.
    project.recipe.write_text(RECIPE.replace(RIGHT, strict.replace("200", "20")), encoding="utf-8")
    again = events_of(project, status=0)
    assert {event["step"] for event in again if event["event"] == "step_finished" and event["outcome"] == "built"} == set()
    assert models(project, "right")["right"]["figures"]
    # `verify --numbers` uses the limits of the recipe too.
    project.edit("snr_db: 20", "snr_db: 200")
    done = project.epbuild("verify", "dist/right", "--numbers", "--recipe", "epbuild.yaml")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "below the limit 200" in " ".join(done.stdout.split())


def test_models_whose_check_has_no_figures_are_not_whole(project: Project) -> None:
    write_project(project)
    several = RECIPE.replace("soc_model: SM8750", 'soc_model: "SM8750,SM8650"').replace(
        LEFT, LEFT.replace("}", ", verify: true}")
    )
    project.recipe.write_text(several, encoding="utf-8")
    assert project.epbuild("run", "--keep-going").returncode == 1
    for command in (("report",), ("coverage",)):
        assert "2 models for 1 target: 1 whole, 1 failed verify" in project.epbuild(*command).stdout


def test_sharing_models_that_cannot_load_here_are_checked_unshared(project: Project) -> None:
    write_project(project)
    project.recipe.write_text(RECIPE.replace(LEFT, BOTH).replace(RIGHT, ""), encoding="utf-8")
    events_of(project, status=0)
    found = models(project, "left")
    assert [figures["unshared"] for name in ("left", "right") for figures in found[name]["figures"]] == [True, True]


def test_an_unjudged_context_for_several_socs_is_emitted_only_if_accepted(
    project: Project,
) -> None:
    write_project(project)
    several = RECIPE.replace("soc_model: SM8750", 'soc_model: "SM8750,SM8650"').replace(RIGHT, "  default: none\n")
    project.recipe.write_text(several.replace(LEFT, LEFT.replace("}", ", verify: true}")), encoding="utf-8")
    failed = [event for event in events_of(project, status=1) if event["event"] == "step_failed"]
    assert [problem["code"] for problem in failed[0]["problems"]] == ["EPB666"]
    assert not (project.folder / "dist").exists()
    project.recipe.write_text(several.replace(LEFT, LEFT.replace("}", ", verify: {unjudged: emit}}")), encoding="utf-8")
    events_of(project, status=0)
    assert "cannot load models that were compiled for several SoCs here" in models(project, "left")["left"]["unjudged"]


def write_floats(path: Path, nodes: list[Any], inputs: list[Any], **constants: Any) -> None:
    """Write a model with one output of floats, `y`, of open dimensions."""
    gives = [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", "columns"])]
    tensors = [numpy_helper.from_array(numpy.asarray(value, numpy.float32), name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "graph", inputs, gives, tensors)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10), path)


def test_a_first_recipe_emits_unjudged_models_and_lists_them_in_tables(project: Project) -> None:
    draw = numpy.random.default_rng(0)
    words = [helper.make_node("Gather", ["table", "ids"], ["word"]), helper.make_node("MatMul", ["word", "weight"], ["y"])]
    ids = [helper.make_tensor_value_info("ids", TensorProto.INT64, [6])]
    table, weight = draw.normal(size=(4, 16)), draw.normal(size=(16, 16))
    write_floats(project.folder / "words.onnx", words, ids, table=table, weight=weight)
    x = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 16])]
    faint = [helper.make_node("MatMul", ["x", "weight"], ["z"]), helper.make_node("Mul", ["z", "little"], ["y"])]
    write_floats(project.folder / "faint.onnx", faint, x, weight=weight, little=1e-8)
    done = project.epbuild("init", "--ep", "qnn", "--soc", "SM8750", "--name", "first")
    assert done.returncode == 0, done.stderr
    done = project.epbuild("run", "--keep-going")
    assert done.returncode == 0, done.stdout + done.stderr
    [warning] = [line for line in done.stderr.splitlines() if "[EPB" in line]
    assert warning.startswith("verify:main-faint/SM8750: warning: the outputs of the model 'faint' cannot be judged")
    assert "all of its values are below 0.001" in warning
    assert "The model is still emitted, because generated inputs are weak evidence." in warning
    files = {place: json.loads(text) for place, text in project.files().items() if place.endswith("manifest.json")}
    found = {model["name"]: model for manifest in files.values() for model in manifest["models"]}
    assert found["words"]["figures"][0]["cosine"] > 0.999
    assert "unjudged" not in found["words"]
    assert "all of its values are below 0.001" in found["faint"]["unjudged"]
    project.edit("verify: true", "verify: {unjudged: fail}")
    done = project.epbuild("run", "--keep-going")
    assert (done.returncode, done.stderr.count("[EPB665]")) == (1, 1), done.stderr
