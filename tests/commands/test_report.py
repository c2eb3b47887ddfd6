"""Report of a recipe's builds: any process can create it from the local files, without a build."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest

from epbuild.commands.reporting.build_record import measure_work
from epbuild.commands.reporting.failures import FailureList
from epbuild.commands.reporting.report import report
from epbuild.commands.reporting.values import Report, ReportedStep
from epbuild.core.canonical import read_schema
from epbuild.engine.events import StepFailed, StepFinished
from epbuild.publish.sizes import SharingSaved
from epbuild.report.json.documents import build_report_document
from epbuild.session.events import ModelCovered
from epbuild.toolchain.process import Ending
from tests.support.fake_builds import CLASSIFIER, COMPILES, EMIT_CLASSIFIER, EMIT_DECODER, LET_THE_CPU, SHARE, STEPS, Workshop

VALIDATOR = jsonschema.Draft202012Validator(read_schema("report"))


@pytest.fixture
def workshop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workshop:
    return Workshop(tmp_path / "checkout", tmp_path / "cache", monkeypatch)


def reported(workshop: Workshop) -> Report:
    """Return the report. Fail if its JSON violates the schema or changes in a round trip."""
    found = report(workshop.request)
    text = json.dumps(build_report_document(found))
    VALIDATOR.validate(json.loads(text))
    assert msgspec.convert(json.loads(text), Report) == found
    return found


def steps(found: Report) -> dict[str, ReportedStep]:
    return {step.id: step for step in found.steps}


def fails_at(workshop: Workshop, member: str) -> Any:
    """Return a worker whose EP fails on one model."""

    def worker(command: object, folder: Path, log: Path, **options: Any) -> Ending:
        if not (folder / "in" / member).exists():
            return workshop.worker(command, folder, log, **options)
        log.write_text("", encoding="utf-8")
        failed = {"event": "failed", "kind": "error", "type": "Fail", "message": "no such thing"}
        return Ending("exited", 1, ({"event": "member_started", "member": member}, failed), ())

    return worker


def test_report_of_an_unbuilt_recipe_has_no_build(workshop: Workshop) -> None:
    found = reported(workshop)
    assert found.build is None
    assert [step.id for step in found.steps] == STEPS
    assert {step.state for step in found.steps} == {"new"}
    assert [(row.model, row.outcome, row.size) for row in found.coverage] == [
        ("prefill", "not built", None),
        ("decode", "not built", None),
        ("classifier", "not built", None),
    ]
    assert [(output.path, output.in_place, output.files) for output in found.outputs] == [
        ("dist/decoder", False, ()),
        ("dist/classifier", False, ()),
    ]
    assert not (workshop.folder / ".epbuild").exists()


def test_later_report_includes_the_last_build(workshop: Workshop) -> None:
    ended = workshop.build()
    found = reported(workshop)
    assert found.build is not None
    assert (found.build.exit_code, found.build.steps, found.build.todo) == (0, 6, 6)
    assert found.build.outcomes == {"built": ended.built - 2, "emitted": 2}
    for step in found.steps:
        assert step.state == "current"
        assert step.outcome == ("emitted" if step.kind == "emit" else "built")
        if step.id == COMPILES[1]:  # this worker does not report the start of the second model
            continue
        assert step.started is not None
        assert step.ended is not None
        assert 0 <= step.started <= step.ended <= found.build.seconds
        assert step.worker in (0, 1)  # one at a time, and one that stores its results
    share = steps(found)[SHARE]
    first = steps(found)[COMPILES[0]]
    assert first.started == share.started
    assert first.ended is not None
    assert share.ended is not None
    assert first.ended <= share.ended
    assert {output.path: output.in_place for output in found.outputs} == {"dist/decoder": True, "dist/classifier": True}
    for output in found.outputs:
        there = {
            path.relative_to(workshop.folder / output.path).as_posix(): path
            for path in (workshop.folder / output.path).rglob("*")
        }
        assert {file.path: file.size for file in output.files} == {name: path.stat().st_size for name, path in there.items()}
        assert output.size == steps(found)[output.step].size


def test_report_and_terminal_show_the_same_numbers(workshop: Workshop) -> None:
    """Check that a report has the content of the events that the terminal shows."""
    workshop.build()
    found = reported(workshop)
    covered = {event.step: event for event in workshop.events if isinstance(event, ModelCovered)}
    assert {row.step for row in found.coverage} == covered.keys()
    for row in found.coverage:
        event = covered[row.step]
        assert (row.model, row.target, row.outcome, row.size, row.seconds) == (
            event.model,
            event.target,
            event.outcome,
            event.size,
            event.seconds,
        )
        assert event.outside is not None
        assert row.fallback_nodes == event.outside.count
    finished = {event.step: event for event in workshop.events if isinstance(event, StepFinished)}
    for step in found.steps:
        ended = finished[step.id]
        assert step.size == ended.size
        if step.kind == "compile":
            assert step.note == ended.note
            assert step.seconds is not None
    [saved] = [event for event in workshop.events if isinstance(event, SharingSaved)]
    [sharing] = found.sharing
    assert (sharing.made, sharing.shared, sharing.measured) == (saved.made, saved.shared, saved.measured)


def test_failed_model_is_reported_with_its_reason(workshop: Workshop) -> None:
    workshop.run_worker = fails_at(workshop, "classifier")
    workshop.build()
    found = reported(workshop)
    [classifier] = [row for row in found.coverage if row.model == "classifier"]
    assert (classifier.outcome, classifier.reason) == ("failed", "no such thing.")
    step = steps(found)[CLASSIFIER]
    assert (step.outcome, step.state, [error.code for error in step.errors]) == ("failed", "failed", ["EPB401"])
    assert steps(found)[EMIT_CLASSIFIER].outcome == "skipped"
    assert found.build is not None
    assert found.build.exit_code == 1


def test_a_report_has_the_times_and_failures_of_the_builds_events(workshop: Workshop) -> None:
    workshop.run_worker = fails_at(workshop, "classifier")
    workshop.build()
    found, failures = reported(workshop), FailureList()
    for event in workshop.events:
        failures.report(event)
    assert list(found.failures) == failures.list_failures()
    ran = [event for event in workshop.events if isinstance(event, StepFinished | StepFailed) and event.step in STEPS]
    work = measure_work({event.step: event.seconds for event in ran if getattr(event, "outcome", "failed") != "skipped"})
    assert {step.id: step.work for step in found.steps if step.work is not None} == pytest.approx(work, abs=0.001)
    assert work[CLASSIFIER] > 0


def test_model_that_misses_expectations_has_coverage_and_an_error(workshop: Workshop) -> None:
    workshop.write_recipe((LET_THE_CPU, ""))
    workshop.build()
    found = reported(workshop)
    [row] = [row for row in found.coverage if row.model == "classifier"]
    assert (row.outcome, row.fallback_nodes, [(left.operator, left.count) for left in row.outside]) == (
        "partial",
        1,
        [("Relu", 1)],
    )
    [error] = steps(found)[CLASSIFIER].errors
    assert error.code == "EPB655"
    assert steps(found)[CLASSIFIER].outcome == "failed"


def test_changed_step_is_out_of_date_and_keeps_its_last_outcome(workshop: Workshop) -> None:
    workshop.build()
    workshop.write_recipe(("quality: 3", "quality: 2"))
    found = steps(reported(workshop))
    assert found[SHARE].state == "out of date"
    assert any("htp_graph_finalization_optimization_mode" in reason for reason in found[SHARE].reasons)
    assert (found[SHARE].outcome, found[SHARE].seconds) != (None, None)
    assert (found[EMIT_DECODER].outcome, found[CLASSIFIER].state) == ("emitted", "current")
