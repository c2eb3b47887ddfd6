"""Progress of a build: every step is counted once, and no time is predicted without a measurement."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epbuild.engine.events import Completion
from epbuild.engine.scheduler import Cost
from epbuild.engine.tally import Tally


class Clock:
    """Clock that a test sets."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def measured(**seconds: float) -> dict[str, Cost]:
    return {action: Cost(value, measured=True) for action, value in seconds.items()}


def one_step_each(costs: dict[str, Cost]) -> dict[str, list[str]]:
    return {action: [action] for action in costs}


def test_each_pending_step_is_counted_once(clock: Clock) -> None:
    tally = Tally({"g": ["compile:a", "compile:b", "share:g"]}, measured(g=9), 1, clock)
    assert tally.end("emit:current", compiled=False) is None
    told = [tally.end(step, compiled=True) for step in ("compile:a", "compile:a", "compile:b", "share:g", "share:g")]
    assert [(one.done, one.total) if one else None for one in told] == [(1, 3), None, (2, 3), (3, 3), None]
    assert told[-2] == Completion(3, 3, 0.0)


def test_time_left_is_measured_work_divided_by_slots_minus_elapsed(clock: Clock) -> None:
    costs = measured(a=4, b=4, c=4, d=0)
    tally = Tally(one_step_each(costs), costs, 2, clock)
    assert tally.seconds_left() == 6
    tally.begin("a")
    tally.begin("b")
    clock.now = 1
    assert tally.seconds_left() == 5
    clock.now = 4
    assert tally.end("a", compiled=True) == Completion(1, 4, 4)  # c alone, which has not begun
    assert tally.end("b", compiled=True) == Completion(2, 4, 4)


def test_time_left_is_at_least_that_of_the_longest_action(clock: Clock) -> None:
    costs = measured(long=100, a=1, b=1)
    tally = Tally(one_step_each(costs), costs, 8, clock)
    assert tally.seconds_left() == 100
    tally.begin("long")
    clock.now = 30
    assert tally.seconds_left() == 70
    clock.now = 130
    assert tally.seconds_left() == pytest.approx(2 / 8, abs=1), "what takes longer than before is no reason for less than nothing"


def test_estimates_are_hidden_until_the_first_comparison_with_the_clock(clock: Clock) -> None:
    costs = {"a": Cost(2, measured=False), "b": Cost(4, measured=False), "c": Cost(10, measured=True)}
    tally = Tally(one_step_each(costs), costs, 1, clock)
    assert tally.seconds_left() is None
    tally.begin("a")
    clock.now = 6  # three times as long as guessed
    assert tally.end("a", compiled=True) == Completion(1, 3, 12 + 10)


def test_found_or_failed_action_does_not_adjust_other_estimates(clock: Clock) -> None:
    costs = {name: Cost(2, measured=False) for name in ("a", "b", "c")}
    tally = Tally(one_step_each(costs), costs, 1, clock)
    tally.begin("a")
    assert tally.end("a", compiled=False) == Completion(1, 3, None)


def test_measured_time_is_shown_once_all_estimates_are_finished(clock: Clock) -> None:
    costs = {"a": Cost(2, measured=False), "b": Cost(5, measured=True)}
    tally = Tally(one_step_each(costs), costs, 1, clock)
    tally.begin("a")
    assert tally.end("a", compiled=False) == Completion(1, 2, 5)


@given(
    st.lists(st.tuples(st.floats(0, 1e5), st.booleans(), st.integers(1, 3), st.booleans()), max_size=12),
    st.integers(1, 5),
    st.lists(st.floats(0, 1e5), min_size=40, max_size=40),
)
def test_count_rises_by_one_and_the_time_left_is_never_negative(
    actions: list[tuple[float, bool, int, bool]], jobs: int, waits: list[float]
) -> None:
    clock = Clock()
    costs = {str(number): Cost(seconds, known) for number, (seconds, known, _, _) in enumerate(actions)}
    steps = {str(number): [f"{number}.{step}" for step in range(count)] for number, (_, _, count, _) in enumerate(actions)}
    tally = Tally(steps, costs, jobs, clock)
    done, total = 0, sum(map(len, steps.values()))
    for number, (_, _, _, compiled) in enumerate(actions):
        tally.begin(str(number))
        for step in steps[str(number)]:
            clock.now += waits[done % len(waits)]
            told = tally.end(step, compiled=compiled)
            done += 1
            assert told is not None
            assert (told.done, told.total) == (done, total)
            assert told.seconds_left is None or told.seconds_left >= 0
    assert tally.seconds_left() == 0
