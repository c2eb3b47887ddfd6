"""Bytes saved by sharing with the real EP: measured exactly, required by a recipe, and measured once."""

from __future__ import annotations

import json
from typing import Any

import onnx

from tests.support.projects import Project, compiled, emitted

EXPECT = "share_weights: true\n    expect: {ep_context_nodes: 1, fallback_nodes: 0"
DECODER = "emit:decoder/snapdragon-SM8750/*"
SHARE = "share:decoder/snapdragon-SM8750"
FOLDER = "dist/quickstart/decoder/snapdragon-SM8750"
MEASURED = {f"compiling {name} alone to measure the savings from sharing" for name in ("prefill", "decode")}


def binaries(project: Project) -> int:
    """Return the bytes of the emitted context binaries."""
    return sum(len(content) for name, content in project.files(FOLDER).items() if name.endswith(".bin"))


def measured(events: list[dict[str, Any]]) -> set[str]:
    return {event["text"] for event in events if event["event"] == "step_output" and event["text"] in MEASURED}


def note(events: list[dict[str, Any]]) -> str:
    [text] = [event["note"] for event in events if event["event"] == "step_finished" and event["step"] == SHARE]
    return str(text)


def test_sharing_savings_are_enforced_and_measured_once(new_quickstart: Project) -> None:
    new_quickstart.edit(EXPECT, f"{EXPECT}, shared_bytes: {{min_ratio: 0.3, measure: alone}}")
    events = new_quickstart.build("epbuild.yaml", DECODER)
    assert measured(events) == MEASURED
    shared, good = binaries(new_quickstart), new_quickstart.files()
    logs = {path: path.stat().st_mtime_ns for path in (new_quickstart.folder / ".epbuild/logs").iterdir()}

    new_quickstart.edit("min_ratio: 0.3", "min_ratio: 0.9")
    done = new_quickstart.epbuild("run", "epbuild.yaml", DECODER)
    assert done.returncode == 1
    assert f"the context binaries and data have {shared:,} bytes with sharing and " in done.stderr
    assert "the saved ratio is 0.4" in done.stderr
    assert "the recipe expects at least 0.9" in done.stderr
    assert SHARE in done.stdout + done.stderr

    new_quickstart.edit("min_ratio: 0.9", "min_ratio: 0.3")
    again = new_quickstart.build("epbuild.yaml", DECODER)
    assert compiled(again) == emitted(again) == measured(again) == set()
    assert new_quickstart.files() == good
    assert logs == {path: path.stat().st_mtime_ns for path in (new_quickstart.folder / ".epbuild/logs").iterdir()}

    gated = f"{EXPECT}, shared_bytes: {{min_ratio: 0.3, measure: alone}}"
    new_quickstart.edit(gated, EXPECT.replace("true", "false"))
    assert compiled(new_quickstart.build("epbuild.yaml", DECODER)) == set(), "the members alone are this group's results"
    alone = binaries(new_quickstart)
    assert f"sharing saves {alone - shared:,} of {alone:,} bytes (ratio 0.4" in note(events)

    new_quickstart.edit(EXPECT.replace("true", "false"), gated)
    place = new_quickstart.folder / "models/tiny-llm/decode.onnx"
    model = onnx.load(place, load_external_data=False)
    model.doc_string = "changed"
    onnx.save(model, place)
    assert measured(new_quickstart.build("epbuild.yaml", DECODER)) == {text for text in MEASURED if "decode" in text}


def test_a_new_sharing_gate_only_measures_and_the_plan_announces_it(quickstart: Project) -> None:
    quickstart.build("epbuild.yaml", DECODER)
    good = quickstart.files()
    quickstart.edit(EXPECT, f"{EXPECT}, shared_bytes: {{min_ratio: 0.3, measure: alone}}")
    plan = json.loads(quickstart.epbuild("plan", "epbuild.yaml", DECODER, "--json").stdout)
    [reasons] = [step["reasons"] for step in plan["steps"] if step["id"] == SHARE]
    assert reasons == [
        f"the model '{name}' has not been compiled alone yet, which is needed to measure what sharing saves"
        for name in ("prefill", "decode")
    ]
    events = quickstart.build("epbuild.yaml", DECODER)
    assert (compiled(events), measured(events)) == (set(), MEASURED)
    assert quickstart.files() == good
    assert quickstart.epbuild("run", "epbuild.yaml", DECODER, "--check").returncode == 0
