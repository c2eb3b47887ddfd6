"""A build as people watch it: live rows on a terminal, plain lines everywhere else."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING

from epbuild.build import (
    ComparisonFinished,
    ComparisonStarted,
    Event,
    Fetched,
    Fetching,
    OutputRemoved,
    RunFinished,
    RunStarted,
    StepCompared,
    StepFailed,
    StepFinished,
    StepOutput,
    StepStarted,
    ToolchainLocked,
    ToolchainReady,
    ToolchainStarted,
    Warned,
)
from epbuild.report.changes import ChangeReport
from epbuild.report.problems import tell_problems
from epbuild.report.text import print_line
from epbuild.snapshot import nothing_to_do
from epbuild.units import counted

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

HEARTBEAT_SECONDS = 30
_LONGEST_WORDS = 100
_STYLES = {
    "built": "green",
    "emitted": "green",
    "ready": "green",
    "locked": "green",
    "fetched": "green",
    "restored": "cyan",
    "removed": "yellow",
    "kept": "yellow",
    "same": "green",
    "known": "yellow",
    "differs": "red",
    "failed": "red",
    "skipped": "yellow",
}
_LABEL_WIDTH = max(map(len, _STYLES))


class PlainLines:
    """One line for each thing that ended, and a sign of life for what takes long: for logs and pipes."""

    def __init__(self) -> None:
        self._running: dict[str, tuple[float, str]] = {}
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._changes = ChangeReport()
        self._pulse = threading.Thread(target=self._beat, daemon=True)

    def __enter__(self) -> PlainLines:
        self._pulse.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._over.set()
        self._pulse.join()

    def __call__(self, event: Event) -> None:
        with self._lock:
            self._changes.hear(event)
            self._hear(event)

    def _hear(self, event: Event) -> None:
        match event:
            case RunStarted(todo=todo, steps=steps) if todo:
                _say(f"{todo} of {steps} steps to do")
            case ToolchainStarted(toolchain, text) | StepStarted(toolchain, text):
                started = self._running.get(toolchain, (time.monotonic(), ""))[0]
                self._running[toolchain] = (started, text)
            case StepOutput(step, text):
                started = self._running.get(step, (time.monotonic(), ""))[0]
                self._running[step] = (started, text)
            case Fetching(model):
                started = self._running.get(model, (time.monotonic(), ""))[0]
                self._running[model] = (started, _arriving(event))
            case (
                ToolchainReady(name)
                | ToolchainLocked(name)
                | Fetched(name)
                | StepFinished(name)
                | StepFailed(name)
                | OutputRemoved(name)
            ):
                self._running.pop(name, None)
                tell_end(event, _say)
            case StepCompared(name):
                self._running.pop(name, None)
                tell_comparison(event, _say)
            case ComparisonStarted(groups):
                _say(f"{groups} to make again and compare")
            case ComparisonFinished():
                _say(comparison_summary(event))
            case Warned(problem):
                tell_problems([problem], "warning")
            case RunFinished():
                for line in self._changes.lines(event):
                    print_line(line)
                _say(summary(event))

    def _beat(self) -> None:
        # When whoever read our output has gone, the next event will say so where it can be dealt with.
        with contextlib.suppress(OSError):
            while not self._over.wait(HEARTBEAT_SECONDS):
                self._tell_running()

    def _tell_running(self) -> None:
        with self._lock:
            for step, (started, text) in self._running.items():
                _say(f"{'...':<{_LABEL_WIDTH}}  {step}  {time.monotonic() - started:.0f} s: {text[:_LONGEST_WORDS]}")


class LiveRows:
    """A row for each step at work, with the EP's last words and the time it takes; what ended scrolls away above them."""

    def __init__(self) -> None:
        self._progress: Progress | None = None
        self._total: TaskID | None = None
        self._rows: dict[str, TaskID] = {}
        self._todo = 0
        self._changes = ChangeReport()

    def __enter__(self) -> LiveRows:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._close()

    def __call__(self, event: Event) -> None:
        self._changes.hear(event)
        match event:
            case RunStarted(todo=todo):
                self._todo = todo
            case ToolchainStarted(name, text) | StepStarted(name, text):
                self._row(name, text)
            case StepOutput(name, text):
                self._row(name, text)
            case Fetching(name):
                self._row(name, _arriving(event))
            case ToolchainReady(name) | ToolchainLocked(name) | Fetched(name) | OutputRemoved(name):
                self._drop(name)
                tell_end(event, self._say)
            case StepFinished(name) | StepFailed(name):
                self._drop(name)
                tell_end(event, self._say)
                if self._total is not None and self._progress is not None and getattr(event, "outcome", "") != "current":
                    self._progress.advance(self._total)
            case ComparisonStarted(groups):
                if self._progress is not None and self._total is not None:
                    self._progress.remove_task(self._total)
                self._total, self._todo = None, groups
            case StepCompared(name):
                self._drop(name)
                tell_comparison(event, self._say)
                if self._total is not None and self._progress is not None:
                    self._progress.advance(self._total)
            case ComparisonFinished():
                self._say(comparison_summary(event))
            case Warned(problem):
                tell_problems([problem], "warning")
            case RunFinished():
                self._close()
                for line in (*self._changes.lines(event), summary(event)):
                    print_line(line)

    def _open(self) -> Progress:
        if self._progress is None:
            # Only now: a build with nothing to do should not wait for rich to be imported.
            from rich.console import Console
            from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
            from rich.table import Column

            self._progress = Progress(
                SpinnerColumn(),
                TextColumn("{task.description}", table_column=Column(no_wrap=True, overflow="ellipsis"), markup=False),
                TextColumn(
                    "{task.fields[words]}",
                    style="dim",
                    table_column=Column(no_wrap=True, overflow="ellipsis", ratio=1),
                    markup=False,
                ),
                TimeElapsedColumn(),
                console=Console(file=sys.stdout),
                expand=True,
                transient=True,
                # Rich would print on standard output what goes to standard error; that helps only where both are this terminal.
                redirect_stderr=sys.stderr.isatty(),
            )
            self._progress.start()
        return self._progress

    def _row(self, name: str, words: str) -> None:
        progress = self._open()
        if self._total is None and self._todo:
            self._total = progress.add_task("all steps", total=self._todo, words=f"{self._todo} to do")
        if name in self._rows:
            progress.update(self._rows[name], words=words)
        else:
            self._rows[name] = progress.add_task(name, total=None, words=words)

    def _drop(self, name: str) -> None:
        if self._progress is not None and name in self._rows:
            self._progress.remove_task(self._rows.pop(name))

    def _say(self, text: str) -> None:
        from rich.text import Text

        label = text.split(" ", 1)[0]
        line = Text(text)
        line.stylize(_STYLES.get(label, ""), 0, len(label))
        self._open().console.print(line, soft_wrap=True)

    def _close(self) -> None:
        if self._progress is not None:
            self._progress.stop()
            self._progress = None


def summary(event: RunFinished) -> str:
    """The last line of a build."""
    counts = {
        "built": event.built,
        "restored": event.restored,
        "up to date": event.current,
        "failed": event.failed,
        "skipped": event.skipped,
    }
    told = _told(counts) or "no steps"
    if event.exit_code == 0 and not (event.built or event.restored):
        told = nothing_to_do(event.current)
    return f"{told} ({event.seconds:.2f} s)"


def tell_end(
    event: ToolchainReady | ToolchainLocked | Fetched | StepFinished | StepFailed | OutputRemoved, say: Callable[[str], None]
) -> None:
    """What is worth a line of something that ended: nothing, for a step that was up to date."""
    match event:
        case ToolchainLocked(name, platforms, packages, seconds):
            say(_line("locked", seconds, f"toolchain {name}", f"{packages} packages for {', '.join(platforms)}"))
        case ToolchainReady(name, version, seconds):
            say(_line("ready", seconds, f"toolchain {name}", f"onnxruntime {version}"))
        case Fetched(model):
            say(_line("fetched", None, f"model {model}"))
        case OutputRemoved(_, directory, files, changed, foreign):
            say(_line("removed", None, directory, f"{files} files that the recipe no longer asks for"))
            for path in changed:
                say(_line("kept", None, path, "which was changed after epbuild wrote it"))
            for path in foreign:
                say(_line("kept", None, path, "which epbuild did not make"))
        case StepFailed(step, problems):
            say(_line("failed", None, step))
            tell_problems(problems)
        case StepFinished(step, outcome, seconds, note, size) if outcome != "current":
            if outcome == "emitted":
                # Where it is, rather than what the step is called.
                step, note = note, ""
            say(_line(outcome, seconds or None, step, *([] if size is None else [_decimal(size)]), *([note] if note else [])))


def tell_comparison(event: StepCompared, say: Callable[[str], None]) -> None:
    """What came of making a session group again: a line, below it what differs, and the problems that this is."""
    label = {"same": "same", "known": "known", "different": "differs"}[event.verdict]
    if event.verdict == "same":
        say(_line(label, event.seconds, event.step, counted(event.files, "file"), _decimal(event.size)))
        return
    say(_line(label, event.seconds, event.step, f"{len(event.differences)} of {event.files} files differ"))
    from epbuild.report.rebuilt import comparison_lines

    for line in comparison_lines(event):
        say(line)
    tell_problems(event.problems)


def comparison_summary(event: ComparisonFinished) -> str:
    """The line below the comparisons of a build."""
    counts = {
        "the same": event.same,
        "known to differ": event.known,
        "different": event.different,
        "failed": event.failed,
        "skipped": event.skipped,
    }
    return f"made again: {_told(counts) or 'nothing'} ({event.seconds:.2f} s)"


def _told(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counts.items() if count)


def _line(label: str, seconds: float | None, *parts: str) -> str:
    took = "" if seconds is None else f"{seconds:.1f} s"
    return f"{label:<{_LABEL_WIDTH}}{took:>8}  " + "  ".join(parts)


def _arriving(event: Fetching) -> str:
    return f"fetching {_decimal(event.done)}" + (f" of {_decimal(event.total)}" if event.total else "")


def _decimal(size: int) -> str:
    from rich.filesize import decimal

    return decimal(size)


def _say(text: str) -> None:
    print_line(text)
    sys.stdout.flush()
