"""Lifeline and memory of a worker on Windows.

The scripts load this module only on Windows, and by path because they do not run as a package. It was never tested on Windows.
"""

from __future__ import annotations

import ctypes
import time

PAUSE_SECONDS = 0.2


class Counters(ctypes.Structure):
    """Structure PROCESS_MEMORY_COUNTERS of the Windows API."""

    _fields_ = (
        ("size", ctypes.c_uint32),
        ("faults", ctypes.c_uint32),
        ("peak", ctypes.c_size_t),
        ("others", ctypes.c_size_t * 7),
    )


def wait_for_parent() -> bool:
    """Wait until the other end of standard input closes. Return False at once if standard input is not a pipe.

    This function polls and never reads. Windows allows only one pending call on such a pipe, and C libraries query standard input when they
    are loaded. During a pending read, no library could be loaded.
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


def measure_peak_memory() -> int | None:
    """Return the peak resident memory of this process in bytes, or None if it is unknown."""
    kernel = ctypes.CDLL("kernel32")
    kernel.GetCurrentProcess.restype = ctypes.c_void_p
    kernel.K32GetProcessMemoryInfo.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint32)
    counters = Counters(size=ctypes.sizeof(Counters))
    if not kernel.K32GetProcessMemoryInfo(kernel.GetCurrentProcess(), ctypes.byref(counters), counters.size):
        return None
    return int(counters.peak)
