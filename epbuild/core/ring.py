"""Ring of buffers: processing of a stream in a thread of its own."""

from __future__ import annotations

from collections.abc import Callable
from queue import SimpleQueue
from threading import Thread
from types import TracebackType
from typing import Self

# Large enough that handing over a buffer costs nothing beside the work on it.
_BUFFER_BYTES = 1 << 20
_BUFFERS = 3


class Ring:
    """Buffers that pass a stream to `work`, in order and in pieces of 1 MiB, each valid for the call.

    A reader may fill a `buffer` itself, and `send` it. An exception of `work` is raised again by a later call, or at the end of the `with`
    block, when all work is done. Memory is bounded: without an empty buffer, the caller waits.
    """

    def __init__(self, work: Callable[[memoryview], object], name: str) -> None:
        self._work = work
        self._empty: SimpleQueue[memoryview] = SimpleQueue()
        self._full: SimpleQueue[tuple[memoryview, int] | None] = SimpleQueue()
        for _ in range(_BUFFERS):
            self._empty.put(memoryview(bytearray(_BUFFER_BYTES)))
        self._buffer, self._filled = memoryview(b""), 0
        self._failure: BaseException | None = None
        self._thread = Thread(target=self._run, name=name, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if kind is None and self._filled:
            self._full.put((self._buffer, self._filled))
        self._full.put(None)
        self._thread.join()
        if kind is None and self._failure is not None:
            raise self._failure

    def buffer(self) -> memoryview:
        """Return the buffer to fill next."""
        if not self._buffer:
            self._buffer = self._empty.get()
        return self._buffer

    def send(self, count: int) -> None:
        """Pass the first `count` bytes of the buffer on; they stay valid until the next call. Raises what earlier work raised."""
        if self._failure is not None:
            raise self._failure
        self._full.put((self._buffer, count))
        self._buffer, self._filled = memoryview(b""), 0

    def put(self, data: bytes | memoryview) -> None:
        """Copy the next bytes into the ring. Raises what earlier work raised."""
        view = memoryview(data)
        while view:
            buffer = self.buffer()
            count = min(len(view), len(buffer) - self._filled)
            buffer[self._filled : self._filled + count] = view[:count]
            self._filled += count
            view = view[count:]
            if self._filled == len(buffer):
                self.send(self._filled)

    def _run(self) -> None:
        while (piece := self._full.get()) is not None:
            buffer, count = piece
            if self._failure is None and count:
                try:
                    self._work(buffer[:count])
                except BaseException as error:  # noqa: BLE001 - raised again in the thread of the stream
                    self._failure = error
            self._empty.put(buffer)
