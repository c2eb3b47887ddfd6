"""Runner of uv, the program that resolves and installs packages."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from epbuild.core.errors import Problem, ToolchainError

_QUOTED_LINES = 6
_POLL_SECONDS = 0.1
_LAST_LINES_SECONDS = 5.0
_FINDING = threading.Lock()


class UvListener:
    """Listener for a run of uv. The run ends when `cancelled` is set. This base class discards uv's log lines."""

    def __init__(self, cancelled: threading.Event | None = None) -> None:
        self.cancelled = cancelled or threading.Event()

    def logged(self, line: str) -> None:
        """Handle a line of uv's log. The line has no line ending."""


def run_uv(
    arguments: Sequence[str],
    changes: Mapping[str, str | None] | None = None,
    listener: UvListener | None = None,
    inherited_files: Sequence[int] = (),
) -> subprocess.CompletedProcess[str]:
    """Run uv and return its exit code and output. Raises ToolchainError if uv is missing.

    `changes` are environment variables for uv. The value None unsets a variable. `inherited_files` are open file descriptors that uv
    keeps open until it ends.
    """
    program = _find_uv()
    # epbuild's variables are removed because they contain secrets: uv runs foreign build scripts for packages without wheels.
    inherited = {name: value for name, value in os.environ.items() if not name.upper().startswith("EPBUILD_")}
    wanted = {**inherited, "UV_NO_PROGRESS": "1", "NO_COLOR": "1", "VIRTUAL_ENV": None, **(changes or {})}
    environment = {name: value for name, value in wanted.items() if value is not None}
    command = [program, *arguments]
    options: dict[str, Any] = {
        "text": True,
        "encoding": "utf-8",
        "errors": "replace",
        "env": environment,
        "pass_fds": inherited_files,
    }
    if listener is None:
        return subprocess.run(command, capture_output=True, check=False, **options)
    process: subprocess.Popen[str] = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, **options)
    lines: list[str] = []
    reader = threading.Thread(target=_read_lines, args=(process, lines, listener), daemon=True)
    reader.start()
    try:
        while process.poll() is None and not listener.cancelled.is_set():
            with suppress(subprocess.TimeoutExpired):
                process.wait(_POLL_SECONDS)
    finally:
        if process.poll() is None:
            process.kill()
    code = process.wait()
    reader.join(_LAST_LINES_SECONDS)  # a process that uv started may keep the pipe open
    return subprocess.CompletedProcess(command, code, "", "".join(lines))


def _find_uv() -> str:
    import uv

    try:
        with _FINDING:  # `sysconfig`, which uv reads, is not thread-safe in Python 3.11
            return uv.find_uv_bin()
    except FileNotFoundError as error:
        hint = "Install uv: `pip install --force-reinstall uv`."
        message = "the program uv, which creates toolchains, is missing from epbuild's environment"
        raise ToolchainError(Problem("EPB301", message, None, hint)) from error


def _read_lines(process: subprocess.Popen[str], lines: list[str], listener: UvListener) -> None:
    for line in process.stderr or ():
        lines.append(line)
        listener.logged(line.rstrip())


def quote_report(stderr: str) -> tuple[str, str]:
    """Return uv's whole error report as one line, and its last lines for quoting in a message."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip() and not line.startswith(("Using ", "Resolved "))]
    return " ".join(lines), " ".join(lines[-_QUOTED_LINES:]) or "nothing"


def is_network_error(text: str) -> bool:
    """Return whether uv reported a network error."""
    return any(word in text.lower() for word in ("dns error", "error sending request", "connection", "timed out", "offline"))
