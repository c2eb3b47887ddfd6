"""A worker process: its reports are streamed, its log kept, its tree ended."""

from __future__ import annotations

import _thread
import contextlib
import os
import re
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal, Protocol

from msgspec import Struct

from epbuild.core.host import on_windows
from epbuild.toolchain.reports import read_report

if TYPE_CHECKING:
    from epbuild.core.windows import Job

_POLL_SECONDS = 0.05
_GRACE_SECONDS = 5
_TAIL_LINES = 200
_LONGEST_REPORT = 1 << 20
_LONGEST_PIECE = 1 << 16
_LONGEST_TEXT = 4000
_ESCAPE_SEQUENCE = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")

# What a worker inherits of the environment: enough to start, nothing that an EP could read its settings from.
_INHERITED = frozenset({"PATH", "TMPDIR", "TEMP", "TMP"})
# Of Windows also what its own libraries and those of drivers look places and the machine up in; VitisAI keeps its cache below USERNAME.
_INHERITED_ON_WINDOWS = _INHERITED | {
    "SYSTEMROOT", "SYSTEMDRIVE", "WINDIR", "COMSPEC", "PATHEXT", "OS", "DRIVERDATA",
    "PROGRAMFILES", "PROGRAMFILES(X86)", "PROGRAMW6432", "PROGRAMDATA", "ALLUSERSPROFILE", "PUBLIC",
    "COMMONPROGRAMFILES", "COMMONPROGRAMFILES(X86)", "COMMONPROGRAMW6432",
    "NUMBER_OF_PROCESSORS", "PROCESSOR_ARCHITECTURE", "PROCESSOR_ARCHITEW6432", "PROCESSOR_IDENTIFIER", "PROCESSOR_LEVEL",
    "PROCESSOR_REVISION",
    "USERNAME", "USERDOMAIN", "USERPROFILE", "HOMEDRIVE", "HOMEPATH", "LOCALAPPDATA", "APPDATA",
}  # fmt: skip


Worth = Literal["shown", "kept", "detail"]
"""What becomes of a line that a worker writes: shown and kept, only kept in the log, or neither."""


class Ending(Struct, frozen=True):
    """How a worker ended, what it reported, and the end of what it wrote on standard error."""

    how: Literal["exited", "timed out", "cancelled"]
    status: int
    """The exit status; on POSIX, minus the signal that ended it."""
    reports: tuple[Mapping[str, Any], ...]
    tail: tuple[str, ...]
    out_of_memory: bool = False
    """Whether the kernel ended a process of this machine for lack of memory in the meantime; known on Linux only."""


class WorkerListener:
    """Takes what a worker reports and logs while it runs. This one ignores it."""

    def reported(self, report: Mapping[str, Any]) -> None:
        """Take note of a report."""

    def logged(self, line: str) -> None:
        """Take note of a line."""

    def worth(self, line: str) -> Worth:
        """What becomes of a line."""
        return "shown"


class RunWorker(Protocol):
    """Runs a worker until it ends, as `supervise` does."""

    def __call__(
        self,
        command: Sequence[str],
        folder: Path,
        log: Path,
        *,
        listener: WorkerListener,
        timeout: float | None,
        environment: Mapping[str, str],
        cancelled: threading.Event,
    ) -> Ending: ...


def supervise(
    command: Sequence[str],
    folder: Path,
    log: Path,
    listener: WorkerListener,
    *,
    timeout: float | None,
    environment: Mapping[str, str],
    cancelled: threading.Event,
) -> Ending:
    """Run `command` in `folder`, with `environment` beside the little that is inherited, and wait for it.

    Every report on its standard output goes to `listener`, as does every line on standard error, and into the file `log`; whatever
    the process writes, no more of it is in memory than a report of a megabyte and the beginnings of a few lines. The `worth` of every
    line is whether it is one of those, only for the log, or for neither. After `timeout` seconds (None: never), or when `cancelled` is
    set, the process and all its children are killed; children that outlive it are
    killed as well, as they could go on writing. Raises OSError when it cannot be started, BadReport when it reports what no worker does,
    and what `listener` raises.
    """
    killed_before = _killed_for_memory()
    tree = _start(command, folder, environment)
    process = tree.process
    reports: list[Mapping[str, Any]] = []
    tail: deque[str] = deque(maxlen=_TAIL_LINES)
    broken: list[BaseException] = []

    def read_reports(pipe: IO[bytes]) -> None:
        for line in _whole_lines(pipe, _LONGEST_REPORT):
            report = read_report(line)
            if report is not None:
                reports.append(report)
                listener.reported(report)

    def read_words(pipe: IO[bytes]) -> None:
        with log.open("wb") as file:
            begins, kind = True, "shown"
            while piece := pipe.readline(_LONGEST_PIECE):
                # Of a line that is longer, the log has all, and `listener` the beginning.
                text = plain(piece.decode("utf-8", "replace"))[:_LONGEST_TEXT] if begins else ""
                kind = listener.worth(text) if begins else kind
                begins = piece.endswith(b"\n")
                if kind == "detail":
                    continue
                file.write(piece)
                file.flush()
                if text and kind == "shown":
                    tail.append(text)
                    listener.logged(text)

    def follow(read: Callable[[IO[bytes]], None], pipe: IO[bytes]) -> None:
        try:
            with pipe:
                read(pipe)
        except BaseException as error:  # noqa: BLE001 - a pipe that nobody reads any more would stop the process without a word
            broken.append(error)

    reported, words = process.stdout, process.stderr
    if reported is None or words is None:
        raise AssertionError("both are pipes")
    # Only the process itself may end these: they stop at the end of their pipes.
    readers = [_Reader(lambda: follow(read_reports, reported)), _Reader(lambda: follow(read_words, words))]
    try:
        for reader in readers:
            reader.start()
    except (RuntimeError, MemoryError):  # no memory for another thread
        tree.kill()
        raise
    how = _wait(tree, readers[0], timeout, lambda: cancelled.is_set() or bool(broken))
    deadline = time.monotonic() + _GRACE_SECONDS
    for reader in readers:
        reader.join(max(0.0, deadline - time.monotonic()))
    if process.stdin is not None:
        with contextlib.suppress(OSError):
            process.stdin.close()
    if broken:
        raise broken[0]
    out_of_memory = _killed_for_memory() > killed_before
    return Ending(how, process.returncode, tuple(reports), tuple(tail), out_of_memory)


class ShortAnswer(Struct, frozen=True):
    """How a program ended that only answers, and what it wrote on standard output and standard error."""

    how: Literal["exited", "timed out", "wrote too much"]
    status: int
    output: bytes
    errors: bytes


def ask_program(command: Sequence[str], folder: Path, *, timeout: float, most: int) -> ShortAnswer:
    """Run a program in `folder` with the little that is inherited, and return what it wrote: at most `most` bytes on each stream.

    One that writes more, or takes longer than `timeout` seconds, is killed with all its children. Raises OSError if it cannot be started.
    """
    tree = _start(command, folder, {})
    written: tuple[bytearray, bytearray] = (bytearray(), bytearray())
    pipes = [pipe for pipe in (tree.process.stdout, tree.process.stderr) if pipe is not None]

    def follow(pipe: IO[bytes], into: bytearray) -> None:
        with pipe:
            while len(into) <= most and (piece := os.read(pipe.fileno(), _LONGEST_PIECE)):
                into.extend(piece)

    readers = [_Reader(partial(follow, pipe, into)) for pipe, into in zip(pipes, written, strict=True)]
    if tree.process.stdin is not None:
        tree.process.stdin.close()
    try:
        for reader in readers:
            reader.start()
    except (RuntimeError, MemoryError):  # no memory for another thread
        tree.kill()
        raise
    ended = _wait(tree, readers[0], timeout, lambda: any(len(into) > most for into in written))
    for reader in readers:
        reader.join(_GRACE_SECONDS)
    excess = any(len(into) > most for into in written)
    how: Literal["exited", "timed out", "wrote too much"] = (
        "wrote too much" if excess else "timed out" if ended == "timed out" else "exited"
    )
    return ShortAnswer(how, tree.process.returncode, bytes(written[0]), bytes(written[1]))


class _Reader:
    """A thread that reads. `Thread.start` of `threading` waits for ever for one that has no memory to begin with."""

    def __init__(self, read: Callable[[], object]) -> None:
        self._read = read
        self._begun, self._ended = threading.Event(), threading.Event()

    def start(self) -> None:
        """Raises MemoryError where it does not begin, RuntimeError where there can be none."""
        _thread.start_new_thread(self._work, ())
        if not self._begun.wait(_GRACE_SECONDS):
            raise MemoryError("a thread did not begin")

    def join(self, timeout: float | None = None) -> None:
        self._ended.wait(timeout)

    def is_alive(self) -> bool:
        return not self._ended.is_set()

    def _work(self) -> None:
        try:
            self._begun.set()
            self._read()
        finally:
            self._ended.set()


def _whole_lines(pipe: IO[bytes], longest: int) -> Iterator[bytes]:
    """The lines of a pipe that have at most `longest` bytes; the others are read and dropped, piece by piece."""
    begins = True
    while piece := pipe.readline(longest):
        ends = piece.endswith(b"\n") or len(piece) < longest
        if begins and ends:
            yield piece
        begins = ends


def plain(line: str) -> str:
    """A line without the colour codes that ONNX Runtime writes even when nobody can see colours."""
    return _ESCAPE_SEQUENCE.sub("", line).strip()


def end_tree(pid: int) -> None:
    """End a process, so that it reports no end of those that came from it, and then those, as far as their parents still lead to them."""
    import psutil

    with contextlib.suppress(psutil.Error):
        process = psutil.Process(pid)
        for found in (process, *process.children(recursive=True)):
            with contextlib.suppress(psutil.Error):
                found.kill()


class _Tree(Struct, frozen=True):
    """A process, and all that it starts: its group, on Windows its job."""

    process: subprocess.Popen[bytes]
    job: Job | None = None

    def kill(self) -> None:
        if self.job is None:
            end_tree(self.process.pid)  # also what has begun a group of its own
        self.kill_rest()
        self.process.wait()

    def kill_rest(self) -> None:
        """End what there is of it; without a job, a process of Windows that has ended no longer leads to its children."""
        if self.job is not None:
            self.job.end()
        elif not on_windows():
            # macOS raises PermissionError for a group of which only zombies are left.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, signal.SIGKILL)


def _start(command: Sequence[str], folder: Path, environment: Mapping[str, str]) -> _Tree:
    def start(**how: Any) -> subprocess.Popen[bytes]:
        pipe = subprocess.PIPE
        variables = _environment(folder, environment)
        return subprocess.Popen(list(command), cwd=folder, env=variables, stdin=pipe, stdout=pipe, stderr=pipe, **how)

    if not on_windows():
        return _Tree(start(start_new_session=True))
    from epbuild.core.windows import start_in_job

    return _Tree(*start_in_job(lambda flags: start(creationflags=flags)))


def _wait(
    tree: _Tree, reader: _Reader, timeout: float | None, cancelled: Callable[[], bool]
) -> Literal["exited", "timed out", "cancelled"]:
    deadline = None if timeout is None else time.monotonic() + timeout
    while True:
        # The process closes its standard output when it ends: that is noticed at once, where `wait` would look now and then.
        reader.join(_POLL_SECONDS)
        try:
            tree.process.wait(0 if reader.is_alive() else _POLL_SECONDS)
        except subprocess.TimeoutExpired:
            pass
        else:
            tree.kill_rest()
            return "exited"
        if cancelled():
            tree.kill()
            return "cancelled"
        if deadline is not None and time.monotonic() > deadline:
            tree.kill()
            return "timed out"


def _killed_for_memory() -> int:
    """How many processes the kernel has ended for lack of memory, in any control group, since it started; 0 if unknown."""
    # https://docs.kernel.org/filesystems/proc.html; the counter is there since Linux 4.13.
    with contextlib.suppress(OSError, ValueError):
        for line in Path("/proc/vmstat").read_text(encoding="ascii").splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0


def _environment(folder: Path, asked: Mapping[str, str]) -> dict[str, str]:
    """The variables of a worker in `folder`: those that are `asked` for, before what every worker has and the little that is inherited."""
    inherited = _INHERITED_ON_WINDOWS if on_windows() else _INHERITED
    kept = {name: value for name, value in os.environ.items() if (name.upper() if on_windows() else name) in inherited}
    # ONNX Runtime and EPs write below HOME and read settings from there: give them the staging directory instead. Telemetry would begin
    # a database in each such HOME, of events for Microsoft, in 0.05 s (docs/facts.md, "Telemetry").
    found = {**kept, "HOME": str(folder), "LC_ALL": "C.UTF-8", "PYTHONUTF8": "1", "ORT_DISABLE_TELEMETRY": "1"}
    if on_windows():  # to which `Path` and `PATH` are one
        names = {name.upper() for name in asked}
        found = {name: value for name, value in found.items() if name.upper() not in names}
    return {**found, **asked}
