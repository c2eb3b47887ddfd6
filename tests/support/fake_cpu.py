"""Fake CPU of the machine that runs the tests."""

from __future__ import annotations

import builtins
import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from epbuild.toolchain import platforms


@contextmanager
def on_cpu(name: str, flags: str = "", platform: str = "linux") -> Iterator[None]:
    """Pretend that this machine has another CPU."""
    read = builtins.open

    def open_(file: Any, *arguments: Any, **options: Any) -> Any:
        if file == "/proc/cpuinfo":
            return io.StringIO(f"vendor_id : Acme\nmodel name : {name}\nflags : {flags}\n")
        return read(file, *arguments, **options)

    platforms._read_instructions.cache_clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(builtins, "open", open_)
        patch.setattr(sys, "platform", platform)
        yield
    platforms._read_instructions.cache_clear()
