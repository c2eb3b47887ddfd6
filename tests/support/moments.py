"""Hooks that call a function of the test at one moment of a program."""

from __future__ import annotations

import inspect
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any

Act = Callable[[Mapping[str, Any]], object]


@contextmanager
def at_each_call(function: Any, act: Act) -> Iterator[None]:
    """Call `act` with the arguments of each call of a function in the block, before the call begins.

    An exception in `act` is raised by the call. The hook covers this thread and the threads that start in the block, but not
    calls by `act` itself.
    """
    with _watched(function, act, "call"):
        yield


@contextmanager
def at_each_return(function: Any, act: Act) -> Iterator[None]:
    """Call `act` with the variables of a function at the end of each call in the block, before it returns."""
    with _watched(function, act, "return"):
        yield


@contextmanager
def _watched(function: Any, act: Act, wanted: str) -> Iterator[None]:
    code = inspect.unwrap(function).__code__
    before, in_threads = sys.gettrace(), threading.gettrace()

    def trace(frame: FrameType, event: Any, argument: Any) -> Any:
        if frame.f_code is not code:
            return before(frame, event, argument) if before is not None else None
        if event == wanted:
            act(frame.f_locals)
        return trace if wanted == "return" else None

    sys.settrace(trace)
    threading.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)
        threading.settrace(in_threads)
