"""Progress on standard error, for commands with results on standard output."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from epbuild.commands.events import Hashed, Hashing, Noted
from epbuild.core.units import about
from epbuild.engine.events import Event
from epbuild.report.formatting import format_size
from epbuild.report.listeners import Listener
from epbuild.report.terminal.screen import is_screen

if TYPE_CHECKING:
    from epbuild.report.terminal.live import Rows


FILES = "files"
"""Name of the row about files being hashed."""
HEARTBEAT = 30.0
"""Seconds between two lines about running work without a terminal."""


def hashing_text(event: Hashing) -> str:
    """Return the progress of hashing, such as `hashing 1.2 GB of 3.2 GB, about 8 s left`."""
    return f"hashing {format_size(event.done)} of {format_size(event.total)}, about {about(event.seconds_left)} left"


class WaitingRow(Listener):
    """Listener that shows notes and the progress of hashing: as a row on a terminal, elsewhere as a line at intervals."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._rows: Rows | None = None
        self._next_line = 0.0

    def __exit__(self, *ended: object) -> None:
        self._close()

    def report(self, event: Event, /) -> None:
        match event:
            case Noted(text):
                sys.stderr.write(f"{text}\n")
                sys.stderr.flush()
            case Hashing() if is_screen(sys.stderr):
                if self._rows is None:
                    from epbuild.report.terminal.live import Rows  # imported late: few commands wait

                    self._rows = Rows(sys.stderr)
                self._rows.show(FILES, hashing_text(event))
            case Hashing() if self._clock() >= self._next_line:
                self._next_line = self._clock() + HEARTBEAT
                sys.stderr.write(f"{FILES}: {hashing_text(event)}\n")
                sys.stderr.flush()
            case Hashed():
                self._close()

    def _close(self) -> None:
        if self._rows is not None:
            self._rows.close()
            self._rows = None
