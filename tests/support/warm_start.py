"""Command lines in forks of one process that has imported epbuild.

The start of Python and the imports take two thirds of a short command, and hundreds of tests run one. Otherwise a fork
is the same as `python -m epbuild`: it has its own arguments, environment, folder, streams, signals and exit code. A new
Python is started where forks are not supported, where the environment would change how Python starts, and with
`--cold-starts`.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import io
import json
import os
import pkgutil
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, BinaryIO, NoReturn, TextIO

ROOT = Path(__file__).parents[2]
COLD_STARTS = "EPBUILD_TESTS_COLD_STARTS"
_OF_PYTHON = ("PYTHON", "LC_", "LANG", "LD_", "MALLOC_")
_LIBRARIES = ("filelock", "numpy", "onnx", "psutil", "rich.console", "sqlite3", "tomllib", "xxhash", "yaml")
_NOT_IMPORTED = ("epbuild.__main__", "epbuild.worker", "epbuild.runtime")

_MAIN = "from epbuild.__main__ import main; main()"
_NUMBER = struct.Struct("<q")

_connections: list[socket.socket] = []
_sending = threading.Lock()


def import_jsonschema() -> None:
    """Import jsonschema without its check of IRIs, which compiles 38 grammars: three seconds of each process."""
    sys.modules["rfc3987_syntax"] = None  # type: ignore[assignment]
    try:
        importlib.import_module("jsonschema")
    finally:
        del sys.modules["rfc3987_syntax"]


def run(
    arguments: Sequence[str],
    folder: Path,
    environment: Mapping[str, str],
    timeout: float,
    *,
    cold: bool = False,
    before: str = "",
) -> subprocess.CompletedProcess[str]:
    """Run `epbuild` with these arguments, without terminal and input. Raise TimeoutExpired after killing a process.

    `before` is Python code that the process runs first.
    """
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        process = start(arguments, folder, environment, cold=cold, before=before, output=output, errors=errors)
        try:
            code = process.wait(timeout)
        except BaseException as error:
            process.kill()
            process.wait()
            if isinstance(error, subprocess.TimeoutExpired):
                raise subprocess.TimeoutExpired(process.args, timeout, _text(output), _text(errors)) from None
            raise
        return subprocess.CompletedProcess(process.args, code, _text(output), _text(errors))


def start(
    arguments: Sequence[str],
    folder: Path,
    environment: Mapping[str, str],
    *,
    cold: bool = False,
    before: str = "",
    session: bool = False,
    output: BinaryIO | None = None,
    errors: BinaryIO | None = None,
) -> subprocess.Popen[str] | Fork:
    """Start `epbuild` with these arguments. Its output and errors use pipes unless files are given.

    `session`: the process leads a new session, like a process that a terminal has started.
    """
    command = [sys.executable, *(["-c", f"{before}\n{_MAIN}"] if before else ["-m", "epbuild"]), *arguments]
    if not cold and _can_fork(environment):
        mask = os.umask(0o022)
        os.umask(mask)
        request = {"folder": str(folder), "environment": {**environment}, "mask": mask, "before": before, "session": session}
        return Fork(command, {"arguments": [*arguments], **request}, output, errors)
    return subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=output or subprocess.PIPE,
        stderr=errors or subprocess.PIPE,
        text=True,
        encoding="utf-8",
        start_new_session=session,
    )


class Fork:
    """A command line in a fork, with the part of the `subprocess.Popen` interface that tests need."""

    def __init__(
        self, command: Sequence[str], request: Mapping[str, Any], output: BinaryIO | None, errors: BinaryIO | None
    ) -> None:
        self.args = command
        self.returncode: int | None = None
        self._answers, theirs = socket.socketpair()
        self.stdout, written = _end_of(output)
        self.stderr, complained = _end_of(errors)
        content = json.dumps(request).encode("ascii")
        with theirs, _sending:
            try:
                connection = _connection()
                descriptors = [written, complained, theirs.fileno()]
                socket.send_fds(connection, [len(content).to_bytes(4, "little")], descriptors)
                connection.sendall(content)
            finally:
                os.close(written)
                os.close(complained)
        self.pid = self._answer()

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            if not select.select([self._answers], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(self.args, timeout or 0)
            self.returncode = self._answer()
            self._answers.close()  # until then, no other process gets its number
        return self.returncode

    def poll(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Wait for the end and return the remaining output and errors. Kill the process after the timeout."""
        with ThreadPoolExecutor(2) as pool:
            told = [pool.submit(stream.read) if stream else None for stream in (self.stdout, self.stderr)]
            try:
                self.wait(timeout)
            except subprocess.TimeoutExpired:
                self.kill()
                raise
            output, errors = (reading.result() if reading else "" for reading in told)
        return output, errors

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _answer(self) -> int:
        [number] = _NUMBER.unpack(self._answers.recv(_NUMBER.size, socket.MSG_WAITALL))
        return int(number)


def _end_of(file: BinaryIO | None) -> tuple[TextIO | None, int]:
    """Return the read end of a new pipe and the descriptor to write to. A given file needs no pipe."""
    if file is not None:
        return None, os.dup(file.fileno())
    reading, writing = os.pipe()
    return open(reading, encoding="utf-8"), writing  # noqa: PTH123 - a pipe


def _can_fork(environment: Mapping[str, str]) -> bool:
    """Return whether this system can fork, and the environment starts Python as in the server."""
    if sys.platform == "win32" or os.environ.get(COLD_STARTS):
        return False
    here, there = (
        {name: value for name, value in one.items() if name.startswith(_OF_PYTHON)} for one in (os.environ, environment)
    )
    own = _own_environment()
    for name in ("PYTHONPATH", "PYTHONUTF8"):
        if there.pop(name, None) not in (here.pop(name, None), own[name]):
            return False
    return here == there


def _own_environment() -> Mapping[str, str]:
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONUTF8": "1", "OPENBLAS_NUM_THREADS": "1"}


def _text(file: BinaryIO) -> str:
    file.seek(0)
    return io.TextIOWrapper(io.BytesIO(file.read()), encoding="utf-8").read()


def _connection() -> socket.socket:
    """Return the connection to the server. Start the server on the first call; it ends with this process."""
    if not _connections:
        connection, theirs = socket.socketpair()
        with theirs:
            server = subprocess.Popen(
                [sys.executable, __file__, str(theirs.fileno())],
                env=_own_environment(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,  # in which no fork can seek, whatever its output is
                stderr=subprocess.PIPE,
                pass_fds=[theirs.fileno()],
            )
        atexit.register(server.wait)
        atexit.register(connection.close)
        _connections.append(connection)
    return _connections[0]


# -- The server --------------------------------------------------------------------------------------------------------


def _serve(connection: socket.socket) -> None:
    import epbuild

    for name in _LIBRARIES:
        importlib.import_module(name)
    import_jsonschema()
    for module in pkgutil.walk_packages(epbuild.__path__, "epbuild."):
        if not module.name.startswith(_NOT_IMPORTED):
            importlib.import_module(module.name)
    gc.collect()
    gc.freeze()
    while True:
        header, descriptors, _, _ = socket.recv_fds(connection, 4, 3)
        if not header:
            return
        content = b""
        while len(content) < int.from_bytes(header, "little"):
            content += connection.recv(1 << 20)
        if not os.fork():
            connection.close()
            _watch(json.loads(content), *descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


def _watch(request: Mapping[str, Any], output: int, errors: int, answer: int) -> NoReturn:
    """Fork again and report the end of the child. The server itself continues with the next request."""
    process = os.fork()
    if not process:
        os.close(answer)
        _become(request, output, errors)
    os.close(output)
    os.close(errors)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(OSError), socket.socket(fileno=answer) as answers:
        answers.sendall(_NUMBER.pack(process))
        ended = os.waitid(os.P_PID, process, os.WEXITED | os.WNOWAIT)
        assert ended is not None
        answers.sendall(_NUMBER.pack(ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status))
        answers.recv(1)
    os._exit(0)


def _become(request: Mapping[str, Any], output: int, errors: int) -> NoReturn:
    try:
        for descriptor, stream in ((output, 1), (errors, 2)):
            os.dup2(descriptor, stream)
            os.close(descriptor)
        os.environ.clear()
        os.environ.update(request["environment"])
        time.tzset()
        os.umask(request["mask"])
        os.chdir(request["folder"])
        if request["session"]:
            os.setsid()
        sys.argv = [str(ROOT / "epbuild/__main__.py"), *request["arguments"]]
        # `main` notes the process that it is imported in.
        exec(f"{request['before']}\n{_MAIN}", {"__name__": "__main__"})
    except BaseException:  # noqa: BLE001 - nothing of the server may run in this process
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(1)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        _serve(socket.socket(fileno=int(sys.argv[1])))
