"""Coverage of a recipe's models: a row for each, despite failures of others, and nothing is published."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from epbuild.commands.run import cover
from epbuild.core.errors import Problem, StepId
from epbuild.engine.events import EventList, RunFinished
from epbuild.session.coverage import CoveredModels, find_covered_models, list_all_models
from epbuild.session.events import ModelCovered
from epbuild.session.planning import read_plan
from epbuild.toolchain.process import Ending
from tests.support.fake_builds import CLASSIFIER, LET_THE_CPU, Workshop


@pytest.fixture
def workshop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workshop:
    return Workshop(tmp_path / "checkout", tmp_path / "cache", monkeypatch)


def rows(workshop: Workshop, *selection: str) -> list[ModelCovered]:
    events = EventList()
    cover(replace(workshop.request, selection=selection), events)
    return [event for event in events if isinstance(event, ModelCovered)]


def test_every_model_has_a_row_and_no_output_is_emitted(workshop: Workshop) -> None:
    workshop.write_recipe((LET_THE_CPU, ""))
    found = rows(workshop)
    assert [(row.model, row.target, row.outcome, row.ep_context_nodes) for row in found] == [
        ("prefill", "npu", "partial", 1),
        ("decode", "npu", "partial", 1),
        ("classifier", "plain", "partial", 1),
    ]
    [classifier] = [row.outside for row in found if row.step == CLASSIFIER]
    assert classifier is not None
    assert (classifier.count, classifier.operators) == (1, {"Relu": 1})
    assert not (workshop.folder / "dist").exists()


def test_known_coverage_needs_no_compile(workshop: Workshop) -> None:
    before = rows(workshop)
    workshop.compiled.clear()
    assert rows(workshop) == before
    assert workshop.compiled == []


def test_only_selected_steps_are_compiled(workshop: Workshop) -> None:
    assert [row.model for row in rows(workshop, "compile:classifier/*")] == ["classifier"]
    assert workshop.compiled == ["classifier"]


def test_a_failed_model_and_its_sharers_have_the_reason(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    def worker(command: object, folder: Path, log: Path, **options: Any) -> Ending:
        if not (folder / "in" / "prefill").exists():
            return workshop.worker(command, folder, log, **options)
        log.write_text("", encoding="utf-8")
        failed = {"event": "failed", "kind": "error", "type": "Fail", "message": "no such thing"}
        return Ending("exited", 1, ({"event": "member_started", "member": "prefill"}, failed), ())

    workshop.run_worker = worker
    prefill, decode, classifier = rows(workshop)
    assert (prefill.outcome, prefill.reason) == ("failed", "no such thing.")
    assert (decode.outcome, decode.reason) == ("failed", "it shares weights with 'prefill', which failed: no such thing.")
    assert classifier.outcome == "partial"


def test_a_build_reports_the_coverage_of_newly_compiled_models(workshop: Workshop) -> None:
    workshop.build()
    told = [event for event in workshop.events if isinstance(event, ModelCovered)]
    assert [row.model for row in told] == ["prefill", "decode", "classifier"]
    assert isinstance(workshop.events[-1], RunFinished)
    workshop.build()
    assert not any(isinstance(event, ModelCovered) for event in workshop.events)


def test_a_build_reports_the_coverage_of_models_restored_into_a_checkout(workshop: Workshop) -> None:
    workshop.build()
    shutil.rmtree(workshop.folder / ".epbuild")
    workshop.events.clear()
    workshop.build()
    assert workshop.compiled == []
    assert [event.model for event in workshop.events if isinstance(event, ModelCovered)] == ["prefill", "decode", "classifier"]


def test_a_failed_action_is_the_reason_of_all_its_models(workshop: Workshop) -> None:
    _, plan = read_plan(workshop.request)
    broken, *_ = plan.session_groups
    problem = Problem("EPB401", "the compiler failed", StepId(plan.session_groups[broken].steps[0]), reason="no memory")
    assert {row.outcome for row in list_all_models(plan, {}, {})} == {"not built"}
    assert find_covered_models(plan, {}, {}, plan.session_groups) == []
    first, second = find_covered_models(plan, {}, {broken: [problem]}, plan.session_groups)
    assert (first.outcome, first.reason) == ("failed", "no memory")
    assert (second.outcome, second.reason) == ("failed", "it shares weights with 'prefill', which failed: no memory")
    assert CoveredModels((first, second)).summarize().head == "coverage: 2 failed"
