"""`run --rebuild-and-compare` with the real EP: equal bytes, known differences, and failures."""

from __future__ import annotations

import json
import signal
import sys
import time
from pathlib import Path
from typing import Any

import jsonschema
import numpy
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from epbuild.core.canonical import read_schema
from tests.support.projects import Project
from tests.support.quick_builds import GROUPS, PATIENCE, check_no_leftovers, check_no_workers, start, write_project

ONE_SOC, SOCS = "soc_model: SM8750", "soc_model: 'SC8380XP,SM8750'"
MULTIPLIED = 128
"""Size of the constant that multiplies a single row. From 128 on, two compiles nearly always differ in its padding."""
ATTEMPTS = 8


def compared(project: Project, *arguments: str) -> tuple[int, dict[str, dict[str, Any]]]:
    """Return the exit code of a comparison, and the event of each compared step."""
    done = project.epbuild("run", *arguments, "--rebuild-and-compare", "--json")
    events = [json.loads(line) for line in done.stdout.splitlines()]
    assert events, done.stderr
    assert events[-1]["event"] == "run_finished"
    return done.returncode, {event["step"]: event for event in events if event["event"] == "step_compared"}


def kept(project: Project, event: dict[str, Any]) -> dict[str, bytes]:
    return project.files(event["kept"])


def multiply_a_row(path: Path) -> None:
    """Write a model that multiplies a row by a constant, as the gain of an RMSNorm does when a decoder emits one token."""
    random = numpy.random.default_rng(1)
    gain = (1 + 0.1 * random.standard_normal(MULTIPLIED)).astype(numpy.float32)
    weights = (random.standard_normal((MULTIPLIED, MULTIPLIED)) / 8).astype(numpy.float32)
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 1, MULTIPLIED]) for name in "xy"]
    nodes = [helper.make_node("Mul", ["x", "gain"], ["g"]), helper.make_node("MatMul", ["g", "w"], ["y"])]
    tensors = [numpy_helper.from_array(gain, "gain"), numpy_helper.from_array(weights, "w")]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], tensors)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


def until_different(project: Project) -> dict[str, Any]:
    """Compare until the EP leaves different bytes in memory that it never sets, which happens by chance."""
    for _ in range(ATTEMPTS):
        code, told = compared(project, "epbuild.yaml", "compile:left/*")
        [event] = told.values()
        assert code == (event["verdict"] == "different")
        if event["verdict"] == "different":
            return event
    raise AssertionError(f"{ATTEMPTS} compiles came out the same")


def test_the_quickstart_rebuilds_to_identical_bytes(quickstart: Project) -> None:
    quickstart.build()
    before = quickstart.files()
    code, told = compared(quickstart, "-j", "2")
    assert code == 0
    assert {step: event["verdict"] for step, event in told.items()} == {
        f"{step}/snapdragon-{soc}{member}": "same"
        for soc in ("SC8380XP", "SM8750")
        for step, member in (("share:decoder", ""), ("compile:classifier", "/classifier"))
    }
    assert {event["files"] for event in told.values()} == {2, 3}
    assert quickstart.files() == before
    assert not (quickstart.folder / ".epbuild/rebuilt").exists()
    # Nothing was recorded, and the next run has nothing to do.
    assert quickstart.epbuild("run", "--check").returncode == 0


def test_a_target_for_several_socs_differs_in_known_timestamps_only(project: Project) -> None:
    write_project(project)
    project.edit(ONE_SOC, SOCS)
    project.build()
    time.sleep(1.1)  # the times in the archive are in seconds
    code, told = compared(project, "epbuild.yaml", "emit:left/*")
    [event] = told.values()
    assert (code, event["verdict"], event["problems"]) == (0, "known", [])
    assert "current time" in event["known"]
    [difference] = event["differences"]
    [found] = difference["found"]
    assert (found["meaning"], found["part"]) == ("timestamp", "member dlc.metadata2.3.0")
    assert found["count"] == difference["count"]
    assert found["old"] < found["new"]
    trees = kept(project, event)
    assert trees.keys() == {f"{tree}/left_ctx{end}" for tree in ("stored", "rebuilt") for end in (".onnx", "_qnn.bin")}
    old, new = (trees[f"{tree}/left_ctx_qnn.bin"] for tree in ("stored", "rebuilt"))
    places = [at for at, (one, other) in enumerate(zip(old, new, strict=True)) if one != other]
    assert (difference["offset"], difference["count"]) == (places[0], len(places))
    assert found["old"].encode() in old
    assert found["new"].encode() in new
    assert project.files("dist/left")["left_qnn.bin"] == old


def test_known_timestamps_are_recognized_in_an_embedded_context(project: Project) -> None:
    write_project(project)
    project.edit(ONE_SOC, SOCS)
    project.edit("models: [left], targets: [npu]", "models: [left], targets: [npu], compile: {embed: true}")
    project.build()
    time.sleep(1.1)  # the times in the archive are in seconds
    code, told = compared(project, "epbuild.yaml", "emit:left/*")
    [event] = told.values()
    assert (code, event["verdict"], event["problems"]) == (0, "known", [])
    [difference] = event["differences"]
    assert [found["meaning"] for found in difference["found"]] == ["timestamp"]


def test_the_manifest_of_a_target_for_several_socs_says_why_it_is_not_reproducible(project: Project) -> None:
    write_project(project)
    project.build()
    assert "not_reproducible" not in json.loads(project.files("dist/left")["manifest.json"])["target"]
    project.edit(ONE_SOC, SOCS)
    project.build()
    manifest = json.loads(project.files("dist/left")["manifest.json"])
    assert "current time" in manifest["target"]["not_reproducible"]
    jsonschema.validate(manifest, read_schema("manifest"))


def test_uninitialized_padding_is_reported_and_fails(project: Project) -> None:
    write_project(project)
    multiply_a_row(project.folder / "left.onnx")
    event = until_different(project)
    assert {found["meaning"] for item in event["differences"] for found in item["found"]} == {"padding"}
    assert [problem["code"] for problem in event["problems"]] == ["EPB650"]
    assert event["kept"] in event["problems"][0]["hint"]
    done = project.epbuild("run", "epbuild.yaml", "compile:left/*", "--rebuild-and-compare")
    if done.returncode:
        assert "look like uninitialized padding" in done.stdout
        assert "[EPB650]" in done.stderr


def test_a_target_with_known_timestamps_fails_for_other_differences(project: Project) -> None:
    write_project(project)
    project.edit(ONE_SOC, SOCS)
    multiply_a_row(project.folder / "left.onnx")
    event = until_different(project)
    assert [problem["code"] for problem in event["problems"]] == ["EPB652"]
    assert len({found["meaning"] for item in event["differences"] for found in item["found"]}) > 1


def test_outdated_steps_are_built_first_and_selected_steps_compared(project: Project) -> None:
    write_project(project)
    code, told = compared(project, "epbuild.yaml", "emit:right/*")
    assert (code, list(told)) == (0, ["compile:right/npu/right"])
    assert project.files("dist").keys() == {f"right/{name}" for name in ("right_ctx.onnx", "right_qnn.bin", "manifest.json")}


@pytest.mark.parametrize("option", ["--check", "--dry-run"])
def test_options_that_build_nothing_exclude_rebuild_and_compare(option: str, project: Project) -> None:
    write_project(project)
    done = project.epbuild("run", "--rebuild-and-compare", option)
    assert done.returncode == 2
    assert not (project.folder / ".epbuild").exists()


@pytest.mark.skipif(sys.platform != "linux", reason="finds worker processes in /proc")
def test_an_interrupted_comparison_keeps_built_outputs(project: Project) -> None:
    write_project(project)
    project.build()
    before = project.files()
    running = start(project, "run", "-j", "1", "--rebuild-and-compare", "--json")
    assert running.stdout is not None
    for line in running.stdout:
        if json.loads(line).get("doing") == "compiling again":
            break
    running.send_signal(signal.SIGINT)
    told = running.communicate(timeout=PATIENCE)
    assert running.returncode == 130, told
    check_no_workers(project)
    assert project.files() == before
    project.build()
    check_no_leftovers(project)
    assert not any((project.folder / ".epbuild/rebuilt").glob("*"))
    assert len(GROUPS) == 2, "so that one was still to come"
