"""Result of a build, collected from its events: what ran, what failed, and what was only allowed to fail."""

from __future__ import annotations

import pytest

from epbuild.core.errors import Problem
from epbuild.engine.events import Event, EventList, RunFinished, StepFailed, StepFinished, StepsCurrent, Warned
from epbuild.session.build_result import BuildFailed, BuildResult, ResultCollector
from epbuild.session.events import StepCompared

BROKEN = Problem("EPB401", "the compiler failed")
DIFFERENT = Problem("EPB652", "a second compile produced other bytes")


def ended(exit_code: int) -> RunFinished:
    return RunFinished(exit_code=exit_code, seconds=1.0, built=1, restored=0, current=2, failed=0, skipped=0)


def collect(*events: Event) -> BuildResult:
    collector = ResultCollector(EventList())
    for event in events:
        collector.report(event)
    return collector.result()


def test_outcomes_of_single_and_batched_steps_are_in_one_table() -> None:
    result = collect(StepsCurrent(("a", "b")), StepFinished("c", "built", 1.0), ended(0))
    assert result.outcomes == {"a": "current", "b": "current", "c": "built"}


def test_every_event_is_passed_on_one_step_at_a_time() -> None:
    events = EventList()
    ResultCollector(events).report(StepsCurrent(("a", "b")))
    assert [event.step for event in events if isinstance(event, StepFinished)] == ["a", "b"]


def test_a_failed_step_raises_its_problems_with_all_outcomes() -> None:
    with pytest.raises(BuildFailed) as caught:
        collect(StepFinished("a", "built", 1.0), StepFailed("b", (BROKEN,)), ended(1))
    assert caught.value.problems == (BROKEN,)
    assert caught.value.result.outcomes == {"a": "built", "b": "failed"}


def test_an_allowed_failure_is_listed_but_does_not_raise() -> None:
    result = collect(StepFailed("b", (BROKEN,), allowed=True), ended(0))
    assert result.outcomes == {"b": "allowed"}
    assert result.failures == {"b": (BROKEN,)}


def test_a_different_rebuild_raises_its_problems() -> None:
    compared = StepCompared("a", "different", 1.0, 2, 300, problems=(DIFFERENT,))
    with pytest.raises(BuildFailed) as caught:
        collect(StepFinished("a", "built", 1.0), compared, ended(1))
    assert caught.value.problems == (DIFFERENT,)


def test_warnings_are_kept_in_order() -> None:
    assert collect(Warned(BROKEN), Warned(DIFFERENT), ended(0)).warnings == (BROKEN, DIFFERENT)


def test_a_build_that_never_ended_is_an_internal_error() -> None:
    with pytest.raises(AssertionError, match="RunFinished"):
        collect(StepFinished("a", "built", 1.0))
