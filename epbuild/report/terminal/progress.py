"""Progress of a build: live rows on a terminal, or plain lines elsewhere."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING

from msgspec.structs import replace

from epbuild.commands.reporting.failures import FailureList, ReportedFailure
from epbuild.core.errors import Position, Problem
from epbuild.core.shown import escape_sequences
from epbuild.core.units import format_count
from epbuild.engine.events import (
    Completion,
    DiskNeeded,
    Event,
    RunFinished,
    RunStarted,
    StepAdvanced,
    StepFailed,
    StepFinished,
    StepOutput,
    StepStarted,
    Warned,
)
from epbuild.report.formatting import format_disk, format_size, shorten_list
from epbuild.report.listeners import FILES, HEARTBEAT, Listener, format_bytes, format_rest
from epbuild.report.terminal.changes import ChangeReport
from epbuild.report.terminal.coverage import CoverageList, CoverageProgress
from epbuild.report.terminal.event_lines import (
    format_comparison,
    format_remote,
    format_summary,
    format_time_left,
    format_upload,
    format_waiting,
    list_end_lines,
    paint_label,
)
from epbuild.report.terminal.failures import format_failures
from epbuild.report.terminal.problems import ProblemWriter
from epbuild.report.terminal.screen import has_colors, is_github_actions, is_screen, print_line
from epbuild.session.events import (
    ComparisonFinished,
    ComparisonStarted,
    Fetched,
    Fetching,
    FilesChanged,
    Hashed,
    Hashing,
    OutputRemoved,
    RemoteCacheUsed,
    ResultsShared,
    StepCompared,
    ToolchainFailed,
    ToolchainInstalling,
    ToolchainLocked,
    ToolchainReady,
    ToolchainStarted,
    Watching,
)

if TYPE_CHECKING:
    from epbuild.report.terminal.live import Rows


_MAX_TEXT = 100
_MAX_SENTENCE = 200
_MAX_FILES = 3


class _BuildLines(Listener):
    """Base class of listeners that display a build. It formats each event, and subclasses display the text."""

    def __init__(self, *, all_warnings: bool = True) -> None:
        self._color = has_colors(sys.stdout)  # Check once, because the check is a system call.
        self._problems = ProblemWriter(all_warnings=all_warnings)
        self._changes = ChangeReport()
        self._failures = FailureList()
        self._coverage = CoverageList()
        self._keeps_going = False
        self._is_over = False

    def report(self, event: Event, /) -> None:
        for listener in (self._changes, self._failures, self._coverage):
            listener.report(event)
        if isinstance(event, RunStarted | RunFinished):
            self._problems.write_hidden()
        match event:
            case RunStarted(todo=todo, steps=steps, seconds_left=left, keep_going=keep_going) if todo:
                self._keeps_going = keep_going
                self._begin(Completion(0, todo, left), "step", f"{todo} of {steps} steps to do{format_time_left(left)}")
            case ComparisonStarted(groups, left):
                self._begin(
                    Completion(0, groups, left),
                    "comparison",
                    f"{format_count(groups, 'session group')} to rebuild and compare{format_time_left(left)}",
                )
            case DiskNeeded():
                self._print(format_disk(event))
            case ToolchainStarted(name, text) | StepStarted(name, text) | StepOutput(name, text, True):
                self._show(name, text)
            case ToolchainInstalling(name, text, done, total):
                self._show(name, f"{text}, {format_size(done)} of {format_size(total)}" if total else text)
            case ToolchainFailed(name):
                self._drop(name)
            case Fetching(name, _, done, total, left):
                size = f" of {format_size(total)}" if total else ""
                self._show(name, f"fetching {format_size(done)}{size}{format_rest(left)}")
            case StepAdvanced(name):
                self._show(name, format_bytes(event))
            case Hashing():
                self._show(FILES, format_bytes(event))
            case ResultsShared():
                self._show("remote cache", format_upload(event))
            case RemoteCacheUsed():
                self._drop("remote cache")
                self._print(format_remote(event))
            case Hashed():
                self._end(FILES, event)
            case ToolchainReady(name) | ToolchainLocked(name) | Fetched(name) | OutputRemoved(name):
                self._end(name, event)
            case StepFinished(name) | StepFailed(name) | StepCompared(name):
                self._end(name, event)
                self._count(event.progress)
            case ComparisonFinished():
                self._print(format_comparison(event))
            case Warned(problem):
                self._problems.warn([problem])
            case FilesChanged(files):
                print_line(f"Changed: {', '.join(shorten_list(files, _MAX_FILES))}")
            case Watching(files):
                print_line(f"Watching {format_count(files, 'file')}; press Ctrl-C to stop.")
                sys.stdout.flush()
            case RunFinished():
                self._is_over = True
                self._close()
                for line in self._format_last_lines(event):
                    print_line(line)
                sys.stdout.flush()

    def _format_last_lines(self, event: RunFinished) -> Iterator[str]:
        """Yield the changes and failures of a build, and a summary line."""
        yield from self._changes.format_lines(event)
        yield from self._coverage.format_lines(self._failures.steps)
        if not is_github_actions():  # Under GitHub Actions, each problem is already an annotation.
            yield from format_failures(self._list_failures())
        yield format_summary(event)

    def _end_early(self) -> None:
        """List the failures of a build that was interrupted."""
        if not self._is_over and self._keeps_going and not is_github_actions():
            for line in format_failures(self._failures.list_failures()):
                print_line(line)

    def _list_failures(self) -> list[ReportedFailure]:
        """Return the failures to list at the end. A single failure that ended the build was shown last, so it is not listed."""
        return self._failures.list_failures() if self._keeps_going or len(self._failures.steps) > 1 else []

    def _end(self, name: str, event: Event) -> None:
        self._drop(name)
        for line in list_end_lines(event):
            self._print(line)
        match event:
            case StepFailed(problems=problems, allowed=allowed, file=file, line=number):
                definition = Position(file, number, 1) if file is not None and number is not None else None
                # With --keep-going, the list at the end has the reasons and the hints. GitHub Actions shows only annotations.
                is_short = self._keeps_going and not is_github_actions()
                shown = map(_shorten, problems) if is_short else problems
                self._problems.write(shown, "warning" if allowed else "error", definition)
            case StepCompared(problems=problems):
                self._problems.write(problems)

    def _begin(self, progress: Completion, noun: str, text: str) -> None:
        """Start counting steps or comparisons."""

    def _count(self, progress: Completion | None) -> None:
        """Update the count."""

    def _show(self, name: str, text: str) -> None:
        """Show or update a line about running work."""

    def _drop(self, name: str) -> None:
        """Remove the line about finished work."""

    def _print(self, text: str) -> None:
        """Print a permanent line."""

    def _close(self) -> None:
        """Remove the lines of all running work."""


class PlainLines(_BuildLines):
    """Listener for logs and pipes: a line for each finished step, model or toolchain, and lines about long work at intervals."""

    def __init__(self, heartbeat: float = HEARTBEAT, *, all_warnings: bool = True) -> None:
        super().__init__(all_warnings=all_warnings)
        self._heartbeat = heartbeat  # seconds
        self._running: dict[str, tuple[float, str]] = {}
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._pulse = threading.Thread(target=self._beat, daemon=True)

    def __exit__(self, *ended: object) -> None:
        self._problems.write_hidden()  # Problems of a run that ended before its first step.
        self._over.set()
        if self._pulse.ident is not None:
            self._pulse.join()
        self._end_early()

    def report(self, event: Event, /) -> None:
        with self._lock:
            if isinstance(event, Hashing) and FILES not in self._running:
                self._print(format_waiting(FILES, format_bytes(event)))  # Nothing else is shown before the first step.
            super().report(event)

    def _begin(self, progress: Completion, noun: str, text: str) -> None:
        self._print(text)

    def _show(self, name: str, text: str) -> None:
        if self._pulse.ident is None:  # Start the thread late: a process without threads hashes files faster.
            self._pulse.start()
        started = self._running.get(name, (time.monotonic(), ""))[0]
        self._running[name] = (started, text)

    def _drop(self, name: str) -> None:
        self._running.pop(name, None)

    def _print(self, text: str) -> None:
        print_line(paint_label(text, color=self._color))
        sys.stdout.flush()

    def _beat(self) -> None:
        # If the reader of the output has closed it, the next event raises the error in the main thread.
        with contextlib.suppress(OSError):
            while not self._over.wait(self._heartbeat):
                with self._lock:
                    for step, (started, text) in self._running.items():
                        took = time.monotonic() - started
                        self._print(format_waiting(step, f"{took:.0f} s: {text[:_MAX_TEXT]}"))


class LiveRows(_BuildLines):
    """Listener for terminals: progress, a row with the time of each running step, and finished steps above the rows."""

    def __init__(self, *, all_warnings: bool = True) -> None:
        super().__init__(all_warnings=all_warnings)
        self._rows: Rows | None = None
        self._progress: Completion | None = None
        self._noun = "step"

    def __exit__(self, *ended: object) -> None:
        self._close()
        self._problems.write_hidden()
        self._end_early()

    def _begin(self, progress: Completion, noun: str, text: str) -> None:
        self._noun = noun
        self._count(progress)

    def _count(self, progress: Completion | None) -> None:
        if progress is not None:
            self._progress = progress
            if self._rows is not None:
                self._rows.count(progress, self._noun)

    def _open(self) -> Rows:
        if self._rows is None:
            # Import late, so that a build without work does not wait for rich.
            from epbuild.report.terminal.live import Rows

            self._rows = Rows(sys.stdout)
            self._count(self._progress)
        return self._rows

    def _show(self, name: str, text: str) -> None:
        self._open().show(escape_sequences(name), escape_sequences(text))

    def _drop(self, name: str) -> None:
        if self._rows is not None:
            self._rows.drop(escape_sequences(name))

    def _print(self, text: str) -> None:
        self._open().print(paint_label(escape_sequences(text), color=self._color))

    def _close(self) -> None:
        if self._rows is not None:
            self._rows.close()
            self._rows = None


def _shorten(problem: Problem) -> Problem:
    """Return a problem with only the first sentence of its message, which is cut if it is long."""
    sentence = re.split(r"\. (?=[A-Z])", problem.message, maxsplit=1)[0].rstrip(".")
    return replace(problem, message=shorten(sentence, _MAX_SENTENCE, placeholder=" …"), hint=None)


def make_reporter(*, json: bool, summary: Path | None = None, all_warnings: bool = True) -> Listener:
    """Return the listener of a build: JSON lines with `json`, or else live rows on a terminal and plain lines elsewhere.

    Without `all_warnings`, rows and lines show three warnings with the same text. Tables are written to the file `summary`, or by
    default to the step summary of GitHub Actions.
    """
    if json:
        from epbuild.report.json.events import JsonLines

        return _add_summary(JsonLines(), summary)
    return _add_summary(
        LiveRows(all_warnings=all_warnings) if is_screen(sys.stdout) else PlainLines(all_warnings=all_warnings), summary
    )


def make_coverage_reporter() -> Listener:
    """Return a listener that shows only the ends of steps. The listener also writes the step summary."""
    return _add_summary(CoverageProgress())


def _add_summary(listener: Listener, file: Path | None = None) -> Listener:
    named = os.environ.get("GITHUB_STEP_SUMMARY")
    if file is None and not named:
        return listener
    from epbuild.report.ci.github_summary import WithStepSummary

    return WithStepSummary(listener, file or Path(str(named)))
