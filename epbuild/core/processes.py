"""Processes and memory of this machine, by psutil."""

from __future__ import annotations

from contextlib import suppress


def end_tree(pid: int) -> None:
    """End a process, so that it reports no end of those that came from it, and then those, as far as their parents still lead to them."""
    import psutil

    with suppress(psutil.Error):
        process = psutil.Process(pid)
        for found in (process, *process.children(recursive=True)):
            with suppress(psutil.Error):
                found.kill()


def physical_memory() -> int | None:
    """The bytes of memory that this machine has; None where that is not known."""
    import psutil

    try:
        return int(psutil.virtual_memory().total)
    except (OSError, RuntimeError, psutil.Error):
        return None
