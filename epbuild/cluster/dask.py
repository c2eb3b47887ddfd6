"""The package `import_distributed` of Dask, with pickles that are read as data.

Dask reads pickles that the scheduler, workers and other clients send, and a pickle can have its reader call any function that it
names. So in epbuild's processes Dask reads them by `read`, which refuses every name that Dask's own messages to a process do not need.
"""

from __future__ import annotations

import importlib
import io
import logging
import pickle
from collections.abc import Iterable
from types import ModuleType
from typing import Any

from epbuild.core.errors import Problem, ToolchainError

_NOISY = ("distributed", "tornado", "asyncio")  # asyncio logs tasks of Dask that are never awaited
_INSTALL = "Install it with `pip install 'epbuild[dask]'`."

READERS = ("distributed.client", "distributed.protocol.pickle", "distributed.shuffle._core", "distributed.shuffle._pickle")
"""Modules of Dask that call the standard library's `pickle` to load objects. Other modules load objects through them."""

_TRACEBACK = "tblib.pickling_support.unpickle_traceback"

# Types of replies and requests, which Dask names in the headers of its messages.
_allowed = {"builtins.bytes", "builtins.str"}


def import_distributed() -> Any:
    """Return the package, with guarded unpickling and without logging: callers report errors.

    Raises ToolchainError if it is not installed.
    """
    try:
        package = importlib.import_module("distributed")
    except ImportError as error:
        message = "compiles on other machines need the package distributed, which is not installed"
        raise ToolchainError(Problem("EPB533", message, hint=_INSTALL)) from error
    guard()
    for name in ("asyncio", "tornado", *logging.root.manager.loggerDict):  # Dask gives some of its loggers a level of their own
        if name.startswith(_NOISY):
            logging.getLogger(name).setLevel(logging.CRITICAL)
    return package


class RefusedPickle(Exception):
    """Placeholder for the content of a pickle that was not read."""

    def __init__(self, reason: str, data: bytes) -> None:
        super().__init__(reason)
        self._data = bytes(data)

    def mentions(self, name: str) -> bool:
        """Return whether the pickle contains the name of a class. Untrusted: any sender can put it there."""
        return name.encode() in self._data


class _RefusedName(Exception):
    """A pickle names a function or a class that is not allowed."""


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> object:
        full = f"{module}.{name}"
        if full not in _allowed:
            raise _RefusedName(full)
        return super().find_class(module, name)


def read(data: bytes, /, *, buffers: Iterable[object] = ()) -> object:
    """Return the content of a pickle, or a RefusedPickle if it names what is not allowed or is not a pickle.

    It is returned, not raised: Dask closes a connection whose messages cannot be read, and one bad message must not end other requests.
    """
    try:
        return _Reader(io.BytesIO(data), buffers=buffers).load()
    except _RefusedName as error:
        # Dask takes nothing else than a traceback or None for a traceback.
        return None if str(error) == _TRACEBACK else RefusedPickle(f"a pickle that names {error}", data)
    except Exception as error:  # noqa: BLE001 - a damaged pickle raises almost anything
        return RefusedPickle(f"a damaged pickle ({type(error).__name__})", data)


def guard(*names: str) -> None:
    """Make Dask in this process read pickles by `read`, and add functions and classes to those that pickles may name."""
    _allowed.update(names)
    for reader in READERS:
        module = importlib.import_module(reader)
        if module.pickle is pickle:
            module.pickle = _guarded_pickle()  # type: ignore[attr-defined]


def _guarded_pickle() -> ModuleType:
    """Return a copy of the standard library's module that reads pickles by `read`."""
    module = ModuleType("pickle")
    vars(module).update(vars(pickle), loads=read, load=_refuse, Unpickler=_Reader)
    return module


def _refuse(*_: object, **__: object) -> object:
    raise _RefusedName("a pickle in a file")
