"""Sharing gate: its cost, when it is due, and that it rejects wrong numbers and wrong builds."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from epbuild.cache.collect import Limits
from epbuild.commands.gc import collect_garbage
from epbuild.engine.events import StepFailed, StepFinished, StepOutput, StepStarted
from epbuild.toolchain.process import Ending, WorkerListener
from tests.support.fake_builds import COMPILES, EMIT_DECODER, SHARE, STEPS, Workshop, source_model

EXPECT = "expect: {ep_context_nodes: 1, fallback_nodes: 1}"
CURRENT = dict.fromkeys(STEPS, "current")
MEASURING = [f"compiling {name} alone to measure the savings from sharing" for name in ("prefill", "decode")]
Meddle = Callable[[dict[str, Any], Path], Ending | None]


def gate(ratio: float) -> tuple[str, str]:
    """Return the edit of the recipe that requires a ratio of the decoder."""
    return EXPECT, EXPECT.replace("}", f", shared_bytes: {{min_ratio: {ratio}, measure: alone}}}}")


@pytest.fixture
def workshop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workshop:
    return Workshop(tmp_path / "checkout", tmp_path / "cache", monkeypatch)


@pytest.fixture
def gated(workshop: Workshop) -> Workshop:
    workshop.write_recipe(gate(0.3))
    assert workshop.build().exit_code == 0
    return workshop


def intercept_worker(workshop: Workshop, meddle: Meddle) -> None:
    """Pass each request and its staging directory to `meddle` before the worker runs. It may end the worker."""

    def supervise(command: Any, folder: Path, log: Path, **options: Any) -> Ending:
        request = json.loads((folder / "request.json").read_text(encoding="utf-8"))
        return meddle(request, folder) or workshop.worker(command, folder, log, **options)

    workshop.run_worker = supervise


def share_event(workshop: Workshop) -> StepFinished:
    """Return the final event of the share step."""
    [event] = [event for event in workshop.events if isinstance(event, StepFinished) and event.step == SHARE]
    return event


def said(workshop: Workshop) -> list[str]:
    """Return the output of the share step in the last build."""
    return [event.text for event in workshop.events if isinstance(event, StepOutput) and event.step == SHARE]


def sizes_alone(folder: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """Return the total size of the decoder's binaries in a build without sharing and with another cache."""
    other = Workshop(folder, folder.with_name("another cache"), monkeypatch)
    other.write_recipe(("share_weights: true", "share_weights: false"))
    assert other.build().exit_code == 0
    return sum(len(data) for name, data in other.contents().items() if name.endswith(".bin"))


def test_gate_compiles_each_member_alone_once_without_changing_the_result(
    workshop: Workshop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workshop.write_recipe(gate(0.3))
    requests: list[dict[str, Any]] = []
    intercept_worker(workshop, lambda request, folder: requests.append(request))
    assert workshop.build().exit_code == 0
    assert workshop.compiled == ["prefill+decode", "prefill", "decode", "classifier"]
    shared, *alone, _ = requests
    assert (shared["share_weights"], [request["share_weights"] for request in alone]) == (True, [False, False])
    for request, member in zip(alone, shared["members"], strict=True):
        assert {**request, "share_weights": True, "members": shared["members"]} == shared
        assert request["members"] == [member]
    assert workshop.states() == CURRENT
    workshop.build()
    assert workshop.compiled == []
    plain = Workshop(tmp_path / "plain", tmp_path / "another cache", monkeypatch)
    plain.build()
    assert workshop.contents() == plain.contents()


def test_share_step_reports_the_savings(gated: Workshop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    note = share_event(gated).note
    shared = len(gated.contents()["prefill_qnn.bin"])
    alone = sizes_alone(tmp_path / "un-shared", monkeypatch)
    ratio = 1000 * (alone - shared) // alone / 1000
    assert note == f"2 models, sharing saves {alone - shared:,} of {alone:,} bytes (ratio {ratio:.3f})"


def test_only_a_changed_member_is_compiled_alone_again(gated: Workshop) -> None:
    (gated.folder / "decode.onnx").write_bytes(source_model(7.0))
    assert gated.build("emit:decoder/*").exit_code == 0
    assert gated.compiled == ["prefill+decode", "decode"]
    assert said(gated) == ["restored prefill, which was compiled alone before", MEASURING[1]]


def test_a_group_without_sharing_has_the_results_of_members_alone(
    gated: Workshop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gated.write_recipe(("share_weights: true", "share_weights: false"))
    assert [gated.states()[step] for step in COMPILES] == ["restorable", "restorable"]
    assert gated.build().exit_code == 0
    assert gated.compiled == []
    other = Workshop(tmp_path / "other", tmp_path / "another cache", monkeypatch)
    other.write_recipe(("share_weights: true", "share_weights: false"))
    other.build()
    assert gated.contents() == other.contents()
    other.write_recipe(gate(0.3))
    assert other.build().exit_code == 0
    assert other.compiled == ["prefill+decode"]


def test_unused_results_of_members_alone_are_garbage(gated: Workshop) -> None:
    collect_garbage(gated.cache, Limits(max_age=-1, young=-1))
    assert gated.states() == CURRENT
    (gated.folder / "decode.onnx").write_bytes(source_model(7.0))
    gated.build("emit:decoder/*")
    assert gated.compiled == ["prefill+decode", "prefill", "decode"]


def test_measuring_is_progress_of_the_share_step(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    def supervise(command: Any, folder: Path, log: Path, listener: WorkerListener, **options: Any) -> Ending:
        request = json.loads((folder / "request.json").read_text(encoding="utf-8"))
        listener.reported({"event": "member_started", "member": request["members"][0]["name"]})
        listener.logged("working hard")
        return workshop.worker(command, folder, log)

    workshop.run_worker = supervise
    workshop.write_recipe(gate(0.3))
    workshop.build()
    assert said(workshop) == [MEASURING[0], "prefill alone: working hard", MEASURING[1], "decode alone: working hard"]
    begun = [event for event in workshop.events if isinstance(event, StepStarted) and event.step in COMPILES]
    assert [event.doing for event in begun] == ["staging", "compiling"], "measuring does not begin a compile step again"


def test_new_gate_on_an_existing_result_causes_only_the_measurement(workshop: Workshop) -> None:
    workshop.build()
    before = workshop.contents()
    workshop.write_recipe(gate(0.3))
    states = workshop.states()
    assert (states[SHARE], states[EMIT_DECODER]) == ("out of date", "out of date")
    assert workshop.reasons(SHARE) == tuple(
        f"the model '{name}' has not been compiled alone yet, which is needed to measure what sharing saves"
        for name in ("prefill", "decode")
    )
    finished = workshop.build()
    assert (finished.exit_code, finished.built, workshop.compiled) == (0, 0, ["prefill", "decode"])
    assert "sharing saves" in share_event(workshop).note
    assert workshop.contents() == before
    assert workshop.states() == CURRENT


def test_insufficient_savings_fail_the_share_step_and_keep_the_outputs(workshop: Workshop) -> None:
    workshop.build()
    before = workshop.contents()
    workshop.write_recipe(gate(0.9), ("quality: 3", "quality: 1"))
    assert workshop.build().exit_code == 1
    [failed] = [event for event in workshop.events if isinstance(event, StepFailed)]
    [problem] = failed.problems
    assert (failed.step, problem.where, problem.code) == (SHARE, SHARE, "EPB611")
    assert workshop.contents() == before


def test_refused_ratio_is_remembered_and_a_lower_gate_needs_no_compile(workshop: Workshop) -> None:
    workshop.write_recipe(gate(0.9))
    assert workshop.build().exit_code == 1
    [reason] = workshop.reasons(SHARE)
    assert "the saved ratio is 0." in reason
    assert workshop.build("emit:decoder/*").exit_code == 1
    assert workshop.compiled == []
    workshop.write_recipe(gate(0.3))
    assert workshop.build().exit_code == 0
    assert workshop.compiled == ["classifier"]
    assert workshop.states() == CURRENT


def test_another_checkout_restores_the_measurement_with_the_result(
    gated: Workshop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = gated.checkout(tmp_path / "other", monkeypatch)
    assert other.states()[SHARE] == "restorable"
    assert other.build().exit_code == 0
    assert other.compiled == []
    assert other.contents() == gated.contents()


def test_failing_result_is_not_measured(workshop: Workshop) -> None:
    workshop.build()
    workshop.write_recipe((EXPECT, "expect: {fallback_nodes: 0, shared_bytes: {min_ratio: 0.3, measure: alone}}"))
    assert all("did not compile" in reason for reason in workshop.reasons(SHARE))
    assert workshop.build().exit_code == 1
    assert (workshop.failures, workshop.compiled) == (["EPB609", "EPB609"], [])


def test_removed_gate_is_not_checked(workshop: Workshop) -> None:
    workshop.write_recipe(gate(0.9))
    workshop.build()
    workshop.write_recipe()
    assert workshop.build().exit_code == 0
    assert workshop.compiled == ["classifier"]
    workshop.write_recipe(("quality: 3", "quality: 1"))
    workshop.build()
    assert workshop.compiled == ["prefill+decode"]


def test_failed_measurement_fails_only_the_share_step(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(request: dict[str, Any], folder: Path) -> Ending | None:
        if [member["name"] for member in request["members"]] != ["decode"]:
            return None
        started = {"event": "member_started", "member": "decode"}
        failed = {"event": "failed", "kind": "error", "type": "Fail", "message": "no room"}
        return Ending("exited", 1, (started, failed), ())

    intercept_worker(workshop, refuse)
    workshop.write_recipe(gate(0.3))
    assert workshop.build("emit:decoder/*").exit_code == 1
    workshop.run_worker = workshop.worker
    [failed] = [event for event in workshop.events if isinstance(event, StepFailed)]
    [problem] = failed.problems
    assert (failed.step, problem.code) == (SHARE, "EPB401")
    assert problem.message.startswith(
        "the model 'decode' could not be compiled alone: compiling 'decode' for npu failed: no room"
    )
    assert not workshop.output().exists()
    assert workshop.reasons(SHARE) == (
        "the model 'decode' has not been compiled alone yet, which is needed to measure what sharing saves",
    )
    assert workshop.build("emit:decoder/*").exit_code == 0
    assert workshop.compiled == ["decode"]


def test_measurement_without_a_result_is_an_error(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    def write_nothing(request: dict[str, Any], folder: Path) -> Ending | None:
        return None if request["share_weights"] else Ending("exited", 0, ({"event": "finished", "peak_memory": None},), ())

    intercept_worker(workshop, write_nothing)
    workshop.write_recipe(gate(0.3))
    assert workshop.build("emit:decoder/*").exit_code == 1
    assert workshop.failures == ["EPB601"]


def test_model_that_changes_during_measurement_is_not_measured(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    def change(request: dict[str, Any], folder: Path) -> None:
        if not request["share_weights"]:
            (workshop.folder / "decode.onnx").unlink()
            (workshop.folder / "decode.onnx").write_bytes(source_model(7.0))

    intercept_worker(workshop, change)
    workshop.write_recipe(gate(0.3))
    assert workshop.build("emit:decoder/*").exit_code == 1
    assert workshop.failures == ["EPB415"]
    workshop.run_worker = workshop.worker
    (workshop.folder / "decode.onnx").write_bytes(source_model(1.0))
    assert workshop.build("emit:decoder/*").exit_code == 0
    assert workshop.compiled == ["prefill", "decode"]


def test_measuring_keeps_the_log_of_the_compile(gated: Workshop) -> None:
    logs = gated.folder / ".epbuild" / "logs"
    assert sorted(path.name for path in logs.iterdir()) == [
        "compile+classifier+plain+classifier.log",
        "share+decoder+npu+decode.log",
        "share+decoder+npu+prefill.log",
        "share+decoder+npu.log",
    ]
    assert (logs / "share+decoder+npu.log").read_text(encoding="utf-8") == "compiled prefill\n"


def test_gate_on_a_lost_result_compiles_everything_again(workshop: Workshop) -> None:
    workshop.build()
    workshop.lose_blobs()
    workshop.write_recipe(gate(0.3))
    assert workshop.reasons(SHARE)[-1] == "its result is no longer in the store"
    assert workshop.build("emit:decoder/*").exit_code == 0
    assert workshop.compiled == ["prefill+decode", "prefill", "decode"]


def test_lost_measured_result_is_current_while_its_outputs_exist(gated: Workshop) -> None:
    gated.lose_blobs()
    assert gated.states() == CURRENT
    gated.build()
    assert gated.compiled == []
