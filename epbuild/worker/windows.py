"""Lifeline and memory of a worker on Windows.

Loaded by path, and only there, as the scripts of this folder are no package where they run. None of it was run on Windows.
"""

from __future__ import annotations

import ctypes
import time

PAUSE_SECONDS = 0.2


class Counters(ctypes.Structure):
    """PROCESS_MEMORY_COUNTERS."""

    _fields_ = (
        ("size", ctypes.c_uint32),
        ("faults", ctypes.c_uint32),
        ("peak", ctypes.c_size_t),
        ("others", ctypes.c_size_t * 7),
    )


def wait_for_parent() -> bool:
    """Wait until the other end of standard input is gone; False at once where that is no pipe, so that nobody can be waited for.

    Never by reading: Windows lets one call at a time do anything with such a pipe, and C libraries look at standard input when they are
    loaded. With a read pending, no library would be loaded until epbuild is gone. A look ends at once.
    """
    import _winapi
    import msvcrt

    handle = msvcrt.get_osfhandle(0)  # type: ignore[attr-defined]
    while True:
        try:
            _winapi.PeekNamedPipe(handle, 0)  # type: ignore[attr-defined]
        except BrokenPipeError:
            return True
        except OSError:
            return False
        time.sleep(PAUSE_SECONDS)


def peak_memory() -> int | None:
    """The most bytes of this process that were in memory at once, or None where it is not known."""
    kernel = ctypes.CDLL("kernel32")
    kernel.GetCurrentProcess.restype = ctypes.c_void_p
    kernel.K32GetProcessMemoryInfo.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint32)
    counters = Counters(size=ctypes.sizeof(Counters))
    if not kernel.K32GetProcessMemoryInfo(kernel.GetCurrentProcess(), ctypes.byref(counters), counters.size):
        return None
    return int(counters.peak)
