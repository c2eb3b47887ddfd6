"""The recording of a build: its events with their times, as a `Progress`.

While a build runs, an event costs a place in a list; what they come to is worked out once, at the end.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from epbuild.cache.workspace import Workspace
from epbuild.core.errors import EpbuildError
from epbuild.engine.events import Event, Progress, StepOutput, StepsCurrent, one_by_one
from epbuild.session.events import ToolchainInstalling

if TYPE_CHECKING:
    from epbuild.commands.reporting.build_record import BuildRecord
    from epbuild.session.request import Request
    from epbuild.survey.status import Survey

_INTERRUPTED = 130
_MANY = (StepOutput, StepsCurrent, ToolchainInstalling)


class Recording:
    """A `Progress` that passes all events on, and keeps those that a record of the build is made of."""

    def __init__(self, request: Request, progress: Progress) -> None:
        self.request = request
        self.began = time.time()
        self.events: list[tuple[float, Event]] = []
        """Each with the seconds since the build began."""
        self.found: Survey | None = None
        """What there was to do; None until that is known."""
        self.seconds = 0.0
        self.exit_code = 0
        self._workspace: Workspace | None = None
        self._begin = time.monotonic()
        self._progress = one_by_one(progress)

    def report(self, event: Event, /) -> None:
        """Keep an event, unless it is one of many, or of steps that were not to do."""
        if not isinstance(event, _MANY):
            self.events.append((time.monotonic() - self._begin, event))
        self._progress.report(event)

    def expect(self, found: Survey, workspace: Workspace) -> None:
        """Take note of what there is to do, and of where that is remembered."""
        self.found, self._workspace = found, workspace

    def end(self, exit_code: int) -> None:
        self.exit_code, self.seconds = exit_code, time.monotonic() - self._begin
        if self.found is None or self._workspace is None or not self.found.todo:
            return
        from epbuild.commands.reporting.build_record import BuildRecords

        with suppress(OSError):  # it is only remembered
            BuildRecords(self._workspace.directory).put(self.record())

    def record(self) -> BuildRecord:
        """Return the record of the build. Raises ValueError if it ended before it knew what to do."""
        from epbuild.commands.reporting.recorded import record_of

        return record_of(
            self.found, self.events, began=self.began, seconds=self.seconds, jobs=self.request.jobs, exit_code=self.exit_code
        )


@contextmanager
def recorded(request: Request, progress: Progress) -> Iterator[Recording]:
    """Record a build for the length of a `with` block, however it ends."""
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
