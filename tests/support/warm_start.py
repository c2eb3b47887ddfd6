"""Command lines in forks of one process that has epbuild's imports done.

A start of Python and the imports are two thirds of what a short command takes, and hundreds of tests run one. A fork differs from
`python -m epbuild` in that alone: arguments, environment, folder, streams, signals and exit code are its own. Where there is no fork, where
Python would start otherwise in the environment that is asked for, and with `--cold-starts`, Python is started.
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
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

ROOT = Path(__file__).parents[2]
COLD_STARTS = "EPBUILD_TESTS_COLD_STARTS"
_OF_PYTHON = ("PYTHON", "LC_", "LANG", "LD_", "MALLOC_")
_LIBRARIES = ("filelock", "numpy", "onnx", "psutil", "rich.console", "sqlite3", "tomllib", "xxhash", "yaml")
_NOT_IMPORTED = ("epbuild.__main__", "epbuild.compile.worker", "epbuild.runtime")

_connections: list[socket.socket] = []


def run(
    arguments: Sequence[str], folder: Path, environment: Mapping[str, str], timeout: float, *, cold: bool = False
) -> subprocess.CompletedProcess[str]:
    """`epbuild` with these arguments, no terminal and nothing to read; raises TimeoutExpired once the process was killed."""
    command = [sys.executable, "-m", "epbuild", *arguments]
    if cold or not _can_fork(environment):
        return subprocess.run(
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            encoding="utf-8",
            timeout=timeout,
            check=False,
        )
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        code, late = _fork(arguments, folder, environment, (output, errors), timeout)
        if late:
            raise subprocess.TimeoutExpired(command, timeout, _text(output), _text(errors))
        return subprocess.CompletedProcess(command, code, _text(output), _text(errors))


def _can_fork(environment: Mapping[str, str]) -> bool:
    """Whether this is a system with forks, and Python would start in this environment as it did in the server's."""
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
    """To the server, which is started the first time and ends with this process."""
    if not _connections:
        connection, theirs = socket.socketpair()
        with theirs:
            server = subprocess.Popen(
                [sys.executable, __file__, str(theirs.fileno())],
                env=_own_environment(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )
        atexit.register(server.wait)
        atexit.register(connection.close)
        _connections.append(connection)
    return _connections[0]


def _fork(
    arguments: Sequence[str], folder: Path, environment: Mapping[str, str], streams: Sequence[BinaryIO], timeout: float
) -> tuple[int, bool]:
    """The exit code of a fork, negative for a signal, and whether it was killed for taking too long."""
    mask = os.umask(0o022)
    os.umask(mask)
    request = {"arguments": [*arguments], "folder": str(folder), "environment": {**environment}, "mask": mask}
    content = json.dumps(request).encode("ascii")
    reading, writing = os.pipe()
    with open(reading, encoding="ascii") as answer:  # noqa: PTH123 - a pipe
        try:
            connection = _connection()
            socket.send_fds(connection, [len(content).to_bytes(4, "little")], [*(file.fileno() for file in streams), writing])
            connection.sendall(content)
        finally:
            os.close(writing)
        process = int(answer.readline())
        late = threading.Event()

        def kill() -> None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
                late.set()

        killer = threading.Timer(timeout, kill)
        killer.start()
        code = int(answer.readline())
        killer.cancel()
    return code, late.is_set()


# -- The server --------------------------------------------------------------------------------------------------------


def _serve(connection: socket.socket) -> None:
    import epbuild

    for name in _LIBRARIES:
        importlib.import_module(name)
    importlib.import_module("epbuild.core.schemas").import_jsonschema()
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
    """Fork once more, and report how that ends: the server itself goes on with the next request."""
    process = os.fork()
    if not process:
        os.close(answer)
        _become(request, output, errors)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.write(answer, b"%d\n" % process)
    _, status = os.waitpid(process, 0)
    os.write(answer, b"%d\n" % os.waitstatus_to_exitcode(status))
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
        sys.argv = [str(ROOT / "epbuild/__main__.py"), *request["arguments"]]
        from epbuild.__main__ import main  # which notes the process that it is imported in

        main()
    except BaseException:  # noqa: BLE001 - nothing of the server may run in this process
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(1)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        _serve(socket.socket(fileno=int(sys.argv[1])))
