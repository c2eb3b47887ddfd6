"""`BuildRecord` from the events of a build.

An action has a place, a number among the actions that run at once, from its first event to its last. Its last step spans all of it; each
other step lasts until the next of the same action begins.
"""

from __future__ import annotations

import heapq
import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from msgspec.structs import asdict

from epbuild import __version__
from epbuild.commands.reporting.build_record import (
    FORMAT,
    BuildRecord,
    ReportedChange,
    ReportedError,
    ReportedPublication,
    ReportedSpan,
    ReportedTraffic,
    RunOutcome,
    StepRun,
)
from epbuild.core.errors import Problem
from epbuild.engine.events import Event, RunFinished, RunStarted, StepFailed, StepFinished, StepStarted
from epbuild.publish.events import OutputCompared
from epbuild.session.events import (
    ComparisonStarted,
    Fetched,
    Fetching,
    OutputRemoved,
    RemoteCacheUsed,
    ResultsShared,
    ToolchainFailed,
    ToolchainReady,
    ToolchainStarted,
)

if TYPE_CHECKING:
    from epbuild.survey.status import Survey


@dataclass
class _Running:
    """An action at work."""

    place: int
    begun: float
    phases: dict[str, list[tuple[str, float]]] = field(default_factory=dict)
    """What was done for each of its steps, and when each began, in the order of the steps' beginnings."""

    def interval(self, step: str, ended: float) -> tuple[float, float] | None:
        """When a step began and ended, if it has begun."""
        if step not in self.phases:
            return None
        began = self.phases[step][0][1]
        later = (phases[0][1] for phases in self.phases.values() if phases[0][1] > began)
        return began, min(later, default=ended)


def record_of(
    found: Survey | None,
    events: Sequence[tuple[float, Event]],
    *,
    began: float,
    seconds: float,
    jobs: int,
    exit_code: int,
) -> BuildRecord:
    """Return the record of a build that found this to do, from its events with the seconds at which they happened.

    `began` is in seconds since 1970, `seconds` how long it took. Raises ValueError if it ended before it knew what to do.
    """
    if found is None:
        raise ValueError("it is not known what there was to do")
    making = _RecordMaking(found)
    for at, event in events:
        making.take(at, event)
    making.stop(seconds)
    steps = next((event for _, event in events if isinstance(event, RunStarted)), None)
    finished = next((event for _, event in events if isinstance(event, RunFinished)), None)
    return BuildRecord(
        format=FORMAT,
        epbuild=__version__,
        recipe=found.configuration.recipe,
        configuration=found.configuration.ident,
        began=round(began, 3),
        seconds=round(seconds if finished is None else finished.seconds, 3),
        exit_code=exit_code,
        machine=platform.node(),
        process=os.getpid(),
        jobs=jobs,
        steps=steps.steps if steps is not None else len(found.plan.steps),
        todo=steps.todo if steps is not None else 0,
        runs=tuple(making.runs.values()),
        spans=tuple(making.spans),
        published=tuple(making.published),
        remote=tuple(making.remote),
    )


class _RecordMaking:
    """Takes the events of a build, in order."""

    def __init__(self, found: Survey) -> None:
        self.runs: dict[str, StepRun] = {}
        self.spans: list[ReportedSpan] = []
        self.published: list[ReportedPublication] = []
        self.remote: list[ReportedTraffic] = []
        self._found = found
        self._steps: dict[str, list[str]] = {}
        self._action = {step.id: step.action for step in found.plan.steps}
        for step in found.plan.steps:
            self._steps.setdefault(step.action, []).append(step.id)
        self._running: dict[str, _Running] = {}
        self._left: dict[str, set[str]] = {}
        """The steps of each running action that have not ended."""
        self._free: list[int] = []
        self._open: dict[tuple[str, str], float] = {}
        """When each span began that has not ended, by kind and name."""
        self._over = False

    def take(self, at: float, event: Event) -> None:
        at = round(at, 3)
        match event:
            case StepStarted(step, doing) if not self._over:
                self._begin(at, step, doing)
            case StepFinished(step, outcome, seconds) if not self._over:
                self._end(at, step, outcome, seconds, event)
            case StepFailed(step, problems, allowed=allowed) if not self._over:
                errors = tuple(error_of(problem, step) for problem in problems)
                self._end(at, step, "allowed" if allowed else "failed", 0.0, errors=errors)
            case ComparisonStarted() | RunFinished():
                self._over = True
            case ToolchainStarted(name):
                self._open.setdefault(("toolchain", name), at)
            case ToolchainReady(name) | ToolchainFailed(name):
                self._close(at, "toolchain", name, failed=isinstance(event, ToolchainFailed))
            case Fetching(name):
                self._open.setdefault(("fetch", name), at)
            case Fetched(name):
                self._close(at, "fetch", name)
            case ResultsShared(remote, done, total):
                self._open.setdefault(("upload", remote), at)
                if done == total:
                    self._close(at, "upload", remote)
            case OutputCompared(step, directory, before, after, files):
                changes = tuple(ReportedChange(file.path, file.before, file.after) for file in files)
                self.published.append(ReportedPublication(step, directory, before, after, changes))
            case OutputRemoved(step, directory, size=size):
                self.published.append(ReportedPublication(step, directory, size, None, ()))
            case RemoteCacheUsed():
                self.remote.append(ReportedTraffic(**asdict(event)))

    def stop(self, at: float) -> None:
        """Nothing goes on any more."""
        at = round(at, 3)
        for action in list(self._running):
            for step in list(self._left[action]):
                if step in self._running[action].phases or step == action:
                    self._end(at, step, "interrupted", 0.0)
        for kind, name in list(self._open):
            self._close(at, kind, name, failed=True)

    def _begin(self, at: float, step: str, doing: str) -> None:
        action = self._action.get(step, step)
        if action not in self._running:
            place = heapq.heappop(self._free) if self._free else len(self._running)
            self._running[action] = _Running(place, at)
            self._left[action] = set(self._steps.get(action, (action,)))
        self._running[action].phases.setdefault(step, []).append((doing, at))

    def _end(
        self,
        at: float,
        step: str,
        outcome: RunOutcome,
        seconds: float,
        event: StepFinished | None = None,
        errors: Sequence[ReportedError] = (),
    ) -> None:
        action = self._action.get(step, step)
        running, status = self._running.get(action), self._found.actions.get(action)
        interval = None
        if running is not None:
            interval = (running.begun, at) if step == action and outcome != "skipped" else running.interval(step, at)
        self.runs[step] = StepRun(
            step=step,
            outcome=outcome,
            seconds=round(seconds, 3),
            started=interval[0] if interval else None,
            ended=interval[1] if interval else None,
            worker=running.place if running is not None and interval else None,
            machine=event.machine if event is not None else None,
            origin=event.from_ if event is not None else None,
            was=status.state if status is not None else None,
            because=status.reasons if status is not None else (),
            key=status.key if status is not None else None,
            size=event.size if event is not None else None,
            memory=event.memory if event is not None else None,
            errors=tuple(errors),
            phases=tuple(running.phases.get(step, ())) if running is not None else (),
        )
        if running is not None:
            self._left[action].discard(step)
            if not self._left[action]:
                heapq.heappush(self._free, self._running.pop(action).place)

    def _close(self, at: float, kind: str, name: str, *, failed: bool = False) -> None:
        began = self._open.pop((kind, name), None)
        if began is not None:
            self.spans.append(ReportedSpan(kind, name, began, at, failed))  # type: ignore[arg-type]


def error_of(problem: Problem, step: str) -> ReportedError:
    """A problem of a step, as reports have it."""
    where = problem.where if isinstance(problem.where, str) and problem.where != step else None
    return ReportedError(problem.code, problem.message, problem.reason, problem.hint, where)
