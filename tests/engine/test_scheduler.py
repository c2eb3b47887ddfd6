"""Scheduler: the right order, at most the allowed number at once, and an orderly end after every failure."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epbuild.core.errors import BuildError, EpbuildError, Problem
from epbuild.engine import scheduler as module
from epbuild.engine.loop import IdleActions, drive
from epbuild.engine.scheduler import Cost, Runnable, Scheduler, State

PATIENCE = 10
"""Timeout of a wait in seconds. It fails the test."""

ENDS = {State.DONE, State.FAILED, State.SKIPPED}
Needs = Mapping[str, Collection[str]]


def failure(action: str) -> BuildError:
    return BuildError(Problem("EPB401", f"{action} failed"))


def scheduled(
    needs: Needs, cost: Mapping[str, float] | None = None, memory: Mapping[str, int] | None = None, budget: int | None = None
) -> Scheduler:
    actions = (
        Runnable(action, before, Cost((cost or {}).get(action, 0.0), measured=True), (memory or {}).get(action, 0))
        for action, before in needs.items()
    )
    return Scheduler(actions, budget)


class Run:
    """Executor of one `drive`, with a record of calls and results. `allowed` has the actions that may fail."""

    def __init__(self, needs: Needs, *, cost: Mapping[str, float] | None = None, jobs: int = 2, keep_going: bool = False) -> None:
        self.scheduler = scheduled(needs, cost)
        self.jobs = jobs
        self.keep_going = keep_going
        self.cancelled = threading.Event()
        self.log: list[tuple[str, str]] = []
        self.failed: list[str] = []
        self.skipped: list[str] = []
        self.after_failure = threading.Event()
        self.allowed: set[str] = set()

    def execute(self, action: str) -> None:
        self.log.append(("start", action))
        self.perform(action)
        self.log.append(("end", action))

    def fail(self, action: str, error: EpbuildError) -> bool:
        self.failed.append(action)
        self.after_failure.set()
        return action in self.allowed

    def skip(self, action: str) -> None:
        self.skipped.append(action)

    def drive(
        self, perform: Callable[[str], None] = lambda action: None, idle: IdleActions | None = None, **options: float
    ) -> Run:
        self.perform = perform
        drive(self.scheduler, self, jobs=self.jobs, keep_going=self.keep_going, cancelled=self.cancelled, idle=idle, **options)
        return self

    @property
    def started(self) -> list[str]:
        return [action for what, action in self.log if what == "start"]

    def states(self, state: State) -> set[str]:
        return {action for action, its in self.scheduler.states.items() if its is state}


def test_action_starts_after_its_dependencies() -> None:
    needs = {"emit": ["share"], "share": ["prefill", "decode"], "decode": [], "prefill": []}
    log = Run(needs, jobs=4).drive().log
    assert set(log[:4]) == {(what, action) for what in ("start", "end") for action in ("prefill", "decode")}
    assert log[4:] == [("start", "share"), ("end", "share"), ("start", "emit"), ("end", "emit")]


def test_dependency_outside_the_build_is_not_awaited() -> None:
    assert Run({"emit": ["a result that is there already"]}).drive().states(State.DONE) == {"emit"}


def test_build_with_nothing_to_do_ends() -> None:
    assert Run({}).drive().log == []


@pytest.mark.parametrize("jobs", [1, 2, 3])
def test_exactly_the_requested_number_of_actions_runs_concurrently(jobs: int) -> None:
    together = threading.Barrier(jobs)
    running: list[str] = []
    seen: list[int] = []

    def perform(action: str) -> None:
        running.append(action)
        together.wait(PATIENCE)  # breaks, and fails the action, if fewer than `jobs` run at once
        seen.append(len(running))
        together.wait(PATIENCE)
        running.remove(action)

    run = Run({str(number): [] for number in range(6)}, jobs=jobs).drive(perform)
    assert run.states(State.DONE) == set("012345")
    assert seen == [jobs] * 6


def test_longest_action_starts_first() -> None:
    cost = {"short": 1.0, "long": 60.0, "middle": 7.5}
    assert Run(dict.fromkeys([*cost, "unknown"], ()), cost=cost, jobs=1).drive().started == ["long", "middle", "short", "unknown"]


def test_actions_of_equal_cost_keep_the_plan_order() -> None:
    names = ["zeta", "alpha", "omega", "beta", "gamma"]
    assert Run({**dict.fromkeys(names, ()), "last": ["zeta"]}, jobs=1).drive().started == [*names, "last"]


def test_failure_skips_all_dependents() -> None:
    needs = {"a": [], "b": ["a"], "c": ["b"], "d": ["b", "a"], "other": []}

    def perform(action: str) -> None:
        if action == "a":
            raise failure(action)

    run = Run(needs, jobs=1, keep_going=True).drive(perform)
    assert run.failed == ["a"]
    assert sorted(run.skipped) == ["b", "c", "d"]
    assert run.states(State.DONE) == {"other"}


def failing_beside_a_running_one(run: Run) -> Callable[[str], None]:
    """Return work in which `bad` fails once `running` runs. `running` ends once that failure was reported."""
    begun = threading.Event()

    def perform(action: str) -> None:
        if action == "bad":
            assert begun.wait(PATIENCE)
            raise failure(action)
        if action == "running":
            begun.set()
            assert run.after_failure.wait(PATIENCE)

    return perform


def test_failure_without_keep_going_finishes_running_actions_only() -> None:
    run = Run({"bad": [], "running": [], "ready": [], "after": ["running"]}, jobs=2)
    run.drive(failing_beside_a_running_one(run))
    assert run.states(State.DONE) == {"running"}
    assert set(run.started) == {"bad", "running"}
    assert sorted(run.skipped) == ["after", "ready"]


def test_failure_with_keep_going_stops_only_dependents() -> None:
    run = Run({"bad": [], "running": [], "ready": [], "after": ["running"], "lost": ["bad", "running"]}, keep_going=True)
    run.drive(failing_beside_a_running_one(run))
    assert run.states(State.DONE) == {"running", "ready", "after"}
    assert run.skipped == ["lost"]


def running_until_cancelled(run: Run, then: Callable[[], None]) -> Callable[[str], None]:
    """Return work in which `bad` calls `then` once `running` runs. `running` ends once it is canceled."""
    begun = threading.Event()

    def perform(action: str) -> None:
        if action == "bad":
            assert begun.wait(PATIENCE)
            then()
        begun.set()
        assert run.cancelled.wait(PATIENCE)

    return perform


THREE = {"bad": (), "running": (), "ready": ()}


def ended_cleanly(run: Run) -> bool:
    return run.cancelled.is_set() and ("end", "running") in run.log and "ready" not in run.started


def test_internal_error_stops_the_build_cleanly_and_is_raised() -> None:
    run = Run(THREE)

    def break_down() -> None:
        raise RuntimeError("a mistake in epbuild")

    with pytest.raises(RuntimeError, match="a mistake in epbuild"):
        run.drive(running_until_cancelled(run, break_down))
    assert ended_cleanly(run)


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Enable Ctrl-C as a terminal sends it, even if the tests run in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_cancels_running_actions_and_waits_for_their_end() -> None:
    run = Run(THREE)
    with pytest.raises(KeyboardInterrupt):
        run.drive(running_until_cancelled(run, lambda: signal.raise_signal(signal.SIGINT)))
    assert ended_cleanly(run)


class Unreadable(Run):
    """Run whose reader of events has disconnected."""

    def fail(self, action: str, error: EpbuildError) -> bool:
        raise BrokenPipeError


def test_vanished_event_reader_leaves_no_workers() -> None:
    run = Unreadable(THREE)

    def fail() -> None:
        raise failure("bad")

    perform = running_until_cancelled(run, fail)
    ended: list[str] = []

    def recorded(action: str) -> None:
        perform(action)
        ended.append(action)

    with pytest.raises(BrokenPipeError):
        run.drive(recorded)
    assert run.cancelled.is_set()
    assert ended == ["running"]


def test_allowed_failure_skips_only_its_dependents() -> None:
    run = Run({"bad": (), "after": ("bad",), "good": ()}, cost={"bad": 2.0}, jobs=1)
    run.allowed = {"bad"}

    def perform(action: str) -> None:
        if action == "bad":
            raise failure(action)

    run.drive(perform)
    assert (run.failed, run.skipped) == (["bad"], ["after"])
    assert ("end", "good") in run.log


def _begin(scheduler: Scheduler) -> None:
    assert scheduler.next() == "a"


def _finished(scheduler: Scheduler) -> None:
    _begin(scheduler)
    scheduler.finish("a")


def _failed(scheduler: Scheduler) -> None:
    _begin(scheduler)
    scheduler.fail("a")


@pytest.mark.parametrize(
    ("before", "change", "words"),
    [
        (lambda scheduler: None, lambda scheduler: scheduler.finish("a"), "a cannot go from ready to done"),
        (lambda scheduler: None, lambda scheduler: scheduler.fail("b"), "b cannot go from waiting to failed"),
        (_finished, lambda scheduler: scheduler.finish("a"), "a cannot go from done to done"),
        (_finished, lambda scheduler: scheduler.fail("a"), "a cannot go from done to failed"),
        (_failed, lambda scheduler: scheduler.finish("a"), "a cannot go from failed to done"),
        (_failed, lambda scheduler: scheduler.finish("b"), "b cannot go from skipped to done"),
    ],
)
def test_action_cannot_end_twice_or_before_it_runs(
    before: Callable[[Scheduler], None], change: Callable[[Scheduler], Any], words: str
) -> None:
    scheduler = scheduled({"a": [], "b": ["a"]})
    before(scheduler)
    with pytest.raises(ValueError, match=words):
        change(scheduler)


@st.composite
def graphs(draw: st.DrawFn) -> dict[str, list[str]]:
    size = draw(st.integers(0, 8))
    needs = {str(node): [str(need) for need in range(node) if draw(st.booleans())] for node in range(size)}
    return {node: needs[node] for node in draw(st.permutations(list(needs)))}


@given(needs=graphs(), jobs=st.integers(1, 4), keep_going=st.booleans(), data=st.data())
def test_every_action_of_any_graph_ends_once_and_after_its_dependencies(
    needs: dict[str, list[str]], jobs: int, keep_going: bool, data: st.DataObject
) -> None:
    bad = data.draw(st.sets(st.sampled_from(sorted(needs)))) if needs else set()

    def perform(action: str) -> None:
        if action in bad:
            raise failure(action)

    run = Run(needs, jobs=jobs, keep_going=keep_going).drive(perform)
    ended = [action for what, action in run.log if what == "end"]
    assert Counter([*ended, *run.failed, *run.skipped]) == Counter(list(needs))
    assert Counter([*ended, *run.failed]) == Counter(run.started)
    assert set(run.scheduler.states.values()) <= ENDS
    for action in run.started:
        before = run.log[: run.log.index(("start", action))]
        assert all(("end", need) in before for need in needs[action])
    if keep_going:
        lost = set(bad)
        for action in sorted(needs, key=int):
            lost |= {action} & {action for need in needs[action] if need in lost}
        assert set(ended) == set(needs) - lost


def chain(size: int) -> Needs:
    return {str(number): [str(number - 1)] if number else [] for number in range(size)}


def fan(size: int) -> Needs:
    return {"last": [str(number) for number in range(size)], **{str(number): [] for number in range(size)}}


def pairs(size: int) -> Needs:
    return {str(number): [str(number - 2)] if number > 1 else [] for number in range(size)}


def lines_of_work(needs: Needs, *, fail_first: bool) -> int:
    """Return the number of scheduler lines executed for a graph. A count does not depend on the speed of the machine."""
    count = 0

    def line(frame: FrameType, event: str, arg: Any) -> Any:
        nonlocal count
        count += event == "line"
        return line

    def call(frame: FrameType, event: str, arg: Any) -> Any:
        return line if frame.f_code.co_filename == module.__file__ else None

    before = sys.gettrace()
    sys.settrace(call)
    try:
        scheduler = scheduled(needs)
        while (action := scheduler.next()) is not None:
            if fail_first:
                scheduler.fail(action)
                scheduler.abandon()
            else:
                scheduler.finish(action)
    finally:
        sys.settrace(before)
    assert set(scheduler.states.values()) <= ENDS
    return count


@pytest.mark.parametrize("fail_first", [False, True])
@pytest.mark.parametrize("shape", [chain, fan, pairs])
def test_scheduling_work_is_linear_in_the_number_of_actions(shape: Callable[[int], Needs], fail_first: bool) -> None:
    assert lines_of_work(shape(5000), fail_first=fail_first) < 2.2 * lines_of_work(shape(2500), fail_first=fail_first)


def started(scheduler: Scheduler) -> list[str]:
    """Start every action that is ready, and return them."""
    actions = []
    while (action := scheduler.next()) is not None:
        actions.append(action)
    return actions


def test_actions_share_the_available_memory() -> None:
    scheduler = scheduled({"a": (), "b": (), "c": ()}, {}, {"a": 6, "b": 4, "c": 4}, budget=10)
    assert started(scheduler) == ["a", "b"]
    scheduler.finish("a")
    assert started(scheduler) == ["c"]


def test_action_larger_than_the_budget_runs_alone() -> None:
    scheduler = scheduled({"huge": (), "small": (), "free": ()}, {"huge": 1.0}, {"huge": 99, "small": 1}, budget=10)
    assert started(scheduler) == ["huge", "free"]
    scheduler.finish("huge")
    assert started(scheduler) == ["small"]


def test_small_actions_do_not_delay_a_big_action_for_long() -> None:
    small = [f"small-{number}" for number in range(50)]
    needs: Needs = dict.fromkeys(("first", "big", *small), ())
    memory = {"first": 5, "big": 10, **dict.fromkeys(small, 1)}
    scheduler = scheduled(needs, {"first": 2.0, "big": 1.0}, memory, budget=10)
    running = [scheduler.next()]
    before = 0
    while "big" not in running:
        action = scheduler.next()
        if action is None:
            scheduler.finish(str(running.pop(0)))
        else:
            running.append(action)
            before += action != "big"
    assert 0 < before < len(small)
    assert running == ["big"]


@given(
    memory=st.lists(st.integers(0, 20), min_size=1, max_size=20),
    budget=st.integers(1, 20),
    order=st.randoms(use_true_random=False),
)
def test_every_action_runs_and_the_budget_is_never_exceeded(memory: list[int], budget: int, order: Any) -> None:
    sizes = {str(number): size for number, size in enumerate(memory)}
    scheduler = scheduled(dict.fromkeys(sizes, ()), {action: order.random() for action in sizes}, sizes, budget)
    running: list[str] = []
    while any(state not in ENDS for state in scheduler.states.values()):
        running += started(scheduler)
        taken = [sizes[action] for action in running if sizes[action]]
        assert len(taken) <= 1 or sum(taken) <= budget
        assert running
        scheduler.finish(running.pop(order.randrange(len(running))))


def test_slot_yielded_by_an_action_is_reused_at_once() -> None:
    idle = IdleActions()
    done = threading.Event()

    def perform(action: str) -> None:
        if action == "waits":
            time.sleep(0.1)  # until the loop finds no slot and waits for one
            idle.add(action)
            assert done.wait(PATIENCE)
            idle.discard(action)
        else:
            done.set()

    run = Run({"waits": (), "goes on": ()}, cost={"waits": 1.0}, jobs=1).drive(
        perform, idle, poll_seconds=10 * PATIENCE
    )  # no other check happens by chance
    assert set(run.scheduler.states.values()) == {State.DONE}


@given(storing=st.lists(st.booleans(), max_size=8), jobs=st.integers(1, 3))
def test_yielded_slots_never_exceed_the_number_of_jobs(storing: list[bool], jobs: int) -> None:
    idle, lock = IdleActions(), threading.Lock()
    at_work: set[str] = set()
    most = 0

    def perform(action: str) -> None:
        nonlocal most
        with lock:
            at_work.add(action)
            most = max(most, len(at_work))
        time.sleep(0.001)
        with lock:
            at_work.discard(action)
        if storing[int(action)]:
            idle.add(action)
            time.sleep(0.002)
            idle.discard(action)

    run = Run({str(number): () for number in range(len(storing))}, jobs=jobs).drive(perform, idle)
    assert most <= jobs
    assert len(idle) == 0
    assert all(state is State.DONE for state in run.scheduler.states.values())
