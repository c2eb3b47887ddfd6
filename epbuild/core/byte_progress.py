"""Progress of work on many bytes, such as hashing and copying files."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from msgspec import Struct

from epbuild.core.digest import Count

_INTERVAL = 1.0
"""Seconds before the first report, and between reports."""


class ByteProgress(Struct, frozen=True):
    """Progress of work that takes longer than a second."""

    done: int
    """Bytes that have been processed."""
    seconds: float
    """Time since the work began."""
    seconds_left: float
    """Expected time left."""
    ended: bool = False
    """True in the last report."""


@contextmanager
def count_bytes(
    total: int, report: Callable[[ByteProgress], None], clock: Callable[[], float] = time.monotonic
) -> Iterator[Count]:
    """Yield a callback for the size of each processed piece, which any thread may call. Report the progress once a second.

    Work that takes less than a second is not reported. After longer work, the last report has all bytes. If the block failed, the last
    report has the bytes that were processed.
    """
    lock = threading.Lock()
    begin = last = clock()
    done = 0

    def count(size: int) -> None:
        nonlocal done, last
        with lock:
            # A file that changes while it is read is read again. An upload that began before this count may be repeated.
            done = max(0, min(done + size, total))
            now = clock()
            if now - last >= _INTERVAL and done < total:
                last = now
                report(ByteProgress(done, now - begin, (now - begin) * (total - done) / max(done, 1)))

    try:
        yield count
        done = total if done else 0  # files that need not be read are not counted
    finally:
        if done and (seconds := clock() - begin) >= _INTERVAL:
            report(ByteProgress(done, seconds, 0.0, ended=True))
