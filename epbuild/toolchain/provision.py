"""One environment per distinct set of requirements, made by `uv` in the user's cache, and never changed afterwards."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from epbuild.errors import Position, Problem, ToolchainError
from epbuild.recipe import read_requirement

FORMAT = 1
_SAID_LINES = 6


@dataclass(frozen=True)
class Requirements:
    """What an environment must hold: pip requirements for a Python (None: the one that epbuild runs on)."""

    packages: tuple[str, ...]
    python: str | None = None

    def digest(self) -> str:
        """A name for these requirements on this platform, the same whatever their order or spacing."""
        running = f"{sys.implementation.name}-{sys.version_info[0]}.{sys.version_info[1]}"
        document = {
            "format": FORMAT,
            "packages": sorted(re.sub(r"\s+", "", package) for package in self.packages),
            "platform": sysconfig.get_platform(),
            "python": self.python or running,
        }
        return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()[:20]


def environment_folder(requirements: Requirements, home: Path) -> Path:
    """Where the environment for these requirements is, or would be, below the folder of all environments."""
    return home / requirements.digest()


def provisioned(requirements: Requirements, home: Path) -> Path | None:
    """The interpreter of an environment that is complete, else None. Writes nothing and starts nothing."""
    folder = environment_folder(requirements, home)
    interpreter = _interpreter(folder)
    return interpreter if (folder / "complete").is_file() and interpreter.exists() else None


def provision(requirements: Requirements, home: Path, *, name: str, where: Position | None) -> Path:
    """The interpreter of the environment for `requirements`, made if it is not there yet.

    `name` and `where` are the toolchain's, for messages. Two processes that want one environment wait for each other.
    Raises ToolchainError (EPB301) that says which package, and what uv said.
    """
    ready = provisioned(requirements, home)
    if ready is not None:
        return ready
    from filelock import FileLock

    folder = environment_folder(requirements, home)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(folder.with_suffix(".lock")):
            return provisioned(requirements, home) or _make(requirements, folder, name, where)
    except OSError as error:
        hint = "Free some space, or set EPBUILD_TOOLCHAIN_DIR to a folder that can be written."
        raise ToolchainError(
            Problem("EPB302", f"toolchain '{name}' could not be written to {folder}: {error}", where, hint)
        ) from error


def _make(requirements: Requirements, folder: Path, name: str, where: Position | None) -> Path:
    shutil.rmtree(folder, ignore_errors=True)  # what a killed run left
    interpreter = _interpreter(folder)
    python = requirements.python or sys.executable
    commands = [
        ["venv", "--no-project", "--python", python, str(folder / "env")],
        ["pip", "install", "--no-config", "--python", str(interpreter), *requirements.packages],
    ]
    for command in commands:
        done = _uv(command)
        if done.returncode != 0:
            shutil.rmtree(folder, ignore_errors=True)
            raise _failure(requirements, name, where, done.stderr)
    (folder / "complete").write_text(json.dumps(sorted(requirements.packages)), encoding="utf-8")
    return interpreter


def _uv(arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
    import uv

    try:
        program = uv.find_uv_bin()
    except FileNotFoundError as error:
        hint = "Install it: `pip install --force-reinstall uv`."
        raise ToolchainError(
            Problem("EPB301", "the program uv, which makes toolchains, is missing from epbuild's environment", None, hint)
        ) from error
    environment = {**os.environ, "UV_NO_PROGRESS": "1", "NO_COLOR": "1"}
    environment.pop("VIRTUAL_ENV", None)
    return subprocess.run(
        [program, *arguments],
        capture_output=True,
        text=True,
        encoding="utf-8",
        errors="replace",
        env=environment,
        check=False,
    )


def _failure(requirements: Requirements, name: str, where: Position | None, stderr: str) -> ToolchainError:
    said = [line.strip() for line in stderr.splitlines() if line.strip() and not line.startswith(("Using ", "Resolved "))]
    text = " ".join(said)
    blamed = [package for package in requirements.packages if _names(package, text)]
    subject = f"uv could not install {', '.join(blamed)}" if blamed else "uv could not make its environment"
    quote = " ".join(said[-_SAID_LINES:]) or "nothing"
    hint = "Check the name, the version and the Python of the toolchain" + (", and the network." if _is_network(text) else ".")
    return ToolchainError(
        Problem("EPB301", f"toolchain '{name}' could not be provisioned: {subject}; uv said: {quote}", where, hint)
    )


def _names(requirement: str, text: str) -> bool:
    name = read_requirement(requirement).distribution  # as uv writes it, however the recipe does
    return bool(name) and re.search(rf"(?<![\w.-]){name}(?![\w-])", text) is not None


def _is_network(text: str) -> bool:
    return any(word in text.lower() for word in ("dns error", "error sending request", "connection", "timed out", "offline"))


def _interpreter(folder: Path) -> Path:
    return folder / "env" / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
