"""Windows' own calls: jobs of processes, times of change, console colours.

What psutil has is asked of psutil. Each call is used as Microsoft documents it, and none was run on Windows: docs/windows.md has what
that means. What a call refuses is never an error here: epbuild then does without.
"""

from __future__ import annotations

import ctypes
import functools
import os
import subprocess
from collections.abc import Callable
from ctypes import c_int, c_size_t, c_uint32, c_uint64, c_void_p, c_wchar_p
from typing import Any

NEW_PROCESS_GROUP = 0x200
"""The creation flag under which Ctrl-C is for epbuild alone."""
_SUSPENDED = 0x4

_KILL_ON_JOB_CLOSE = 0x2000
_EXTENDED_LIMITS = 9
_EXIT_STATUS = 1

_READ_ATTRIBUTES = 0x80
_SHARE_ALL = 0x7
_OPEN_EXISTING = 3
_DIRECTORIES_TOO = 0x02000000  # FILE_FLAG_BACKUP_SEMANTICS
_LINK_ITSELF = 0x00200000  # FILE_FLAG_OPEN_REPARSE_POINT
_BASIC_INFORMATION = 0
_EPOCH_TICKS = 116_444_736_000_000_000  # from 1601, where Windows begins to count, to 1970
_TICK_NS = 100

_SEQUENCES = 0x4  # ENABLE_VIRTUAL_TERMINAL_PROCESSING
_INVALID = c_void_p(-1).value
_FILE_SYSTEM = r"SYSTEM\CurrentControlSet\Control\FileSystem"


class _JobLimits(ctypes.Structure):
    """JOBOBJECT_EXTENDED_LIMIT_INFORMATION."""

    _fields_ = (
        ("times", c_uint64 * 2),
        ("flags", c_uint32),
        ("working_set", c_size_t * 2),
        ("processes", c_uint32),
        ("affinity", c_size_t),
        ("classes", c_uint32 * 2),
        ("counters", c_uint64 * 6),
        ("memory", c_size_t * 4),
    )


class _FileTimes(ctypes.Structure):
    """FILE_BASIC_INFO; times in units of 100 ns since 1601."""

    _fields_ = (("created", c_uint64), ("accessed", c_uint64), ("written", c_uint64), ("changed", c_uint64), ("flags", c_uint32))


CALLS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "AssignProcessToJobObject": (c_int, (c_void_p, c_void_p)),
    "CloseHandle": (c_int, (c_void_p,)),
    "CreateFileW": (c_void_p, (c_wchar_p, c_uint32, c_uint32, c_void_p, c_uint32, c_uint32, c_void_p)),
    "CreateJobObjectW": (c_void_p, (c_void_p, c_wchar_p)),
    "GetConsoleMode": (c_int, (c_void_p, c_void_p)),
    "GetFileInformationByHandleEx": (c_int, (c_void_p, c_int, c_void_p, c_uint32)),
    "SetConsoleMode": (c_int, (c_void_p, c_uint32)),
    "SetInformationJobObject": (c_int, (c_void_p, c_int, c_void_p, c_uint32)),
    "TerminateJobObject": (c_int, (c_void_p, c_uint32)),
}
"""The functions of kernel32 that are used: what each returns, and its arguments."""


@functools.cache
def kernel32() -> Any:
    """The library with these functions, each as it is declared."""
    library = ctypes.CDLL("kernel32")
    for name, (result, arguments) in CALLS.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


class Job:
    """A job object: its processes, and all that they start, end together, and at the latest when this process does, however it ends."""

    def __init__(self, handle: int) -> None:
        self._handle: int | None = handle

    @classmethod
    def new(cls) -> Job | None:
        """A job without processes; None where there can be none."""
        kernel = kernel32()
        handle = kernel.CreateJobObjectW(None, None)
        if not handle:
            return None
        limits = _JobLimits(flags=_KILL_ON_JOB_CLOSE)
        if kernel.SetInformationJobObject(handle, _EXTENDED_LIMITS, ctypes.byref(limits), ctypes.sizeof(limits)):
            return cls(handle)
        kernel.CloseHandle(handle)
        return None

    def add(self, process: subprocess.Popen[bytes]) -> bool:
        """Put a process into the job; whether that worked. What it starts from then on is in it as well."""
        return bool(kernel32().AssignProcessToJobObject(self._handle, int(process._handle)))  # type: ignore[attr-defined]

    def end(self) -> None:
        """End all of its processes that there still are, and the job."""
        handle, self._handle = self._handle, None
        if handle is not None:
            kernel32().TerminateJobObject(handle, _EXIT_STATUS)
            kernel32().CloseHandle(handle)


def start_in_job(start: Callable[[int], subprocess.Popen[bytes]]) -> tuple[subprocess.Popen[bytes], Job | None]:
    """A process that `start` has started, under the creation flags that it is given, and its job (None: it has none).

    It begins to run only when it is in the job, as the `python.exe` of a virtual environment starts another process at once. Raises what
    `start` does.
    """
    job = Job.new()
    if job is None:
        return start(NEW_PROCESS_GROUP), None
    process = start(NEW_PROCESS_GROUP | _SUSPENDED)
    added = job.add(process)
    if _resumed(process.pid):
        if added:
            return process, job
        job.end()
        return process, None
    with process:
        process.kill()
    job.end()
    return start(NEW_PROCESS_GROUP), None


def change_time_ns(path: str | os.PathLike[str], *, follow: bool) -> int:
    """When a file was last changed, in nanoseconds since the epoch; 0 where that is not known. A link itself unless `follow`."""
    kernel = kernel32()
    flags = _DIRECTORIES_TOO if follow else _DIRECTORIES_TOO | _LINK_ITSELF
    handle = kernel.CreateFileW(os.fspath(path), _READ_ATTRIBUTES, _SHARE_ALL, None, _OPEN_EXISTING, flags, None)
    if handle in (None, _INVALID):
        return 0
    try:
        times = _FileTimes()
        found = kernel.GetFileInformationByHandleEx(handle, _BASIC_INFORMATION, ctypes.byref(times), ctypes.sizeof(times))
    finally:
        kernel.CloseHandle(handle)
    return (times.changed - _EPOCH_TICKS) * _TICK_NS if found and times.changed else 0


def allows_long_paths() -> bool:
    """Whether paths may have more than 260 characters, by the registry (LongPathsEnabled): only where that was asked for."""
    import winreg

    registry: Any = winreg
    try:
        with registry.OpenKey(registry.HKEY_LOCAL_MACHINE, _FILE_SYSTEM) as folder:
            return bool(registry.QueryValueEx(folder, "LongPathsEnabled")[0])
    except OSError:
        return False


def shows_sequences(descriptor: int) -> bool:
    """Have the console of a file descriptor obey escape sequences, as it does for colours; False where it cannot: before Windows 10."""
    import msvcrt

    mode = c_uint32()
    try:
        handle = msvcrt.get_osfhandle(descriptor)  # type: ignore[attr-defined]
    except OSError:
        return False
    if not kernel32().GetConsoleMode(handle, ctypes.byref(mode)):
        return False
    return bool(mode.value & _SEQUENCES or kernel32().SetConsoleMode(handle, mode.value | _SEQUENCES))


def _resumed(pid: int) -> bool:
    """Let a suspended process run; whether that worked."""
    import psutil

    try:
        psutil.Process(pid).resume()
    except psutil.Error:
        return False
    return True
