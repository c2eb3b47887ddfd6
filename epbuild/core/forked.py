"""Work in a process that was forked off this one, beside it.

Python runs one thread at a time: what is to be done on another processor, and comes to little, is done in another process. A process is
only forked off where no other thread runs: it would have none of them, but what they hold.
"""

from __future__ import annotations

import _thread
import marshal
import os

TYPE_CHECKING = False  # as type checkers read it: the fast path of a run imports this
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


def processes() -> int:
    """How many processes may work at once, this one included: 1 where none may be forked off."""
    return os.cpu_count() or 1 if hasattr(os, "fork") and not has_threads() else 1


def has_threads() -> bool:
    """Whether other threads run: they would see another current directory as well."""
    return _thread._count() > 0


class Forked:
    """A process that does one thing, which has begun."""

    def __init__(self, child: int, reading: int) -> None:
        self._child: int | None = child
        self._pipe = open(reading, "rb")  # noqa: SIM115 - it is read once, and closed then

    @classmethod
    def begin(cls, work: Callable[[], Any]) -> Forked | None:
        """Begin to do `work`, of which `marshal` takes what it returns; None where there can be no more processes."""
        reading, writing = os.pipe()
        try:
            child = os.fork()
        except OSError:
            os.close(reading)
            os.close(writing)
            return None
        if not child:
            try:
                data = marshal.dumps(work())
                with open(writing, "wb") as pipe:  # noqa: PTH123
                    pipe.write(data)
            finally:  # whatever went wrong, nobody listens here; and what a program does at its end is for its parent to do
                os._exit(0)
        os.close(writing)
        return cls(child, reading)

    def result(self) -> Any:
        """Wait for what the work came to. Raises EOFError where it came to nothing."""
        with self._pipe:
            data = self._pipe.read()
        self._wait()
        return marshal.loads(data)  # noqa: S302 - of this very program

    def end(self) -> None:
        """End it, if it has not ended, as its result is not wanted any more."""
        if self._child is not None:
            self._pipe.close()
            os.kill(self._child, 9)
            self._wait()

    def _wait(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            os.waitpid(child, 0)
