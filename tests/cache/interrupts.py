"""Ctrl-C at every line of a call."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any


def interrupted(work: Callable[[], object]) -> Iterator[int]:
    """Call `work` repeatedly: first without an interrupt, then interrupted at its first line, its second, and so on.

    Yields the number of each line at which it interrupted the call.
    """
    work()  # for example, imports happen once
    line = 0
    while _is_interrupted(work, line):
        yield line
        line += 1


def _is_in_filelock(frame: FrameType | None) -> bool:
    """Return whether filelock is running. An interrupt there would leave its locks held in this process and its forks."""
    while frame is not None:
        if f"{os.sep}filelock{os.sep}" in frame.f_code.co_filename:
            return True
        frame = frame.f_back
    return False


def _is_interrupted(work: Callable[[], object], line: int) -> bool:
    left = line

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal left
        if event == "line" and not _is_in_filelock(frame):
            left -= 1
            if left == -1:
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    except (KeyboardInterrupt, OSError) as error:
        # The standard library closes some files twice after an interrupt.
        if isinstance(error, KeyboardInterrupt) or isinstance(error.__context__, KeyboardInterrupt):
            return True
        raise
    finally:
        sys.settrace(before)
    return left < 0
