"""This machine, as far as results may depend on it."""

from __future__ import annotations

import os
import sys


def on_windows() -> bool:
    return sys.platform == "win32"


def cpu_name() -> str:
    """What the CPU calls itself; EPs that compile for the host bake its instruction set into their output."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:  # noqa: PTH123 - read before anything is imported
            for line in file:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    uname = getattr(os, "uname", None)
    return os.environ.get("PROCESSOR_IDENTIFIER") or (uname().machine if uname else "unknown")
