"""Health checks of Python, uv, clock, locale and memory."""

from __future__ import annotations

import importlib.util
import os
import platform
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, TypeVar

from msgspec import Struct, field

from epbuild.core.errors import EpbuildError, ToolchainError
from epbuild.core.installer import run_uv
from epbuild.core.units import format_count
from epbuild.engine.capacity import get_memory
from epbuild.toolchain.platforms import get_own_platform

HealthState = Literal["ok", "note", "warning", "error"]
"""Severity: an `error` stops all builds, a `warning` limits builds, and a `note` only informs."""

Topic = Literal[
    "python", "uv", "clock", "locale", "memory", "settings", "recipe", "cache", "toolchains", "workspace", "paths", "remote cache",
    "signing key", "cluster", "toolchain", "ep",
]  # fmt: skip

T = TypeVar("T")
_UV_SECONDS = 8.0
_DAY_SECONDS = 86400.0
_MIN_BYTES = 2 << 30
EXTRAS = {
    "archive": ("zstandard",),
    "remote": ("obstore", "nacl"),
    "hf": ("huggingface_hub",),
    "dask": ("distributed", "cryptography"),
}
"""Modules that epbuild's extras install, by extra."""
RunProgram = Callable[[Sequence[str]], "subprocess.CompletedProcess[str]"]


class HealthCheck(Struct, frozen=True):
    """Result of one check: topic, state, text and hint. `name` distinguishes checks of one topic."""

    topic: Topic
    state: HealthState
    text: str
    hint: str | None = None
    code: str | None = None
    name: str = ""


def make_error_check(topic: Topic, error: EpbuildError, state: HealthState = "error", name: str = "") -> HealthCheck:
    """Return a check with the first problem of an error and the number of its other problems."""
    first, *more = error.problems
    place = f"{first.where}: " if first.where is not None else ""
    rest = f" (and {len(more)} more)" if more else ""
    return HealthCheck(topic, state, f"{place}{first.message.rstrip('.')}{rest}", first.hint, first.code, name)


class TooSlow(Exception):
    """Error for work that exceeded its time limit. The work may continue in its thread."""


def run_within(seconds: float, work: Callable[[], T]) -> T:
    """Run `work` in a daemon thread, and return its result or raise its exception. Raises TooSlow after `seconds`."""
    found: list[T] = []
    raised: list[BaseException] = []

    def run() -> None:
        try:
            found.append(work())
        except BaseException as error:  # noqa: BLE001 - the waiting thread raises it again
            raised.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    if raised:
        raise raised[0]
    if not found:
        raise TooSlow
    return found[0]


class ThisMachine(Struct, frozen=True):
    """Functions that read the state of this machine. Tests replace them."""

    environment: Mapping[str, str] = field(default_factory=lambda: os.environ)
    system: str = sys.platform
    run_uv: RunProgram = run_uv
    now: Callable[[], float] = time.time
    memory: Callable[[], int | None] = get_memory
    encoding: Callable[[], str] = sys.getfilesystemencoding


def check_machine(here: ThisMachine) -> Iterator[HealthCheck]:
    yield _check_python()
    yield _check_uv(here)
    yield _check_memory(here)
    yield _check_clock(here)
    yield _check_locale(here)


def _check_python() -> HealthCheck:
    extras = [name for name, modules in EXTRAS.items() if all(map(importlib.util.find_spec, modules))]
    text = f"{platform.python_version()} on {get_own_platform() or platform.platform()}, {sys.executable}"
    if get_own_platform() is None:
        return HealthCheck("python", "warning", f"{text}: toolchains cannot be locked for this platform", "Build without a lock.")
    return HealthCheck("python", "ok", f"{text}; extras: {', '.join(extras) or 'none'}")


def _check_uv(here: ThisMachine) -> HealthCheck:
    try:
        done = run_within(_UV_SECONDS, lambda: here.run_uv(["--version"]))
    except ToolchainError as error:
        return make_error_check("uv", error)
    except TooSlow:
        return _make_uv_error(f"no answer within {_UV_SECONDS:g} s")
    except OSError as error:
        return _make_uv_error(error.strerror or str(error))
    words = (done.stdout.strip() or done.stderr.strip()).splitlines()
    if done.returncode != 0:
        return _make_uv_error(words[-1] if words else f"exit status {done.returncode}")
    return HealthCheck("uv", "ok", words[0].removeprefix("uv ") if words else "unknown version")


def _make_uv_error(why: str) -> HealthCheck:
    return HealthCheck("uv", "error", f"uv does not run: {why}", "Reinstall uv: `pip install --force-reinstall uv`.", "EPB301")


def _check_memory(here: ThisMachine) -> HealthCheck:
    cpus, size = os.cpu_count() or 1, here.memory()
    shown = f"{f'{size / 1e9:.1f} GB' if size else 'unknown size,'} for {format_count(cpus, 'CPU')}"
    if size is not None and size < _MIN_BYTES:
        return HealthCheck(
            "memory", "warning", shown, "Run one action at a time (`-j 1`): compiling a large model needs several GB."
        )
    return HealthCheck("memory", "ok", shown)


def _check_clock(here: ThisMachine) -> HealthCheck:
    """Check that the clock is later than the installation of epbuild. TLS and file times depend on the clock."""
    now = here.now()
    shown = datetime.fromtimestamp(now, UTC).isoformat(sep=" ", timespec="seconds").removesuffix("+00:00")
    if now < Path(__file__).stat().st_mtime - _DAY_SECONDS:
        hint = "Set the clock. Until then, TLS connections fail."
        return HealthCheck("clock", "error", f"{shown} UTC is earlier than the time when epbuild was installed", hint)
    return HealthCheck("clock", "ok", f"{shown} UTC")


def _check_locale(here: ThisMachine) -> HealthCheck:
    encoding = here.encoding()  # epbuild reads and writes all texts in UTF-8
    if encoding.lower().replace("-", "") == "utf8":
        return HealthCheck("locale", "ok", "UTF-8")
    hint = "Set PYTHONUTF8=1 or a UTF-8 locale. Otherwise files with non-ASCII names may not be found."
    return HealthCheck("locale", "warning", f"file names in {encoding}", hint)
