"""Worker on Windows, as far as a fake of its calls can show it: its link to epbuild and its memory."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

from tests.worker.scripts import load

windows: Any = load("windows")


class Pipe:
    """Standard input whose other end closes after a number of checks, or that is no pipe."""

    def __init__(self, *, looks: int, end: OSError) -> None:
        self.looks = looks
        self.end = end

    def peek(self, handle: int, size: int) -> tuple[int, int]:
        assert (handle, size) == (55, 0)
        if self.looks == 0:
            raise self.end
        self.looks -= 1
        return 0, 0


def connected(monkeypatch: pytest.MonkeyPatch, pipe: Pipe) -> list[float]:
    """Use the pipe as standard input, and return the pauses of the worker."""
    pauses: list[float] = []
    monkeypatch.setitem(sys.modules, "_winapi", SimpleNamespace(PeekNamedPipe=pipe.peek))
    monkeypatch.setitem(sys.modules, "msvcrt", SimpleNamespace(get_osfhandle={0: 55}.get))
    monkeypatch.setattr(time, "sleep", pauses.append)
    monkeypatch.setattr(os, "read", lambda *arguments: pytest.fail("a pending read holds up whatever looks at standard input"))
    return pauses


def test_worker_polls_its_parent_without_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses = connected(monkeypatch, Pipe(looks=3, end=BrokenPipeError(109, "The pipe has been ended")))
    assert windows.wait_for_parent()
    assert pauses == [windows.PAUSE_SECONDS] * 3


def test_worker_without_a_pipe_follows_no_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    connected(monkeypatch, Pipe(looks=0, end=OSError(22, "The handle is invalid")))
    assert not windows.wait_for_parent()


@pytest.mark.parametrize(("gone", "status"), [(True, [75]), (False, [])])
def test_worker_ends_when_its_parent_has_ended(monkeypatch: pytest.MonkeyPatch, gone: bool, status: list[int]) -> None:
    ended: list[int] = []
    worker = on_windows(monkeypatch)
    connected(monkeypatch, Pipe(looks=0, end=BrokenPipeError(109, "The pipe has been ended") if gone else OSError(22, "invalid")))
    monkeypatch.setattr(os, "_exit", ended.append)
    before = set(threading.enumerate())
    worker.follow_parent()
    for thread in set(threading.enumerate()) - before:
        assert thread.daemon
        thread.join(30)
    assert ended == status


def on_windows(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Load the worker as on Windows, where there are no process groups."""
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.delattr(os, "killpg", raising=False)
    return load("compile")


class FakeKernel:
    def __init__(self, *, answers: bool) -> None:
        self.answers = answers
        self.GetCurrentProcess = _Function(lambda: -1)
        self.K32GetProcessMemoryInfo = _Function(self._counters)

    def _counters(self, process: int, counters: Any, size: int) -> int:
        assert (process, size, counters._obj.size) == (-1, 72, 72)
        counters._obj.peak = 3 << 30
        return int(self.answers)


class _Function:
    """Function of a library that accepts a declaration."""

    def __init__(self, call: Any) -> None:
        self._call = call

    def __call__(self, *arguments: Any) -> Any:
        return self._call(*arguments)


@pytest.mark.skipif(ctypes.sizeof(ctypes.c_void_p) != 8, reason="the sizes are those of 64 bits")
@pytest.mark.parametrize(("answers", "peak"), [(True, 3 << 30), (False, None)])
def test_peak_memory_is_read_from_windows(monkeypatch: pytest.MonkeyPatch, answers: bool, peak: int | None) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: {"kernel32": FakeKernel(answers=answers)}[name])
    assert on_windows(monkeypatch).measure_peak_memory() == peak
