"""The commands `run`, `coverage` and `measure`: build out-of-date steps."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from msgspec.structs import replace

from epbuild.commands.reporting.recording import Recording, recorded, sum_up
from epbuild.core.errors import Cancelled
from epbuild.engine.events import Progress, RunStarted, Serialized, Warned
from epbuild.engine.ledger import Ledger
from epbuild.session.build_result import ResultCollector
from epbuild.session.coverage import CoveredModels
from epbuild.session.events import ModelCovered
from epbuild.session.planning import ModelFetcher
from epbuild.session.request import Request
from epbuild.session.session import open_session
from epbuild.session.snapshot import read_last, read_survey
from epbuild.survey.snapshot import Snapshot

if TYPE_CHECKING:
    from epbuild.commands.reporting.values import MeasuredModels


def run(
    request: Request, progress: Progress, cancelled: threading.Event | None = None, fetcher: ModelFetcher | None = None
) -> int:
    """Build the out-of-date steps, report every event to `progress`, and return the exit code. `fetcher` fetches remote models.

    Raises EpbuildError if the build could not start, and KeyboardInterrupt if the user stopped it. Failed steps are reported
    as events.
    """
    begin = time.monotonic()
    with recorded(request, progress) as recording:
        last = read_last(request, refresh=True)
        if last is not None:
            code = _report_unchanged(request, recording, last, begin)
        else:
            code = _build(request, recording, cancelled or threading.Event(), fetcher)
        recording.end(code)
    return code


def cover(request: Request, progress: Progress, cancelled: threading.Event | None = None) -> CoveredModels:
    """Compile the out-of-date steps without emitting outputs, and return the coverage of each model.

    If a model fails or does not meet `expect`, the other models are still compiled. Raises the same errors as `run`.
    """
    request = replace(request, emits=False, keep_going=True, every_model=True)
    # The recording is not ended, so no build record is written: `report` describes the last build, and this command builds no outputs.
    recording = Recording(request, progress)
    _build(request, recording, cancelled or threading.Event(), None)
    return CoveredModels(event for _, event in recording.events if isinstance(event, ModelCovered))


def measure(request: Request, progress: Progress, cancelled: threading.Event | None = None) -> MeasuredModels:
    """Measure the compiled models without emitting outputs, and return new and current figures.

    If a model fails or exceeds a limit, the other models are still measured, and BuildFailed is raised at the end.
    """
    from epbuild.commands.reporting.report import report  # slow to load, and no other function needs it
    from epbuild.commands.reporting.values import MeasuredModels

    request = replace(request, selection=request.selection or ("measure:*",), emits=False, keep_going=True)
    collector = ResultCollector(progress)
    run(request, collector, cancelled)
    collector.result()
    return MeasuredModels(report(request).measurements)


def _report_unchanged(request: Request, progress: Progress, last: Snapshot, begin: float) -> int:
    """Report that all steps are current, because nothing has changed. Return the exit code."""
    found = read_survey(last)
    for warning in found.plan.warnings:
        progress.report(Warned(warning))
    steps = [status.step.id for status in found.steps()]
    progress.report(RunStarted(last.name, len(steps), 0, keep_going=request.keep_going))
    ledger = Ledger({}, progress)
    ledger.end_current(steps)
    progress.report(ledger.finished(time.monotonic() - begin))
    return 0


def _build(request: Request, recording: Recording, cancelled: threading.Event, fetcher: ModelFetcher | None) -> int:
    """Build the out-of-date steps, and return the exit code."""
    try:
        with open_session(request, Serialized(recording), cancelled, builds=True, fetcher=fetcher) as session:
            found = session.survey()
            recording.expect(found, session.workspace)
            actions = session.build(found)
            code, outputs = session.finish(found, actions)
            if found.todo and request.is_whole and request.shard is None:
                recording.totals = sum_up(actions.list_models(), outputs.values(), found.plan, actions.results)
            return code
    except Cancelled as error:
        raise KeyboardInterrupt from error
