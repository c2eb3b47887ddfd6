"""Windows API calls that psutil lacks: jobs, change times, file users, colors.

All calls follow Microsoft's documentation, but none was tested on a Windows machine. docs/guides/windows.md lists what was tested
under wine. A failed call is not an error: epbuild continues without the effect of the call.
"""

from __future__ import annotations

import ctypes
import functools
import os
import subprocess
from collections.abc import Callable, Sequence
from ctypes import c_int, c_size_t, c_uint16, c_uint32, c_uint64, c_void_p, c_wchar_p
from typing import Any

NEW_PROCESS_GROUP = 0x200
"""Creation flag for processes that do not receive Ctrl-C."""
_SUSPENDED = 0x4

_KILL_ON_JOB_CLOSE = 0x2000
_EXTENDED_LIMITS = 9
_EXIT_STATUS = 1
_THIS_PROCESS = -1
"""Handle of the calling process in each process."""

_READ_ATTRIBUTES = 0x80
_SHARE_ALL = 0x7
_OPEN_EXISTING = 3
_DIRECTORIES_TOO = 0x02000000  # FILE_FLAG_BACKUP_SEMANTICS
_LINK_ITSELF = 0x00200000  # FILE_FLAG_OPEN_REPARSE_POINT
_BASIC_INFORMATION = 0
_EPOCH_TICKS = 116_444_736_000_000_000  # from 1601, the epoch of Windows, to 1970
_TICK_NS = 100

_MAX_USERS = 32
_SESSION_KEY_BYTES = 2 * 33  # CCH_RM_SESSION_KEY and a null character

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


class _FileUser(ctypes.Structure):
    """RM_PROCESS_INFO. Names are in UTF-16."""

    _fields_ = (
        ("pid", c_uint32),
        ("started", c_uint32 * 2),
        ("name", c_uint16 * 256),
        ("service", c_uint16 * 64),
        ("kind", c_uint32),
        ("status", c_uint32),
        ("session", c_uint32),
        ("restartable", c_int),
    )


class _FileTimes(ctypes.Structure):
    """FILE_BASIC_INFO. Times are in units of 100 ns since 1601."""

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
"""Result type and argument types of kernel32 functions."""


@functools.cache
def load_kernel32() -> Any:
    """Return kernel32 with the types of its functions declared."""
    library = ctypes.CDLL("kernel32")
    for name, (result, arguments) in CALLS.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


class Job:
    """Job object of Windows. Its processes and their children end together, and no later than this process."""

    def __init__(self, handle: int) -> None:
        self._handle: int | None = handle

    @classmethod
    def new(cls) -> Job | None:
        """Create a job without processes. Return None if the system cannot create it."""
        kernel = load_kernel32()
        handle = kernel.CreateJobObjectW(None, None)
        if not handle:
            return None
        limits = _JobLimits(flags=_KILL_ON_JOB_CLOSE)
        if kernel.SetInformationJobObject(handle, _EXTENDED_LIMITS, ctypes.byref(limits), ctypes.sizeof(limits)):
            return cls(handle)
        kernel.CloseHandle(handle)
        return None

    def add(self, process: int) -> bool:
        """Add the process with this handle, and all processes that it starts from now on. Return whether this succeeded."""
        return bool(load_kernel32().AssignProcessToJobObject(self._handle, process))

    def end(self) -> None:
        """Terminate the remaining processes and close the job."""
        handle, self._handle = self._handle, None
        if handle is not None:
            load_kernel32().TerminateJobObject(handle, _EXIT_STATUS)
            load_kernel32().CloseHandle(handle)


def join_job() -> None:
    """Put this process into a job that ends with the process.

    If epbuild is killed, Windows then also ends workers that epbuild had not yet put into their own job.
    """
    job = Job.new()
    if job is not None and not job.add(_THIS_PROCESS):
        job.end()


def start_in_job(start: Callable[[int], subprocess.Popen[bytes]]) -> tuple[subprocess.Popen[bytes], Job | None]:
    """Start a process in a new job. Return the process and its job. The job is None if the process is in no job.

    `start` is called with the creation flags. The process is suspended until it is in the job, because the `python.exe` of a
    virtual environment starts another process immediately. Raises the errors of `start`.
    """
    job = Job.new()
    if job is None:
        return start(NEW_PROCESS_GROUP), None
    process = start(NEW_PROCESS_GROUP | _SUSPENDED)
    added = job.add(int(process._handle))  # type: ignore[attr-defined]
    if _resume(process.pid):
        if added:
            return process, job
        job.end()
        return process, None
    with process:
        process.kill()
    job.end()
    return start(NEW_PROCESS_GROUP), None


def get_change_time_ns(path: str | os.PathLike[str], *, follow: bool) -> int:
    """Return the change time of a file in nanoseconds since the epoch, or 0 if it is unknown.

    If `follow` is False, return the change time of a link itself, and not of its target.
    """
    kernel = load_kernel32()
    flags = _DIRECTORIES_TOO if follow else _DIRECTORIES_TOO | _LINK_ITSELF
    handle = kernel.CreateFileW(os.fspath(path), _READ_ATTRIBUTES, _SHARE_ALL, None, _OPEN_EXISTING, flags, None)
    if handle in (None, _INVALID):
        return 0
    try:
        times = _FileTimes()
        is_known = kernel.GetFileInformationByHandleEx(handle, _BASIC_INFORMATION, ctypes.byref(times), ctypes.sizeof(times))
    finally:
        kernel.CloseHandle(handle)
    return (times.changed - _EPOCH_TICKS) * _TICK_NS if is_known and times.changed else 0


def list_file_users(files: Sequence[str]) -> list[str]:
    """Return the programs that have one of the files open, such as `Notepad (process 12)`, as far as the Restart Manager knows them.

    The paths must be absolute.
    """
    try:
        library = ctypes.CDLL("rstrtmgr")
    except OSError:
        return []
    session, needed, count, reasons = c_uint32(), c_uint32(), c_uint32(_MAX_USERS), c_uint32()
    if library.RmStartSession(ctypes.byref(session), 0, ctypes.create_string_buffer(_SESSION_KEY_BYTES)):
        return []
    try:
        names, found = (c_wchar_p * len(files))(*files), (_FileUser * _MAX_USERS)()
        if library.RmRegisterResources(session, len(files), names, 0, None, 0, None):
            return []
        if library.RmGetList(session, ctypes.byref(needed), ctypes.byref(count), found, ctypes.byref(reasons)):
            return []
        return [
            f"{bytes(user.name).decode('utf-16-le').partition(chr(0))[0]} (process {user.pid})" for user in found[: count.value]
        ]
    finally:
        library.RmEndSession(session)


def are_long_paths_allowed() -> bool:
    """Return whether the registry allows paths of more than 260 characters (LongPathsEnabled)."""
    import winreg

    registry: Any = winreg
    try:
        with registry.OpenKey(registry.HKEY_LOCAL_MACHINE, _FILE_SYSTEM) as folder:
            return bool(registry.QueryValueEx(folder, "LongPathsEnabled")[0])
    except OSError:
        return False


def enable_sequences(descriptor: int) -> bool:
    """Enable escape sequences on a console. Return False if the console does not support them, as on versions before Windows 10."""
    import msvcrt

    mode = c_uint32()
    try:
        handle = msvcrt.get_osfhandle(descriptor)  # type: ignore[attr-defined]
    except OSError:
        return False
    if not load_kernel32().GetConsoleMode(handle, ctypes.byref(mode)):
        return False
    return bool(mode.value & _SEQUENCES or load_kernel32().SetConsoleMode(handle, mode.value | _SEQUENCES))


def _resume(pid: int) -> bool:
    """Resume a suspended process. Return whether this succeeded."""
    import psutil

    try:
        psutil.Process(pid).resume()
    except psutil.Error:
        return False
    return True
