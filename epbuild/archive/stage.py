"""A stage of a pipeline: work on a stream of bytes in a thread of its own.

So reading, packing and writing go on at the same time.
"""

from __future__ import annotations

from collections.abc import Callable
from queue import SimpleQueue
from threading import Thread
from types import TracebackType
from typing import Self

# Enough that passing a buffer to another thread costs nothing beside what is done with it.
_BUFFER_BYTES = 1 << 20
_BUFFERS = 3


class Stage:
    """Passes what is `put` into it to `work`, in order, in pieces of 1 MiB, whatever the pieces in which it comes; buffers are used again.

    What `work` raises comes out of a later `put`, or of the end of the `with` block, at which all work is done. Little is held in memory:
    who puts more in than is worked off waits.
    """

    def __init__(self, work: Callable[[memoryview], object], name: str) -> None:
        self._work = work
        self._empty: SimpleQueue[memoryview] = SimpleQueue()
        self._full: SimpleQueue[tuple[memoryview, int] | None] = SimpleQueue()
        for _ in range(_BUFFERS):
            self._empty.put(memoryview(bytearray(_BUFFER_BYTES)))
        self._buffer, self._filled = self._empty.get(), 0
        self._failure: BaseException | None = None
        self._thread = Thread(target=self._run, name=name, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if kind is None:
            self._full.put((self._buffer, self._filled))
        self._full.put(None)
        self._thread.join()
        if kind is None and self._failure is not None:
            raise self._failure

    def put(self, data: bytes | memoryview) -> None:
        """Copy the next bytes. Raises what the work on earlier ones raised."""
        view = memoryview(data)
        while view:
            count = min(len(view), _BUFFER_BYTES - self._filled)
            self._buffer[self._filled : self._filled + count] = view[:count]
            self._filled += count
            view = view[count:]
            if self._filled == _BUFFER_BYTES:
                self._pass_on()

    def _pass_on(self) -> None:
        if self._failure is not None:
            raise self._failure
        self._full.put((self._buffer, self._filled))
        self._buffer, self._filled = self._empty.get(), 0

    def _run(self) -> None:
        while (piece := self._full.get()) is not None:
            buffer, count = piece
            if self._failure is None and count:
                try:
                    self._work(buffer[:count])
                except BaseException as error:  # noqa: BLE001 - raised where the bytes come from
                    self._failure = error
            self._empty.put(buffer)
