"""Worker processes: running them, reading their output, and killing their trees."""

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
from typing import IO, TYPE_CHECKING, Any, Literal

from msgspec import Struct

from epbuild.core.host import is_windows
from epbuild.toolchain.reports import read_report

if TYPE_CHECKING:
    from epbuild.core.windows import Job

_POLL_SECONDS = 0.05
_GRACE_SECONDS = 5
_TAIL_LINES = 200
_MAX_REPORT = 1 << 20
_MAX_PIECE = 1 << 16
_MAX_TEXT = 4000
_ESCAPE_SEQUENCE = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")
# UTF-16LE text begins and ends with two characters whose high bytes are zero, as the words of all log lines do. Between them, any pair of
# bytes is a character.
_TWO_LATIN = re.compile(rb"(?:[^\0]\0){2}")
_UTF_16 = re.compile(rb"((?:[^\0]\0){2}(?:(?:[\s\S]{2})*(?:[^\0]\0){2})?)")
_LATIN_MARK = b"-\0-\0"
_HIGH_SURROGATES = range(0xD8, 0xDC)
"""High bytes of the first halves of UTF-16 characters that have four bytes."""
# UTF-8 text of another writer after UTF-16 text: at least eight characters. Four characters of UTF-16 seldom consist of such bytes.
_INTERRUPTION = re.compile(
    rb"[\x80-\xbf]{0,3}(?:[\t\r\x1b\x20-\x7e]|[\xc2-\xdf][\x80-\xbf]|[\xe0-\xef][\x80-\xbf]{2}|[\xf0-\xf4][\x80-\xbf]{3}){8,}"
)
_MAX_INTERRUPTION = 64
"""Number of bytes at the end of a line that are examined for an interruption."""

# Variables that a worker inherits. They suffice to start it, and an EP reads no settings from them.
_INHERITED = frozenset({"PATH", "TMPDIR", "TEMP", "TMP"})
# On Windows, workers also inherit variables that system and driver libraries read. VitisAI stores its cache under USERNAME.
_INHERITED_ON_WINDOWS = _INHERITED | {
    "SYSTEMROOT", "SYSTEMDRIVE", "WINDIR", "COMSPEC", "PATHEXT", "OS", "DRIVERDATA",
    "PROGRAMFILES", "PROGRAMFILES(X86)", "PROGRAMW6432", "PROGRAMDATA", "ALLUSERSPROFILE", "PUBLIC",
    "COMMONPROGRAMFILES", "COMMONPROGRAMFILES(X86)", "COMMONPROGRAMW6432",
    "NUMBER_OF_PROCESSORS", "PROCESSOR_ARCHITECTURE", "PROCESSOR_ARCHITEW6432", "PROCESSOR_IDENTIFIER", "PROCESSOR_LEVEL",
    "PROCESSOR_REVISION",
    "USERNAME", "USERDOMAIN", "USERPROFILE", "HOMEDRIVE", "HOMEPATH", "LOCALAPPDATA", "APPDATA",
}  # fmt: skip


LineHandling = Literal["shown", "kept", "detail"]
"""Handling of a worker's log line: `shown` (and logged), `kept` (logged only), or `detail` (dropped)."""


class Ending(Struct, frozen=True):
    """Result of a worker's run: its exit status, its reports, and its last lines on standard error."""

    cause: Literal["exited", "timed out", "cancelled"]
    status: int
    """Exit status. If a signal ended the worker on POSIX, the negative signal number."""
    reports: tuple[Mapping[str, Any], ...]
    tail: tuple[str, ...]
    out_of_memory: bool = False
    """True if the kernel killed any process on this machine for lack of memory during the run. Detected on Linux only."""


class WorkerListener:
    """Receiver of a running worker's reports and log lines. The base class discards them."""

    def reported(self, report: Mapping[str, Any]) -> None:
        """Handle a report."""

    def logged(self, line: str) -> None:
        """Handle a log line that is classified as `shown`."""

    def classify(self, line: str) -> LineHandling:
        """Return how to handle a log line."""
        return "shown"


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
    """Run `command` in `folder` until it exits or is killed, and return its result.

    The process has the variables of `environment` and a few inherited variables.

    `listener` receives every report on standard output, and lines on standard error according to its method `classify`. Lines on standard
    error are also written to the file `log`, in UTF-8 and with Unix line endings. Memory use is bounded: at most a report of a megabyte and
    the beginnings of a few lines are buffered. After `timeout` seconds (None: never), or once `cancelled` is set, the process and all its
    children are killed. Children that outlive the process are also killed, as they could continue to write. Raises OSError if the process
    cannot be started, BadReport for a malformed report, and exceptions of `listener`.
    """
    killed_before = _count_memory_kills()
    tree = _start(command, folder, environment)
    reports: list[Mapping[str, Any]] = []
    tail: deque[str] = deque(maxlen=_TAIL_LINES)
    how = _read_to_end(
        tree, partial(_read_reports, listener, reports), partial(_read_log, log, listener, tail), timeout, cancelled.is_set
    )
    out_of_memory = _count_memory_kills() > killed_before
    return Ending(how, tree.process.returncode, tuple(reports), tuple(tail), out_of_memory)


RunWorker = Callable[..., Ending]
"""Function that runs a worker until it exits, with the parameters of `supervise`."""


def _read_to_end(
    tree: _Tree,
    read_output: Callable[[IO[bytes]], None],
    read_errors: Callable[[IO[bytes]], None],
    timeout: float | None,
    cancelled: Callable[[], bool],
) -> Literal["exited", "timed out", "cancelled"]:
    """Read the output of a process tree until it ends or is killed. Return why it ended. Raises errors of the functions that read."""
    failures: list[BaseException] = []
    readers = [_Reader(tree.process.stdout, read_output, failures), _Reader(tree.process.stderr, read_errors, failures)]
    _start_readers(readers, tree)
    how = _wait(tree, readers[0], timeout, lambda: cancelled() or bool(failures))
    deadline = time.monotonic() + _GRACE_SECONDS
    for reader in readers:
        reader.join(max(0.0, deadline - time.monotonic()))
    if tree.process.stdin is not None:
        with contextlib.suppress(OSError):
            tree.process.stdin.close()
    if failures:
        raise failures[0]
    return how


def _read_reports(listener: WorkerListener, reports: list[Mapping[str, Any]], pipe: IO[bytes]) -> None:
    for line in _read_whole_lines(pipe, _MAX_REPORT):
        report = read_report(line)
        if report is not None:
            reports.append(report)
            listener.reported(report)


def _read_log(log: Path, listener: WorkerListener, tail: deque[str], pipe: IO[bytes]) -> None:
    with log.open("wb") as file:
        worth = "shown"
        for piece, is_line_start in decode_log(pipe):
            # A long line is read in pieces. Only the first piece is classified and passed to `listener`.
            text = strip_colors(piece.decode("utf-8", "replace"))[:_MAX_TEXT] if is_line_start else ""
            worth = listener.classify(text) if is_line_start else worth
            if worth == "detail":
                continue
            file.write(piece)
            file.flush()
            if text and worth == "shown":
                tail.append(text)
                listener.logged(text)


def decode_log(pipe: IO[bytes]) -> Iterator[tuple[bytes, bool]]:
    """Yield the lines of a log in UTF-8, and whether each begins a line, because long lines are yielded in pieces.

    On Windows, ONNX Runtime logs in UTF-16LE, while Python and EPs write bytes to the same stream. UTF-16 text begins with two Latin
    characters. In the rest of its line, the byte of a newline may belong to another character, such as U+010A or U+0A05. A line without
    null bytes is unchanged, except that its line ending becomes that of Unix.
    """
    piece, is_line_start, start = bytearray(), True, None
    while read := pipe.readline(_MAX_PIECE):
        # If a line has only one character, the second byte of its newline is read with the next line.
        piece += read.removeprefix(b"\0") if is_line_start and not piece else read
        if start is None:
            start = _find_utf_16(piece)
        if piece.endswith(b"\n"):
            open_bytes = _count_open_bytes(piece, start, len(piece) - 1)
            following = pipe.read(1) if open_bytes == 0 else b""
            if open_bytes is None or (open_bytes == 0 and following in (b"\0", b"")):
                yield _convert_to_utf_8(piece[:-1], start).removesuffix(b"\r") + b"\n", is_line_start
                piece, is_line_start, start = bytearray(), True, None
                continue
            piece += following
        if len(piece) >= _MAX_PIECE:
            end, open_bytes = len(piece), _count_open_bytes(piece, start, len(piece))
            if open_bytes is not None:
                end -= open_bytes
                end -= 2 if piece[end - 1] in _HIGH_SURROGATES else 0
            yield _convert_to_utf_8(piece[:end], start), is_line_start
            piece, is_line_start, start = piece[end:], False, None if open_bytes is None else 0
    if piece:
        yield _convert_to_utf_8(piece, start), is_line_start


def _find_utf_16(piece: bytearray) -> int | None:
    found = _TWO_LATIN.search(piece) if b"\0" in piece else None
    return None if found is None else found.start()


def _count_open_bytes(piece: bytearray, start: int | None, end: int) -> int | None:
    """Return the number of bytes, 0 or 1, of an incomplete UTF-16 character before `end`. Return None if the text there is UTF-8.

    `start` is the position of UTF-16 text, or None.
    """
    if start is None:
        return None
    begin = max(start, end - _MAX_INTERRUPTION)
    begin = max(begin, piece.rfind(b"\0", begin, end) + 1)
    return None if _INTERRUPTION.fullmatch(piece, begin, end) else (end - start) % 2


def _is_utf_8(part: bytes) -> bool:
    try:
        part.decode()
    except UnicodeDecodeError:
        return False
    return True


def _convert_to_utf_8(piece: bytearray, start: int | None) -> bytes:
    """Return a piece of a line in UTF-8, without null bytes. `start` is the position of UTF-16 text, or None."""
    if start is None and b"\0" not in piece:
        return bytes(piece)
    mark = _LATIN_MARK if start == 0 else b""  # the piece may begin with other letters if it continues a line
    texts = [
        part.decode("utf-16-le", "replace").encode() if index % 2 else _convert_rest(part, index > 0)
        for index, part in enumerate(_UTF_16.split(mark + piece))
    ]
    return b"".join(texts).replace(b"\0", b"")[len(mark) // 2 :]


def _convert_rest(part: bytes, is_after_utf_16: bool) -> bytes:
    """Return bytes beside UTF-16 text in UTF-8. They are UTF-16 too if they have letters that are not Latin."""
    is_utf_8 = _INTERRUPTION.fullmatch(part) is not None if is_after_utf_16 else _is_utf_8(part)
    return part if is_utf_8 or len(part) % 2 else part.decode("utf-16-le", "replace").encode()


class ShortAnswer(Struct, frozen=True):
    """Result of a short program: why it ended, its exit status, and its output."""

    cause: Literal["exited", "timed out", "wrote too much"]
    status: int
    output: bytes
    errors: bytes


def run_program(command: Sequence[str], folder: Path, *, timeout: float, max_bytes: int) -> ShortAnswer:
    """Run a program in `folder` with a few inherited variables, and return its result.

    The program and all its children are killed if it writes more than `max_bytes` to a stream or runs for more than `timeout` seconds.
    Raises OSError if the program cannot be started.
    """
    tree = _start(command, folder, {})
    output, errors = bytearray(), bytearray()

    def read(buffer: bytearray, pipe: IO[bytes]) -> None:
        while len(buffer) <= max_bytes and (piece := os.read(pipe.fileno(), _MAX_PIECE)):
            buffer.extend(piece)

    def wrote_too_much() -> bool:
        return len(output) > max_bytes or len(errors) > max_bytes

    if tree.process.stdin is not None:
        tree.process.stdin.close()
    end = _read_to_end(tree, partial(read, output), partial(read, errors), timeout, wrote_too_much)
    cause: Literal["exited", "timed out", "wrote too much"] = "timed out" if end == "timed out" else "exited"
    return ShortAnswer("wrote too much" if wrote_too_much() else cause, tree.process.returncode, bytes(output), bytes(errors))


class _Reader:
    """Thread that reads a pipe until the process ends, and then closes the pipe. Exceptions are appended to `failures`.

    This class does not use `threading.Thread`, whose `start` would wait forever if the new thread lacked the memory to begin.
    """

    def __init__(self, pipe: IO[bytes] | None, read: Callable[[IO[bytes]], None], failures: list[BaseException]) -> None:
        if pipe is None:
            raise AssertionError("the process was started without pipes")
        self._pipe = pipe
        self._read = read
        self._failures = failures
        self._begun, self._ended = threading.Event(), threading.Event()

    def start(self) -> None:
        """Start the thread. Raises MemoryError if it does not begin, and RuntimeError if it cannot be created."""
        _thread.start_new_thread(self._work, ())
        if not self._begun.wait(_GRACE_SECONDS):
            raise MemoryError("a thread did not start")

    def join(self, timeout: float | None = None) -> None:
        self._ended.wait(timeout)

    def is_alive(self) -> bool:
        return not self._ended.is_set()

    def _work(self) -> None:
        try:
            self._begun.set()
            with self._pipe:
                self._read(self._pipe)
        except BaseException as error:  # noqa: BLE001 - a pipe that is no longer read would block the process silently
            self._failures.append(error)
        finally:
            self._ended.set()


def _start_readers(readers: Sequence[_Reader], tree: _Tree) -> None:
    """Start the threads. If a thread cannot begin, kill the process tree and raise RuntimeError or MemoryError."""
    try:
        for reader in readers:
            reader.start()
    except (RuntimeError, MemoryError):
        tree.kill()
        raise


def _read_whole_lines(pipe: IO[bytes], max_bytes: int) -> Iterator[bytes]:
    """Yield the lines of a pipe. Lines of more than `max_bytes` are read in pieces and dropped."""
    is_line_start = True
    while piece := pipe.readline(max_bytes):
        is_line_end = piece.endswith(b"\n") or len(piece) < max_bytes
        if is_line_start and is_line_end:
            yield piece
        is_line_start = is_line_end


def strip_colors(line: str) -> str:
    """Return a line without color codes, which ONNX Runtime writes even if the output is not a terminal."""
    return _ESCAPE_SEQUENCE.sub("", line).strip()


def end_tree(pid: int) -> None:
    """Kill a process and then its descendants. This order keeps the process from reporting that its children ended.

    Descendants whose parent process has ended are not found.
    """
    import psutil

    with contextlib.suppress(psutil.Error):
        root = psutil.Process(pid)
        for process in (root, *root.children(recursive=True)):
            with contextlib.suppress(psutil.Error):
                process.kill()


class _Tree(Struct, frozen=True):
    """Process and its descendants: a process group on POSIX, a job on Windows."""

    process: subprocess.Popen[bytes]
    job: Job | None = None

    def kill(self) -> None:
        if self.job is None:
            end_tree(self.process.pid)  # also kills descendants that have started their own group
        self.kill_rest()
        self.process.wait()

    def kill_rest(self) -> None:
        """Kill the rest of the tree. On Windows, this requires a job: without a job, the children of an ended process cannot be found."""
        if self.job is not None:
            self.job.end()
        elif not is_windows():
            # macOS raises PermissionError if only zombies are left in the group.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, signal.SIGKILL)


def _start(command: Sequence[str], folder: Path, environment: Mapping[str, str]) -> _Tree:
    def start(**how: Any) -> subprocess.Popen[bytes]:
        pipe = subprocess.PIPE
        variables = _build_environment(folder, environment)
        return subprocess.Popen(list(command), cwd=folder, env=variables, stdin=pipe, stdout=pipe, stderr=pipe, **how)

    if not is_windows():
        return _Tree(start(start_new_session=True))
    from epbuild.core.windows import start_in_job

    return _Tree(*start_in_job(lambda flags: start(creationflags=flags)))


def _wait(
    tree: _Tree, reader: _Reader, timeout: float | None, cancelled: Callable[[], bool]
) -> Literal["exited", "timed out", "cancelled"]:
    deadline = None if timeout is None else time.monotonic() + timeout
    while True:
        # The process closes its standard output when it ends. The reader notices at once, while `wait` would poll.
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


def _count_memory_kills() -> int:
    """Return how many processes the kernel has killed for lack of memory since boot; 0 if unknown."""
    # https://docs.kernel.org/filesystems/proc.html; the counter exists since Linux 4.13 and covers all control groups.
    with contextlib.suppress(OSError, ValueError):
        for line in Path("/proc/vmstat").read_text(encoding="ascii").splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0


def _build_environment(folder: Path, requested: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables of a worker in `folder`. `requested` variables override fixed and inherited ones."""
    inherited = _INHERITED_ON_WINDOWS if is_windows() else _INHERITED
    kept = {name: value for name, value in os.environ.items() if (name.upper() if is_windows() else name) in inherited}
    # HOME is the staging directory, since ONNX Runtime and EPs write files and read settings below HOME. Telemetry is disabled: it would
    # take 0.05 s to create a database of events for Microsoft in each HOME (docs/internals/facts.md, "Telemetry").
    variables = {**kept, "HOME": str(folder), "LC_ALL": "C.UTF-8", "PYTHONUTF8": "1", "ORT_DISABLE_TELEMETRY": "1"}
    if is_windows():  # `Path` and `PATH` are the same variable
        names = {name.upper() for name in requested}
        variables = {name: value for name, value in variables.items() if name.upper() not in names}
    return {**variables, **requested}
