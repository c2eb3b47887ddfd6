"""Recording of a build: events with their times, and the `BuildRecord`.

During a build, events are only collected. The record is computed once, at the end. While an action runs, it has a slot: a
number that no other running action has. The last step of an action spans the whole action. Every other step lasts until the
next step of the action begins.
"""

from __future__ import annotations

import heapq
import os
import platform
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from msgspec.structs import asdict

from epbuild import __version__
from epbuild.cache.state import OutputRecord
from epbuild.cache.workspace import Workspace
from epbuild.commands.reporting.build_record import (
    FORMAT,
    BuildRecord,
    BuildRecords,
    ReportedChange,
    ReportedError,
    ReportedPastFigures,
    ReportedPublication,
    ReportedSpan,
    ReportedTotals,
    ReportedTraffic,
    RunOutcome,
    StepRun,
)
from epbuild.core.errors import EpbuildError, Problem
from epbuild.engine.events import (
    Event,
    Progress,
    RunFinished,
    RunStarted,
    StepAdvanced,
    StepFailed,
    StepFinished,
    StepOutput,
    StepsCurrent,
    StepStarted,
    forward_one_by_one,
)
from epbuild.plan.measuring import ModelMeasurement
from epbuild.plan.result import ActionResult, MeasurementResult, VerificationResult
from epbuild.plan.verification import Verification
from epbuild.publish.sizes import OutputCompared
from epbuild.recipe.model import MeasuredOn
from epbuild.session.coverage import find_worst_figures
from epbuild.session.events import (
    ComparisonStarted,
    Fetched,
    Fetching,
    ModelCovered,
    OutputRemoved,
    RemoteCacheUsed,
    ResultsShared,
    ToolchainFailed,
    ToolchainInstalling,
    ToolchainReady,
    ToolchainStarted,
)

if TYPE_CHECKING:
    from epbuild.plan.steps import Action, Plan
    from epbuild.session.request import Request
    from epbuild.survey.status import Survey


_INTERRUPTED = 130
_FREQUENT_EVENTS = (StepAdvanced, StepOutput, StepsCurrent, ToolchainInstalling)


class Recording:
    """Receiver that forwards all events, and stores the events that a build record needs."""

    def __init__(self, request: Request, progress: Progress) -> None:
        self.request = request
        self.began = time.time()
        self.events: list[tuple[float, Event]] = []
        """Events, with the seconds since the build's start."""
        self.found: Survey | None = None
        """Survey of the build, or None before `expect` is called."""
        self.seconds = 0.0
        self.exit_code = 0
        self.totals: ReportedTotals | None = None
        """State at the end of the build, or None if the build has not ended or was for a part of the recipe."""
        self._workspace: Workspace | None = None
        self._begin = time.monotonic()
        self._progress = forward_one_by_one(progress)

    def report(self, event: Event, /) -> None:
        """Store and forward an event. Frequent events and events of current steps are only forwarded."""
        if not isinstance(event, _FREQUENT_EVENTS):
            self.events.append((time.monotonic() - self._begin, event))
        self._progress.report(event)

    def expect(self, found: Survey, workspace: Workspace) -> None:
        """Set the survey of the build, and the workspace to write the record to."""
        self.found, self._workspace = found, workspace

    def end(self, exit_code: int) -> None:
        """End the recording, and write the record if a step was out of date."""
        self.exit_code, self.seconds = exit_code, time.monotonic() - self._begin
        if self.found is None or self._workspace is None or not self.found.todo:
            return
        with suppress(OSError):  # A failure to write the record must not fail the build.
            BuildRecords(self._workspace.directory).put(self.record())

    def record(self) -> BuildRecord:
        """Return the record of the build. Raises ValueError if the build ended before its plan was known."""
        if self.found is None:
            raise ValueError("the build ended before its plan was known")
        builder = _RecordBuilder(self.found)
        for at, event in self.events:
            builder.add(at, event)
        builder.stop(self.seconds)
        started = next((event for _, event in self.events if isinstance(event, RunStarted)), None)
        finished = next((event for _, event in self.events if isinstance(event, RunFinished)), None)
        return BuildRecord(
            format=FORMAT,
            epbuild=__version__,
            recipe=self.found.configuration.recipe,
            configuration=self.found.configuration.ident,
            began=round(self.began, 3),
            seconds=round(self.seconds if finished is None else finished.seconds, 3),
            exit_code=self.exit_code,
            machine=platform.node(),
            process=os.getpid(),
            jobs=self.request.jobs,
            steps=started.steps if started is not None else len(self.found.plan.steps),
            todo=started.todo if started is not None else 0,
            runs=tuple(builder.runs.values()),
            spans=tuple(builder.spans),
            published=tuple(builder.published),
            remote=tuple(builder.remote),
            totals=self.totals,
        )


def sum_up(
    rows: Iterable[ModelCovered], outputs: Iterable[OutputRecord], plan: Plan, results: Mapping[str, ActionResult]
) -> ReportedTotals:
    """Return the totals of the coverage of all models, the last files of all outputs, and the figures in the results of actions."""
    covered = tuple(rows)
    return ReportedTotals(
        size=sum(int(file["size"]) for output in outputs for file in output.files.values()),
        coverage=Counter(row.outcome for row in covered),
        accuracy=find_worst_figures(row.accuracy for row in covered if row.accuracy is not None),
        figures=tuple(
            row for ident, action in plan.actions.items() if ident in results for row in _list_figures(action, results[ident])
        ),
    )


def _list_figures(action: Action, result: ActionResult) -> Iterator[ReportedPastFigures]:
    """Yield the measured figures or the task metrics of each model of an action."""
    match action, result:
        case ModelMeasurement(), MeasurementResult():
            for model in result.models:
                yield ReportedPastFigures(
                    "measurement", action.group, action.target.name, model.member, model.figures, model.on, model.device
                )
        case Verification(), VerificationResult():
            for name in dict.fromkeys(row.member for row in result.metrics):
                figures = {row.name: row.compiled for row in result.metrics if row.member == name}
                device = next((row.command_device for row in result.figures if row.member == name), None)
                on: MeasuredOn | None = "device" if device is not None or action.is_on_real_device else None
                yield ReportedPastFigures("metrics", action.group, action.target.name, name, figures, on, device)


@contextmanager
def recorded(request: Request, progress: Progress) -> Iterator[Recording]:
    """Record the build that runs in a `with` block, even if the build fails or is interrupted."""
    recording = Recording(request, progress)
    try:
        yield recording
    except KeyboardInterrupt:
        recording.end(_INTERRUPTED)
        raise
    except EpbuildError as error:
        recording.end(error.exit_code)
        raise
    except BaseException:
        recording.end(1)
        raise


@dataclass
class _Running:
    """Action that is running."""

    place: int
    begun: float
    phases: dict[str, list[tuple[str, float]]] = field(default_factory=dict)
    """Phases of each step with their start times, in the order in which the steps began."""

    def interval(self, step: str, ended: float) -> tuple[float, float] | None:
        """Return the start and the end of a step, or None if the step has not begun."""
        if step not in self.phases:
            return None
        began = self.phases[step][0][1]
        later = (phases[0][1] for phases in self.phases.values() if phases[0][1] > began)
        return began, min(later, default=ended)


class _RecordBuilder:
    """Builder of the parts of a build record. It receives the build's events in order."""

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
        """Unfinished steps of each running action."""
        self._free: list[int] = []
        self._open: dict[tuple[str, str], float] = {}
        """Start of each unfinished span, by kind and name."""
        self._over = False

    def add(self, at: float, event: Event) -> None:
        at = round(at, 3)
        match event:
            case StepStarted(step, doing) if not self._over:
                self._begin(at, step, doing)
            case StepFinished(step, outcome, seconds) if not self._over:
                self._end(at, step, outcome, seconds, event)
            case StepFailed(step, problems, allowed=allowed, seconds=seconds) if not self._over:
                errors = tuple(report_error(problem, step) for problem in problems)
                self._end(at, step, "allowed" if allowed else "failed", seconds, errors=errors)
            case ComparisonStarted() | RunFinished():
                self._over = True
            case ToolchainStarted(name):
                self._open.setdefault(("toolchain", name), at)
            case ToolchainReady(name, seconds=seconds):
                if ("toolchain", name) in self._open:
                    self._open["toolchain", name] = max(0.0, round(at - seconds, 3))
                self._close(at, "toolchain", name)
            case ToolchainFailed(name):
                self._close(at, "toolchain", name, failed=True)
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
        """Mark all unfinished steps and spans as interrupted."""
        at = round(at, 3)
        for action in list(self._running):
            for step in list(self._left[action]):
                if step in self._running[action].phases or step == action:
                    self._end(at, step, "interrupted", at - self._running[action].begun if step == action else 0.0)
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


def report_error(problem: Problem, step: str) -> ReportedError:
    """Convert a problem of a step to a `ReportedError`."""
    where = problem.where if isinstance(problem.where, str) and problem.where != step else None
    return ReportedError(problem.code, problem.message, problem.reason, problem.hint, where)
