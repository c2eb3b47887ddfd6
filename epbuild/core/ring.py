"""Ring of buffers for processing a stream in a separate thread."""

from __future__ import annotations

from collections.abc import Callable
from queue import SimpleQueue
from threading import Thread
from types import TracebackType
from typing import Self

# Buffers of this size make the cost of passing a buffer negligible.
_BUFFER_BYTES = 1 << 20
_BUFFERS = 3


class Ring:
    """Buffers that pass a stream to `work` in another thread, in order and in pieces of 1 MiB.

    A piece is valid only during the call of `work`. Callers either `put` data, or fill a `buffer` and `send` it. Callers wait
    while no buffer is empty, so memory is bounded. The end of the `with` block waits for all work. An exception of `work` is
    raised again by a later call or at the end of the block.
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
        """Return the next buffer to fill. Wait until one is empty."""
        if not self._buffer:
            self._buffer = self._empty.get()
        return self._buffer

    def send(self, count: int) -> None:
        """Pass the first `count` bytes of the buffer to `work`. Raises an exception of earlier work.

        The caller may read these bytes until it calls a method of the ring again.
        """
        if self._failure is not None:
            raise self._failure
        self._full.put((self._buffer, count))
        self._buffer, self._filled = memoryview(b""), 0

    def put(self, data: bytes | memoryview) -> None:
        """Copy the next bytes into the ring. If an earlier call of `work` failed, raise its exception."""
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
                except BaseException as error:  # noqa: BLE001 - raised again in the caller's thread
                    self._failure = error
            self._empty.put(buffer)
