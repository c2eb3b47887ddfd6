"""Moments of a program, at which a test looks, changes something, or ends it."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any


@contextmanager
def at_each_call(function: Any, act: Callable[[Mapping[str, Any]], object]) -> Iterator[None]:
    """Have `act` see the arguments of each call of a function in the block, before the call begins; what it raises, the call raises.

    That is so in this thread, and in those that start in the block.
    """
    code = function.__code__

    def trace(frame: FrameType, event: str, argument: object) -> None:
        if frame.f_code is code:
            act(frame.f_locals)

    before, in_threads = sys.gettrace(), threading.gettrace()
    sys.settrace(trace)
    threading.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)
        threading.settrace(in_threads)
