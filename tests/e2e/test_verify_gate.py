"""What `verify` in a recipe promises, with the real QNN EP: numbers are checked before anything is published."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest
from projects import Project
from quick_builds import RECIPE, write_project

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


def test_what_passes_is_published_with_its_figures_and_what_fails_is_not(project: Project) -> None:
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
    assert ", and has to be 200" in problem["message"]
    # What is asked is judged again by the figures that are known.
    project.recipe.write_text(RECIPE.replace(RIGHT, strict.replace("200", "20")), encoding="utf-8")
    again = events_of(project, status=0)
    assert {event["step"] for event in again if event["event"] == "step_finished" and event["outcome"] == "built"} == set()
    assert models(project, "right")["right"]["figures"]
    # What the recipe asks is what `verify --numbers` goes by as well.
    project.edit("snr_db: 20", "snr_db: 200")
    done = project.epbuild("verify", "dist/right", "--numbers", "--recipe", "epbuild.yaml")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "and has to be 200" in " ".join(done.stdout.split())


def test_models_that_share_are_checked_unshared_where_they_cannot_be_loaded(project: Project) -> None:
    write_project(project)
    project.recipe.write_text(RECIPE.replace(LEFT, BOTH).replace(RIGHT, ""), encoding="utf-8")
    events_of(project, status=0)
    found = models(project, "left")
    assert [figures["unshared"] for name in ("left", "right") for figures in found[name]["figures"]] == [True, True]


def test_a_context_for_several_socs_is_not_published_unless_the_recipe_accepts_that_nobody_has_judged_it(
    project: Project,
) -> None:
    write_project(project)
    several = RECIPE.replace("soc_model: SM8750", 'soc_model: "SM8750,SM8650"').replace(RIGHT, "")
    project.recipe.write_text(several.replace(LEFT, LEFT.replace("}", ", verify: true}")), encoding="utf-8")
    failed = [event for event in events_of(project, status=1) if event["event"] == "step_failed"]
    assert [problem["code"] for problem in failed[0]["problems"]] == ["EPB666"]
    assert not (project.folder / "dist").exists()
    project.recipe.write_text(several.replace(LEFT, LEFT.replace("}", ", verify: {unjudged: publish}}")), encoding="utf-8")
    events_of(project, status=0)
    assert "cannot load models that were compiled for several SoCs here" in models(project, "left")["left"]["unjudged"]
