"""Fake of the kernel32 functions that epbuild uses, as Microsoft documents them. Calls take the declared arguments."""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from epbuild.core import windows

NO_HANDLE = ctypes.c_void_p(-1).value
EPOCH_TICKS = 116_444_736_000_000_000
_REFUSALS = {"CreateFileW": NO_HANDLE}


class FakeKernel:
    """Fake jobs, processes, threads, files and consoles. `refuses` has the names of calls that fail."""

    def __init__(self) -> None:
        self.refuses: set[str] = set()
        self.open: dict[int, Any] = {}
        self.jobs: list[SimpleNamespace] = []
        self.threads = [SimpleNamespace(ident=10, process=1, suspended=0)]
        self.ended: set[int] = set()
        self.changed: dict[Path, int] = {}
        """Ticks of 100 ns since 1601, by path."""
        self.opened: list[tuple[str, int]] = []
        self.console = 0x3
        self.real: set[int] = set()
        """Existing processes. Their handles are their numbers."""
        self._next = 100

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name not in windows.CALLS:
            raise AttributeError(name)
        call = getattr(self, f"_{name}")

        def checked(*arguments: Any) -> Any:
            for declared, argument in zip(windows.CALLS[name][1], arguments, strict=True):
                declared.from_param(argument)
            return _REFUSALS.get(name, 0) if name in self.refuses else call(*arguments)

        return checked

    def resume(self, pid: int) -> None:
        """Resume a process with a separate call, in place of psutil."""
        if "NtResumeProcess" in self.refuses:
            raise psutil.AccessDenied(pid)
        for thread in self.threads:
            thread.suspended = 0 if thread.process == pid else thread.suspended

    def handle(self, what: Any) -> int:
        self._next += 4
        self.open[self._next] = what
        return self._next

    def _CloseHandle(self, handle: int) -> int:  # noqa: N802
        what = self.open.pop(handle)
        if what in self.jobs and what.kills:
            self.ended |= what.processes
        return 1

    def _CreateJobObjectW(self, security: None, name: None) -> int:  # noqa: N802
        job = SimpleNamespace(processes=set(), kills=False)
        self.jobs.append(job)
        return self.handle(job)

    def _SetInformationJobObject(self, handle: int, kind: int, limits: Any, size: int) -> int:  # noqa: N802
        assert (kind, size) == (9, 144)  # on a 64-bit machine
        self.open[handle].kills = limits._obj.flags == 0x2000
        return 1

    def _AssignProcessToJobObject(self, handle: int, process: int) -> int:  # noqa: N802
        self.open[handle].processes.add(process)
        return 1

    def _TerminateJobObject(self, handle: int, status: int) -> int:  # noqa: N802
        self.ended |= self.open[handle].processes
        for process in self.real & self.open[handle].processes:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, getattr(signal, "SIGKILL", signal.SIGTERM))
        return 1

    def _CreateFileW(self, path: str, access: int, share: int, *rest: Any) -> Any:  # noqa: N802
        assert (access, share, rest[1]) == (0x80, 7, 3)
        self.opened.append((path, rest[2]))
        return self.handle(Path(path).absolute()) if Path(path).exists() else NO_HANDLE

    def _GetFileInformationByHandleEx(self, handle: int, kind: int, times: Any, size: int) -> int:  # noqa: N802
        assert (kind, size) == (0, 40)
        times._obj.created = EPOCH_TICKS + 1
        times._obj.changed = self.changed.get(self.open[handle], 0)
        return 1

    def _GetConsoleMode(self, handle: int, mode: Any) -> int:  # noqa: N802
        mode._obj.value = self.console
        return 1

    def _SetConsoleMode(self, handle: int, mode: int) -> int:  # noqa: N802
        self.console = mode
        return 1


class FakeRestartManager:
    """Fake of the Restart Manager, which knows the programs in `users` by the absolute path of the file that each one has open."""

    def __init__(self, users: Mapping[Path, tuple[int, str]]) -> None:
        self._users = users
        self._registered: list[Path] = []
        self.sessions = 0

    def RmStartSession(self, session: Any, flags: int, key: Any) -> int:  # noqa: N802
        assert ctypes.sizeof(key) == 66
        self.sessions += 1
        return 0

    def RmRegisterResources(self, session: Any, count: int, files: Any, *rest: Any) -> int:  # noqa: N802
        assert rest == (0, None, 0, None)
        self._registered = [Path(files[number]) for number in range(count)]
        return 0

    def RmGetList(self, session: Any, needed: Any, count: Any, found: Any, reasons: Any) -> int:  # noqa: N802
        users = [self._users[file] for file in self._registered if file in self._users]
        needed._obj.value = len(users)
        if len(users) > count._obj.value:
            return 234
        for entry, (pid, name) in zip(found, users, strict=False):
            entry.pid, entry.name[: len(name)] = pid, list(map(ord, name))
        count._obj.value = len(users)
        return 0

    def RmEndSession(self, session: Any) -> int:  # noqa: N802
        self.sessions -= 1
        return 0


def know_users(monkeypatch: pytest.MonkeyPatch, users: Mapping[Path, tuple[int, str]]) -> FakeRestartManager:
    """Install a fake of the Restart Manager."""
    manager, load = FakeRestartManager(users), ctypes.CDLL
    monkeypatch.setattr(ctypes, "CDLL", lambda name, **options: manager if name == "rstrtmgr" else load(name, **options))
    return manager


def hold_open_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the system refuse to rename or remove files that this process has open, as Windows does. Requires Linux."""

    def refusing(change: Callable[..., Any]) -> Callable[..., Any]:
        def checked(path: Any, *others: Any, dir_fd: int | None = None, **options: Any) -> Any:
            trace = sys.gettrace()
            sys.settrace(None)  # no interrupt of `tests.cache.interrupts` in here
            place = (Path() if dir_fd is None else Path(f"/proc/self/fd/{dir_fd}")).resolve() / path
            is_open = any(found.is_relative_to(place) for found in _list_open_files())
            sys.settrace(trace)
            if is_open:
                raise make_sharing_violation(str(place))
            return change(path, *others, **options) if dir_fd is None else change(path, *others, dir_fd=dir_fd, **options)

        return checked

    importlib.import_module("filelock")  # before the system looks like Windows
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    for name in ("unlink", "rename", "replace"):
        monkeypatch.setattr(os, name, refusing(getattr(os, name)))


def keep_file(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Make the system refuse to remove files with this name, as Windows does while another program has them open."""
    unlink = os.unlink

    def refuse(path: Any, **options: Any) -> None:
        if os.path.basename(path) == name:  # noqa: PTH119
            raise PermissionError(13, "Access is denied")
        unlink(path, **options)

    monkeypatch.setattr(os, "unlink", refuse)


def _list_open_files() -> Iterator[Path]:
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            yield descriptor.readlink()


def make_sharing_violation(*places: str, code: int = 32) -> PermissionError:
    """Return the error of Windows about a file that another process has open."""
    words = "The process cannot access the file because it is being used by another process"
    error = PermissionError(13, words, places[0], None, *places[1:])
    error.winerror = code  # type: ignore[attr-defined]
    return error


def imitated(monkeypatch: pytest.MonkeyPatch) -> FakeKernel:
    """Install a new fake of kernel32, and make the system look like Windows."""
    kernel, load = FakeKernel(), ctypes.CDLL
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setattr(ctypes, "CDLL", lambda name, **options: kernel if name == "kernel32" else load(name, **options))
    windows.load_kernel32.cache_clear()
    monkeypatch.setattr("psutil.Process", lambda pid: SimpleNamespace(resume=lambda: kernel.resume(pid)))
    return kernel
