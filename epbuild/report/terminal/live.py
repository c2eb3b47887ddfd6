"""Rows of running steps at the bottom of a terminal."""

from __future__ import annotations

import sys
import time
from typing import TextIO

from rich.console import Console, ConsoleRenderable
from rich.progress import Progress as Display
from rich.progress import ProgressColumn, SpinnerColumn, Task, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Column
from rich.text import Text

from epbuild.core.units import format_count, format_estimate
from epbuild.engine.events import Completion


class Rows:
    """Rows at the bottom of the terminal that `stream` writes to. Printed lines appear above the rows."""

    def __init__(self, stream: TextIO) -> None:
        self._display = Display(
            SpinnerColumn(),
            _SubjectColumn(table_column=Column(no_wrap=True, overflow="ellipsis")),
            TextColumn(
                "{task.fields[words]}",
                style="dim",
                table_column=Column(no_wrap=True, overflow="ellipsis", ratio=1),
                markup=False,
            ),
            TimeElapsedColumn(),
            console=Console(file=stream),
            expand=True,
            transient=True,
            # Rich redirects standard error to standard output. This is right only if both are this terminal.
            redirect_stderr=stream is sys.stdout and sys.stderr.isatty(),
            redirect_stdout=stream is sys.stdout,
        )
        self._total: TaskID | None = None
        self._noun = ""
        self._tasks: dict[str, TaskID] = {}
        self._display.start()

    def count(self, progress: Completion, noun: str) -> None:
        """Show the build's progress in steps or another unit. The elapsed time restarts when the unit changes."""
        if self._total is not None and noun != self._noun:
            self._display.remove_task(self._total)
            self._total = None
        self._noun = noun
        if self._total is None:
            self._total = self._display.add_task("", total=None, words="")
        expected = None if progress.seconds_left is None else time.monotonic() + progress.seconds_left
        text = f"{progress.done} of {format_count(progress.total, noun)} done"
        self._display.update(self._total, description=text, expected=expected)

    def show(self, name: str, words: str) -> None:
        """Show or update the row of running work."""
        if name in self._tasks:
            self._display.update(self._tasks[name], words=words)
        else:
            self._tasks[name] = self._display.add_task(name, total=None, words=words)

    def drop(self, name: str) -> None:
        """Remove a row."""
        if name in self._tasks:
            self._display.remove_task(self._tasks.pop(name))

    def print(self, line: str) -> None:
        self._display.console.print(Text.from_ansi(line), soft_wrap=True)

    def close(self) -> None:
        self._display.stop()


class _SubjectColumn(ProgressColumn):
    """Column with the subject of a row. The row for all steps ends with the estimated time left."""

    def render(self, task: Task) -> ConsoleRenderable:
        expected = task.fields.get("expected")
        left = 0.0 if expected is None else expected - time.monotonic()
        # Once the estimate has passed, the time left is unknown.
        return Text(f"{task.description}, about {format_estimate(left)} left" if left > 0 else task.description)
