"""Progress of a build: live rows on a terminal, plain lines everywhere else."""

from __future__ import annotations

import contextlib
import re
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from epbuild.commands.events import (
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
from epbuild.core.shown import visible
from epbuild.core.units import about, counted
from epbuild.engine.events import (
    Completion,
    Event,
    RunFinished,
    RunStarted,
    StepFailed,
    StepFinished,
    StepOutput,
    StepStarted,
    Warned,
)
from epbuild.report.amounts import amount, limited
from epbuild.report.listener import Listener
from epbuild.report.terminal.changes import ChangeReport
from epbuild.report.terminal.coverage import CoverageList
from epbuild.report.terminal.failures import FailureList
from epbuild.report.terminal.problems import ProblemWriter
from epbuild.report.terminal.screen import coloured, painted, print_line, under_github_actions
from epbuild.report.terminal.waiting import FILES, HEARTBEAT, hashing_text
from epbuild.survey.asked import nothing_to_do

if TYPE_CHECKING:
    from epbuild.report.terminal.live import Rows

_LONGEST_WORDS = 100
_GREEN, _CYAN, _YELLOW, _RED = "32", "36", "33", "31"
_COLOURS = {
    "built": _GREEN,
    "emitted": _GREEN,
    "ready": _GREEN,
    "locked": _GREEN,
    "fetched": _GREEN,
    "hashed": _GREEN,
    "restored": _CYAN,
    "removed": _YELLOW,
    "kept": _YELLOW,
    "same": _GREEN,
    "known": _YELLOW,
    "differs": _RED,
    "failed": _RED,
    "skipped": _YELLOW,
}
_LABEL = re.compile(rf"(\[ *\d+/\d+\] )?({'|'.join(_COLOURS)})\b")
_MOST_FILES = 3
_LABEL_WIDTH = max(map(len, _COLOURS))


class _BuildLines(Listener):
    """What is shown of each event, whatever displays it."""

    def __init__(self, *, all_warnings: bool = True) -> None:
        self._colour = coloured(sys.stdout)  # once: a thousand lines would each ask the system
        self._problems = ProblemWriter(all_warnings=all_warnings)
        self._changes = ChangeReport()
        self._failures = FailureList()
        self._coverage = CoverageList()

    def report(self, event: Event, /) -> None:
        for listener in (self._changes, self._failures, self._coverage):
            listener.report(event)
        if isinstance(event, RunStarted | RunFinished):
            self._problems.write_hidden()
        match event:
            case RunStarted(todo=todo, steps=steps, seconds_left=left) if todo:
                self._begin(Completion(0, todo, left), "step", f"{todo} of {steps} steps to do{_time_left(left)}")
            case ComparisonStarted(groups, left):
                self._begin(Completion(0, groups, left), "comparison", f"{groups} to make again and compare{_time_left(left)}")
            case ToolchainStarted(name, text) | StepStarted(name, text) | StepOutput(name, text, True):
                self._show(name, text)
            case ToolchainInstalling(name, text, done, total):
                self._show(name, f"{text}, {amount(done)} of {amount(total)} here" if total else text)
            case ToolchainFailed(name):
                self._drop(name)
            case Fetching(name, _, done, total):
                self._show(name, f"fetching {amount(done)}" + (f" of {amount(total)}" if total else ""))
            case Hashing():
                self._show(FILES, hashing_text(event))
            case ResultsShared(_, done, total):
                self._show("remote cache", f"writing results: {done} of {total} done")
            case RemoteCacheUsed():
                self._drop("remote cache")
                self._print(remote_line(event))
            case Hashed():
                self._end(FILES, event)
            case ToolchainReady(name) | ToolchainLocked(name) | Fetched(name) | OutputRemoved(name):
                self._end(name, event)
            case StepFinished(name) | StepFailed(name) | StepCompared(name):
                self._end(name, event)
                self._count(event.progress)
            case ComparisonFinished():
                self._print(comparison_summary(event))
            case Warned(problem):
                self._problems.warn([problem])
            case FilesChanged(files):
                print_line(f"Changed: {', '.join(limited(files, _MOST_FILES))}")
            case Watching(files):
                print_line(f"Watching {counted(files, 'file')}; Ctrl-C ends it.")
                sys.stdout.flush()
            case RunFinished():
                self._close()
                for line in self._last_lines(event):
                    print_line(line)
                sys.stdout.flush()

    def _last_lines(self, event: RunFinished) -> Iterator[str]:
        """What a build changed, what failed and why, and a line that sums it up."""
        yield from self._changes.lines(event)
        yield from self._coverage.lines(self._failures.steps)
        if not under_github_actions():  # where each problem is an annotation, and shown once
            yield from self._failures.lines()
        yield summary(event)

    def _end(self, name: str, event: Event) -> None:
        self._drop(name)
        for line in end_lines(event):
            self._print(line)
        match event:
            case StepFailed(problems=problems, allowed=allowed):
                self._problems.write(problems, "warning" if allowed else "error")
            case StepCompared(problems=problems):
                self._problems.write(problems)

    def _begin(self, progress: Completion, noun: str, text: str) -> None:
        """So many of something are to do."""

    def _count(self, progress: Completion | None) -> None:
        """How far that is."""

    def _show(self, name: str, text: str) -> None:
        """What is done for something at work."""

    def _drop(self, name: str) -> None:
        """Something is not at work any more."""

    def _print(self, text: str) -> None:
        """A line that stays."""

    def _close(self) -> None:
        """Nothing is at work any more."""


class PlainLines(_BuildLines):
    """One line for each step, model or toolchain that ended, and a sign of life for what takes long: for logs and pipes."""

    def __init__(self, heartbeat: float = HEARTBEAT, *, all_warnings: bool = True) -> None:
        super().__init__(all_warnings=all_warnings)
        self._heartbeat = heartbeat  # seconds
        self._running: dict[str, tuple[float, str]] = {}
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._pulse = threading.Thread(target=self._beat, daemon=True)

    def __exit__(self, *ended: object) -> None:
        self._problems.write_hidden()  # of a run that ended before its first step
        self._over.set()
        if self._pulse.ident is not None:
            self._pulse.join()

    def report(self, event: Event, /) -> None:
        with self._lock:
            if isinstance(event, Hashing) and FILES not in self._running:
                self._print(_waiting_line(FILES, hashing_text(event)))  # nothing else is shown before the first step
            super().report(event)

    def _begin(self, progress: Completion, noun: str, text: str) -> None:
        self._print(text)

    def _show(self, name: str, text: str) -> None:
        if self._pulse.ident is None:  # only now: files are looked at in a quicker way by a process that has no threads
            self._pulse.start()
        started = self._running.get(name, (time.monotonic(), ""))[0]
        self._running[name] = (started, text)

    def _drop(self, name: str) -> None:
        self._running.pop(name, None)

    def _print(self, text: str) -> None:
        print_line(_painted(text, colour=self._colour))
        sys.stdout.flush()

    def _beat(self) -> None:
        # When the reader of our output has gone, the next event shows it where it can be dealt with.
        with contextlib.suppress(OSError):
            while not self._over.wait(self._heartbeat):
                with self._lock:
                    for step, (started, text) in self._running.items():
                        took = time.monotonic() - started
                        self._print(_waiting_line(step, f"{took:.0f} s: {text[:_LONGEST_WORDS]}"))


class LiveRows(_BuildLines):
    """How far the build is, and a row for each step at work with the time it takes; what ended scrolls away above them."""

    def __init__(self, *, all_warnings: bool = True) -> None:
        super().__init__(all_warnings=all_warnings)
        self._rows: Rows | None = None
        self._progress: Completion | None = None
        self._noun = "step"

    def __exit__(self, *ended: object) -> None:
        self._close()
        self._problems.write_hidden()

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
            # Only now: a build with nothing to do should not wait for rich to be imported.
            from epbuild.report.terminal.live import Rows

            self._rows = Rows(sys.stdout)
            self._count(self._progress)
        return self._rows

    def _show(self, name: str, text: str) -> None:
        self._open().show(visible(name), visible(text))

    def _drop(self, name: str) -> None:
        if self._rows is not None:
            self._rows.drop(visible(name))

    def _print(self, text: str) -> None:
        self._open().print(_painted(visible(text), colour=self._colour))

    def _close(self) -> None:
        if self._rows is not None:
            self._rows.close()
            self._rows = None


def origin_words(event: StepFinished) -> tuple[str, ...]:
    """Where a result comes from that was not made here."""
    if event.machine is not None:
        return (f"on {event.machine}",)
    return ("from the remote cache",) if event.from_ is not None else ()


def _waiting_line(name: str, text: str) -> str:
    """Return the line of a log about something that is at work."""
    return f"{'...':<{_LABEL_WIDTH}}  {name}  {text}"


def summary(event: RunFinished) -> str:
    counts = {
        "built": event.built,
        "restored": event.restored,
        "up to date": event.current,
        "failed": event.failed,
        "skipped": event.skipped,
        "failed as allowed": event.allowed,
    }
    text = _counts(counts) or "no steps"
    if event.exit_code == 0 and not (event.built or event.restored or event.allowed):
        text = nothing_to_do(event.current)
    return f"{text} ({event.seconds:.2f} s)"


def remote_line(event: RemoteCacheUsed) -> str:
    """What a build had of its remote cache: `remote cache: 46 of 50 found, 1.2 GB in 14 s`."""
    found = [f"{event.found} of {event.asked} found"] if event.asked else []
    written = [f"{event.published} written"] if event.published or not event.asked else []
    size = amount(event.received_bytes + event.sent_bytes)
    return f"remote cache: {', '.join([*found, *written, size])} in {event.seconds:.{0 if event.seconds >= 10 else 1}f} s"


def end_lines(event: Event) -> Iterator[str]:
    """What is worth a line of something that ended: nothing, for a step that was up to date."""
    match event:
        case ToolchainLocked(name, platforms, packages, seconds):
            yield _line("locked", seconds, f"toolchain {name}", f"{packages} packages for {', '.join(platforms)}")
        case ToolchainReady(name, version, seconds, note):
            # One that only prepares models need not hold it.
            words = [f"onnxruntime {version}"] if version != "unknown" else []
            yield _line("ready", seconds, f"toolchain {name}", *words, *([note] if note else []))
        case Hashed(total, seconds):
            yield _line("hashed", seconds, FILES, amount(total))
        case Fetched(model):
            yield _line("fetched", None, f"model {model}")
        case OutputRemoved(_, directory, files, changed, foreign):
            yield _line("removed", None, directory, f"{files} files that the recipe no longer asks for")
            for path in changed:
                yield _line("kept", None, path, "which was changed after epbuild wrote it")
            for path in foreign:
                yield _line("kept", None, path, "which epbuild did not make")
        case StepFailed(step, _, progress, allowed, remembered):
            notes = [*(["which is allowed"] if allowed else []), *(["not tried again"] if remembered else [])]
            yield _numbered(progress) + _line("failed", None, step, *notes)
        case StepCompared():
            yield from _comparison_lines(event)
        case StepFinished(step, outcome, seconds, note, size, progress) if outcome != "current":
            if outcome == "emitted":
                # Where it is, rather than what the step is called.
                step, note = note, ""
            parts = [step, *([] if size is None else [amount(size)]), *([note] if note else []), *origin_words(event)]
            yield _numbered(progress) + _line(outcome, seconds or None, *parts)


def _comparison_lines(event: StepCompared) -> Iterator[str]:
    """What came of making a session group again: a line, and below it what differs."""
    label = {"same": "same", "known": "known", "different": "differs"}[event.verdict]
    number = _numbered(event.progress)
    if event.verdict == "same":
        yield number + _line(label, event.seconds, event.step, counted(event.files, "file"), amount(event.size))
        return
    yield number + _line(label, event.seconds, event.step, f"{len(event.differences)} of {event.files} files differ")
    from epbuild.report.terminal.rebuilt import comparison_lines

    yield from comparison_lines(event)


def comparison_summary(event: ComparisonFinished) -> str:
    counts = {
        "the same": event.same,
        "known to differ": event.known,
        "different": event.different,
        "failed": event.failed,
        "skipped": event.skipped,
    }
    return f"made again: {_counts(counts) or 'nothing'} ({event.seconds:.2f} s)"


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counts.items() if count)


def _line(label: str, seconds: float | None, *parts: str) -> str:
    took = "" if seconds is None else f"{seconds:.1f} s"
    return f"{label:<{_LABEL_WIDTH}}{took:>8}  " + "  ".join(parts)


def _numbered(progress: Completion | None) -> str:
    """The number of what ended among all that is to do, to stand before its line."""
    return f"[{progress.done:>{len(str(progress.total))}}/{progress.total}] " if progress is not None else ""


def _time_left(seconds: float | None) -> str:
    return f", about {about(seconds)}" if seconds else ""


def _painted(text: str, *, colour: bool) -> str:
    """A line, its first word coloured if that is one for something that ended, where there are colours."""
    found = _LABEL.match(text) if colour else None
    if found is None:
        return text
    return text[: found.start(2)] + painted(found[2], _COLOURS[found[2]], True) + text[found.end(2) :]
