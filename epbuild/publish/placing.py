"""Fills a folder with contents, several large ones at a time."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable

from epbuild.archive.content import Content

_LARGE_BYTES = 8 << 20
"""From this size on, another thread saves more than it costs."""

_THREADS = min(4, os.cpu_count() or 1)


def place_all(contents: Iterable[Content], place: Callable[[Content], None]) -> None:
    """Have each content placed; copying and checking a large one takes a processor. Raises what `place` does."""
    large = []
    for content in contents:
        if content.size >= _LARGE_BYTES:
            large.append(content)
        else:
            place(content)
    if len(large) < 2:
        for content in large:
            place(content)
        return
    from concurrent.futures import ThreadPoolExecutor

    pool = ThreadPoolExecutor(min(_THREADS, len(large)), thread_name_prefix="place")
    try:
        for _ in pool.map(place, large):
            pass
    finally:
        pool.shutdown(cancel_futures=True)
