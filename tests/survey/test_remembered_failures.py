"""Failures: an allowed failure stops no other model, and a failed action runs again only after a change."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from epbuild.commands.run import run
from epbuild.engine.events import RunFinished, StepFailed, StepFinished, Warned
from epbuild.toolchain.process import Ending
from tests.support.fake_builds import CLASSIFIER, EMIT_CLASSIFIER, EMIT_DECODER, SHARE, Workshop

ALLOWED = ("    models: [classifier]\n", "    models: [classifier]\n    allow_failure: true\n")
ALLOWED_BY_TARGET = ("    models: [classifier]\n", "    models: [classifier]\n    allow_failure: [pl*]\n")
EACH = (
    "    models: [prefill, decode]\n    targets: [npu]\n    share_weights: true\n    expect: {ep_context_nodes: 1, fallback_nodes: 1}\n",
    "    models: [prefill, decode]\n    targets: [npu]\n    separate: true\n    allow_failure: true\n    expect: {fallback_nodes: any}\n",
)


@pytest.fixture
def workshop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workshop:
    return Workshop(tmp_path / "checkout", tmp_path / "cache", monkeypatch)


class Broken:
    """EP that fails to compile one of the models while `broken` is set."""

    def __init__(self, workshop: Workshop, model: str, status: int = 1) -> None:
        self.broken = True
        self.tried = 0
        self._worker, self._model, self._status = workshop.worker, model, status
        self._how: Any = "exited"
        workshop.run_worker = self._supervise

    def ends(self, how: str, status: int) -> None:
        self._how, self._status = how, status

    def _supervise(self, command: object, folder: Path, log: Path, **options: Any) -> Ending:
        members = json.loads((folder / "request.json").read_text(encoding="utf-8"))["members"]
        if not self.broken or all(member["name"] != self._model for member in members):
            return self._worker(command, folder, log, **options)
        self.tried += 1
        log.write_text("no\n", encoding="utf-8")
        started = {"event": "member_started", "member": self._model}
        said = {"event": "failed", "kind": "error", "type": "Fail", "message": "Operator Foo is not supported"}
        return Ending(self._how, self._status, (started, said) if self._status == 1 else (started,), ())


@pytest.fixture
def broken(workshop: Workshop) -> Broken:
    return Broken(workshop, "classifier")


def outcomes(workshop: Workshop) -> dict[str, str]:
    return {event.step: event.outcome for event in workshop.events if isinstance(event, StepFinished)}


def failed(workshop: Workshop) -> StepFailed:
    [event] = [event for event in workshop.events if isinstance(event, StepFailed)]
    return event


def retried(workshop: Workshop) -> RunFinished:
    workshop.events.clear()
    run(replace(workshop.request, retry=True), workshop.events)
    [finished] = [event for event in workshop.events if isinstance(event, RunFinished)]
    return finished


# -- Allowed failures --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("change", [ALLOWED, ALLOWED_BY_TARGET])
def test_allowed_failure_is_reported_and_the_rest_is_built(workshop: Workshop, broken: Broken, change: tuple[str, str]) -> None:
    workshop.write_recipe(change)
    finished = workshop.build()
    assert (finished.exit_code, finished.failed, finished.allowed, finished.skipped) == (0, 0, 1, 1)
    assert failed(workshop).allowed
    assert "Operator Foo is not supported" in failed(workshop).problems[0].message
    assert outcomes(workshop)[EMIT_DECODER] == "emitted"
    assert not workshop.output("classifier").exists()
    [skipped] = [event for event in workshop.events if isinstance(event, StepFinished) and event.outcome == "skipped"]
    assert (skipped.step, skipped.note) == (EMIT_CLASSIFIER, f"needs {CLASSIFIER}")


def test_failure_ends_the_build_by_default(workshop: Workshop, broken: Broken) -> None:
    finished = workshop.build()
    assert (finished.exit_code, finished.failed, finished.allowed) == (1, 1, 0)
    assert not failed(workshop).allowed


def test_separate_groups_build_every_model_that_compiles(workshop: Workshop) -> None:
    Broken(workshop, "prefill")
    workshop.write_recipe(EACH)
    assert workshop.build().exit_code == 0
    assert failed(workshop).step == "compile:decoder-prefill/npu/prefill"
    assert outcomes(workshop)["emit:decoder-decode/npu/directory"] == "emitted"
    assert not workshop.output("decoder-prefill").exists()
    assert workshop.output("decoder-decode").exists()


def test_outdated_output_after_an_allowed_failure_is_reported(workshop: Workshop, broken: Broken) -> None:
    workshop.write_recipe(ALLOWED)
    broken.broken = False
    workshop.build()
    before = workshop.contents("classifier")
    broken.broken = True
    model = workshop.folder / "classifier.onnx"
    model.write_bytes((workshop.folder / "decode.onnx").read_bytes())
    assert workshop.build().exit_code == 0
    [warned] = [event.problem for event in workshop.events if isinstance(event, Warned)]
    assert warned.code == "EPB460"
    assert workshop.contents("classifier") == before


# -- Remembered failures -----------------------------------------------------------------------------------------------


def test_failed_action_is_not_retried_and_its_failure_is_reported_again(workshop: Workshop, broken: Broken) -> None:
    workshop.build()
    [first] = failed(workshop).problems
    assert workshop.states()[CLASSIFIER] == "failed"
    assert workshop.reasons(CLASSIFIER) == (first.message,)
    assert workshop.build().exit_code == 1
    again = failed(workshop)
    assert broken.tried == 1
    assert again.remembered
    assert (again.problems[0].code, again.problems[0].message) == (first.code, first.message)
    assert "`epbuild run --retry`" in str(again.problems[0].hint)


def test_retry_runs_the_action_and_success_clears_the_failure(workshop: Workshop, broken: Broken) -> None:
    workshop.build()
    assert retried(workshop).exit_code == 1
    assert broken.tried == 2
    broken.broken = False
    assert retried(workshop).exit_code == 0
    assert workshop.states()[CLASSIFIER] == "current"


def test_changed_dependency_causes_another_attempt(workshop: Workshop, broken: Broken) -> None:
    workshop.build()
    workshop.packages["onnxruntime"] = "1.32.0"
    assert workshop.states()[CLASSIFIER] != "failed"
    workshop.build()
    assert broken.tried == 2


def test_failure_outside_the_key_is_not_remembered(workshop: Workshop, broken: Broken) -> None:
    for how, status in (("timed out", -9), ("exited", -9), ("exited", -11)):
        broken.ends(how, status)
        workshop.build()
        assert not failed(workshop).remembered
        assert workshop.states()[CLASSIFIER] != "failed"
    assert broken.tried == 3


def test_failures_are_remembered_for_each_recipe(workshop: Workshop, broken: Broken) -> None:
    workshop.build()
    other = workshop.folder / "other.yaml"
    other.write_bytes((workshop.folder / "epbuild.yaml").read_bytes().replace(b"dist/", b"other/"))
    workshop.build(recipe=other)
    assert broken.tried == 2


def test_build_with_only_remembered_allowed_failures_tries_nothing(workshop: Workshop, broken: Broken) -> None:
    workshop.write_recipe(ALLOWED)
    assert not workshop.survey().nothing_to_try
    workshop.build()
    found = workshop.survey()
    assert found.nothing_to_try
    assert not found.up_to_date
    assert workshop.build().exit_code == 0
    assert broken.tried == 1
    assert workshop.states()[SHARE] == "current"
