"""Library of the tests' own plugin EP, which a C compiler builds."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

COMPILER = shutil.which("cc")
EP = "ContosoExecutionProvider"
needs_compiler = pytest.mark.skipif(
    COMPILER is None or sys.platform != "linux", reason="the plugin EP is compiled with the C compiler of Linux"
)


def build_library(folder: Path) -> Path:
    """Build the library in `folder`, and return its path."""
    assert COMPILER is not None
    made = folder / "libcontoso_ep.so"
    source = Path(__file__).with_name("contoso_ep.c")
    subprocess.run([COMPILER, "-std=gnu11", "-shared", "-fPIC", "-w", source, "-o", made], check=True, timeout=60)
    return made
