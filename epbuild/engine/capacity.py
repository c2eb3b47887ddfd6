"""Memory of this machine, and estimated memory of an action."""

from __future__ import annotations

import os
from pathlib import Path

from epbuild.core.host import is_windows

_LIMITS = ("memory.max", "memory/memory.limit_in_bytes")  # control groups of version 2 and version 1

# Peak memory of QNN's compiler, excluding a started worker: 228 MB for 64 MB of weights, 1.06 GB for 512 MB, 4.7 GB for 2.25 GB.
_BASE_BYTES = 200_000_000
_BYTES_PER_BYTE = 2.5


def estimate_memory(model_bytes: int, per_byte: float = _BYTES_PER_BYTE) -> int:
    """Estimate the memory in bytes for work on `model_bytes` bytes of models. A measured value is better than this estimate.

    `per_byte` is the memory in bytes for each byte of the models. The default is that of a compile.
    """
    return _BASE_BYTES + int(per_byte * model_bytes)


def get_memory(groups: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Return the memory in bytes of this machine or its container, whichever is smaller. Return None if neither is known.

    `groups` is the folder of the container's control groups.
    """
    known = [size for size in (_read_physical_memory(), *(_read_limit(groups / name) for name in _LIMITS)) if size]
    return min(known, default=None)


def _read_physical_memory() -> int | None:
    if is_windows():
        import psutil

        try:
            return int(psutil.virtual_memory().total)
        except (OSError, RuntimeError, psutil.Error):
            return None
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return None


def _read_limit(file: Path) -> int | None:
    try:
        return int(file.read_text(encoding="ascii"))
    except (OSError, ValueError):  # no limit, for which version 2 has the text "max"
        return None
