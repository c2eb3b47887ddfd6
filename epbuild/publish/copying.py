"""Copies of artifacts, several large ones at a time."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable

from epbuild.archive.artifact import Artifact

_LARGE_BYTES = 8 << 20
"""From this size on, another thread saves more than it costs."""

_THREADS = min(4, os.cpu_count() or 1)


def copy_all(artifacts: Iterable[Artifact], copy: Callable[[Artifact], None]) -> None:
    """Have each artifact copied; copying and checking a large one takes a processor. Raises what `copy` does."""
    large = []
    for artifact in artifacts:
        if artifact.size >= _LARGE_BYTES:
            large.append(artifact)
        else:
            copy(artifact)
    if len(large) < 2:
        for artifact in large:
            copy(artifact)
        return
    from concurrent.futures import ThreadPoolExecutor

    pool = ThreadPoolExecutor(min(_THREADS, len(large)), thread_name_prefix="copy")
    try:
        for _ in pool.map(copy, large):
            pass
    finally:
        pool.shutdown(cancel_futures=True)
