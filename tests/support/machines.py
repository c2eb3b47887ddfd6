"""Machines that tests run on in name only."""

from __future__ import annotations

import builtins
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from epbuild.toolchain import host


@contextmanager
def on_cpu(name: str) -> Iterator[None]:
    """Have the CPU of this machine go by another name."""
    read = builtins.open

    def open_(file: Any, *arguments: Any, **options: Any) -> Any:
        if file == "/proc/cpuinfo":
            raise FileNotFoundError(file)
        return read(file, *arguments, **options)

    host._instructions.cache_clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(builtins, "open", open_)
        patch.setenv("PROCESSOR_IDENTIFIER", name)
        yield
    host._instructions.cache_clear()
