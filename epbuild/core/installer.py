"""The program uv, which resolves and installs packages."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence

from epbuild.core.errors import Problem, ToolchainError

_SAID_LINES = 6


def run_uv(arguments: Sequence[str], changes: Mapping[str, str | None] | None = None) -> subprocess.CompletedProcess[str]:
    """Run uv to its end; `changes` are variables of its environment (None: without it). Raises ToolchainError where there is no uv."""
    import uv

    try:
        program = uv.find_uv_bin()
    except FileNotFoundError as error:
        hint = "Install it: `pip install --force-reinstall uv`."
        raise ToolchainError(
            Problem("EPB301", "the program uv, which makes toolchains, is missing from epbuild's environment", None, hint)
        ) from error
    wanted = {**os.environ, "UV_NO_PROGRESS": "1", "NO_COLOR": "1", "VIRTUAL_ENV": None, **(changes or {})}
    return subprocess.run(
        [program, *arguments],
        capture_output=True,
        text=True,
        encoding="utf-8",
        errors="replace",
        env={name: value for name, value in wanted.items() if value is not None},
        check=False,
    )


def reported(stderr: str) -> tuple[str, str]:
    """All that uv reported when it failed, on one line, and the end of that, to be quoted."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip() and not line.startswith(("Using ", "Resolved "))]
    return " ".join(lines), " ".join(lines[-_SAID_LINES:]) or "nothing"


def is_network(text: str) -> bool:
    """Whether what uv reported is about the network."""
    return any(word in text.lower() for word in ("dns error", "error sending request", "connection", "timed out", "offline"))
