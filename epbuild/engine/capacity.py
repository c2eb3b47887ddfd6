"""Memory: how much there is for actions, and how much one is expected to take."""

from __future__ import annotations

import os
from pathlib import Path

from epbuild.core.host import on_windows

_LIMITS = ("memory.max", "memory/memory.limit_in_bytes")  # of version 2, and of version 1

# Peaks of QNN's compiler, less what a worker takes to start: 228 MB for 64 MB of weights, 1.06 GB for 512 MB, 4.7 GB for 2.25 GB.
_BASE_BYTES = 200_000_000
_BYTES_PER_BYTE = 2.5


def estimated_memory(model_bytes: int) -> int:
    """The bytes of memory that compiling models of so many bytes is expected to take, as long as it was not measured."""
    return _BASE_BYTES + int(_BYTES_PER_BYTE * model_bytes)


def memory_here(groups: Path = Path("/sys/fs/cgroup")) -> int | None:
    """The bytes of memory that this machine has, or this container may use, by its control `groups`; None where neither is known."""
    known = [size for size in (_physical(), *(_limit(groups / name) for name in _LIMITS)) if size]
    return min(known, default=None)


def _physical() -> int | None:
    if on_windows():
        import psutil

        try:
            return int(psutil.virtual_memory().total)
        except (OSError, RuntimeError, psutil.Error):
            return None
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return None


def _limit(file: Path) -> int | None:
    try:
        return int(file.read_text(encoding="ascii"))
    except (OSError, ValueError):  # no such limit: version 2 has "max"
        return None
