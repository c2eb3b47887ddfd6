"""Reasons for which a test is skipped on Windows, and commands that a test on Linux runs under wine.

`tools/wine` counts tests by the words that the reasons begin with.
"""

from __future__ import annotations

import ctypes
import io
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import pytest

from tests.support.projects import Project
from tools.wine.environment import ROOT, Wine, to_windows_path

WINE = Wine(ROOT / ".wine")
_SECONDS = 1200
IS_WINE = sys.platform == "win32" and hasattr(ctypes.WinDLL("ntdll"), "wine_get_version")


def wine_lacks(feature: str) -> pytest.MarkDecorator:
    """Skip a test under wine, which lacks a feature of Windows."""
    return pytest.mark.skipif(IS_WINE, reason=f"wine lacks {feature}")


def not_yet(reason: str) -> pytest.MarkDecorator:
    """Skip a test that should pass on Windows and does not."""
    return pytest.mark.skipif(sys.platform == "win32", reason=f"not yet: {reason}")


def need_wine() -> pytest.MarkDecorator:
    """Skip a test of Linux that runs Windows Python under wine, unless `python -m tools.wine` has created it."""
    reason = "Windows Python under wine is not set up: `python -m tools.wine --setup-only`"
    return pytest.mark.skipif(sys.platform == "win32" or not WINE.is_set_up(), reason=reason)


def run_epbuild(arguments: Sequence[str], folder: Path, variables: Mapping[str, str], output: BinaryIO, errors: BinaryIO) -> int:
    """Run `epbuild` under wine and return its exit code. Of these variables, epbuild gets its own."""
    own = {name: value for name, value in variables.items() if name.startswith("EPBUILD_") and name != "EPBUILD_TOOLCHAIN_DIR"}
    own["EPBUILD_CACHE_DIR"] = to_windows_path(Path(variables["EPBUILD_CACHE_DIR"]))
    return WINE.run_python(
        *("-m", "epbuild", *arguments), output=output, errors=errors, cwd=folder, variables=own, seconds=_SECONDS
    )


@dataclass
class WineProject(Project):
    """A project in which a test on Linux runs epbuild under wine."""

    def epbuild(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        output, errors = io.BytesIO(), io.BytesIO()
        code = run_epbuild(arguments, self.folder, self.command()[1], output, errors)
        return subprocess.CompletedProcess(arguments, code, *(told.getvalue().decode() for told in (output, errors)))
