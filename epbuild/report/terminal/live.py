"""The lower lines of a terminal while a build goes on: a row for each step."""

from __future__ import annotations

import sys
import time
from typing import TextIO

from rich.console import Console, ConsoleRenderable
from rich.progress import Progress as Display
from rich.progress import ProgressColumn, SpinnerColumn, Task, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Column
from rich.text import Text

from epbuild.core.units import about, counted
from epbuild.engine.events import Completion


class Rows:
    """The lines at the bottom of a terminal, which `stream` writes to; whatever is printed goes above them."""

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
            # Rich would print on standard output what goes to standard error; that helps only where both are this terminal.
            redirect_stderr=stream is sys.stdout and sys.stderr.isatty(),
            redirect_stdout=stream is sys.stdout,
        )
        self._total: TaskID | None = None
        self._noun = ""
        self._tasks: dict[str, TaskID] = {}
        self._display.start()

    def count(self, progress: Completion, noun: str) -> None:
        """Show how far the build is, in steps or whatever else is counted; from the first one of a kind on, its time is counted too."""
        if self._total is not None and noun != self._noun:
            self._display.remove_task(self._total)
            self._total = None
        self._noun = noun
        if self._total is None:
            self._total = self._display.add_task("", total=None, words="")
        expected = None if progress.seconds_left is None else time.monotonic() + progress.seconds_left
        text = f"{progress.done} of {counted(progress.total, noun)} done"
        self._display.update(self._total, description=text, expected=expected)

    def show(self, name: str, words: str) -> None:
        """What is done, or was logged last, for something at work."""
        if name in self._tasks:
            self._display.update(self._tasks[name], words=words)
        else:
            self._tasks[name] = self._display.add_task(name, total=None, words=words)

    def drop(self, name: str) -> None:
        """Something is not at work any more."""
        if name in self._tasks:
            self._display.remove_task(self._tasks.pop(name))

    def print(self, line: str) -> None:
        self._display.console.print(Text.from_ansi(line), soft_wrap=True)

    def close(self) -> None:
        self._display.stop()


class _SubjectColumn(ProgressColumn):
    """What a row is about; that of all steps ends with how long the rest is likely to take, as the clock goes on."""

    def render(self, task: Task) -> ConsoleRenderable:
        expected = task.fields.get("expected")
        left = 0.0 if expected is None else expected - time.monotonic()
        # When it took longer than it should have, it is not known.
        return Text(f"{task.description}, about {about(left)} left" if left > 0 else task.description)
