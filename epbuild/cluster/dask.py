"""Import of Dask's package `distributed`, with guarded unpickling.

Dask reads pickles from the scheduler, workers and other clients. A pickle can make its reader call any function that the pickle names. So
in epbuild's processes, Dask reads pickles with `read`, which refuses every name that Dask's own messages do not need.
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

_NOISY = ("distributed", "tornado", "asyncio")  # asyncio logs Dask's tasks that are never awaited
_INSTALL = "Install it with `pip install 'epbuild[dask]'`."

READERS = ("distributed.client", "distributed.protocol.pickle", "distributed.shuffle._core", "distributed.shuffle._pickle")
"""Dask's modules that load objects with the standard library's `pickle`. Other modules load objects through these."""

_TRACEBACK = "tblib.pickling_support.unpickle_traceback"

# Names that pickles may contain. Initially the types of replies and requests, which Dask names in message headers.
_allowed = {"builtins.bytes", "builtins.str"}


def import_distributed() -> Any:
    """Return the package `distributed`, with guarded unpickling. Logging is silenced, since callers report errors.

    Raises ToolchainError if the package is not installed.
    """
    try:
        package = importlib.import_module("distributed")
    except ImportError as error:
        message = "compiling on other machines requires the package distributed, which is not installed"
        raise ToolchainError(Problem("EPB533", message, hint=_INSTALL)) from error
    guard()
    for name in ("asyncio", "tornado", *logging.root.manager.loggerDict):  # Dask sets the levels of some of its loggers
        if name.startswith(_NOISY):
            logging.getLogger(name).setLevel(logging.CRITICAL)
    return package


class RefusedPickle(Exception):
    """Placeholder for the content of a refused pickle."""

    def __init__(self, reason: str, data: bytes) -> None:
        super().__init__(reason)
        self._data = bytes(data)

    def mentions(self, name: str) -> bool:
        """Return whether the pickle contains `name`, the name of a class. Do not trust the result, as any sender can add a name."""
        return name.encode() in self._data


class _RefusedName(Exception):
    """Error for the name of a function or class that pickles may not contain."""


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> object:
        full = f"{module}.{name}"
        if full not in _allowed:
            raise _RefusedName(full)
        return super().find_class(module, name)


def read(data: bytes, /, *, buffers: Iterable[object] = ()) -> object:
    """Return the content of a pickle, or a RefusedPickle if the pickle contains a forbidden name or is damaged.

    The RefusedPickle is returned, not raised: Dask closes the connection if a message cannot be read, and one bad message must not end
    other requests.
    """
    try:
        return _Reader(io.BytesIO(data), buffers=buffers).load()
    except _RefusedName as error:
        # In place of a traceback, Dask accepts only None.
        return None if str(error) == _TRACEBACK else RefusedPickle(f"a pickle that names {error}", data)
    except Exception as error:  # noqa: BLE001 - a damaged pickle raises almost anything
        return RefusedPickle(f"a damaged pickle ({type(error).__name__})", data)


def guard(*names: str) -> None:
    """Make Dask in this process read pickles with `read`, and allow pickles to contain `names`, the names of functions and classes."""
    _allowed.update(names)
    for reader in READERS:
        module = importlib.import_module(reader)
        if module.pickle is pickle:
            module.pickle = _build_guarded_pickle()  # type: ignore[attr-defined]


def _build_guarded_pickle() -> ModuleType:
    """Return a copy of the standard library's `pickle` module that reads pickles with `read`."""
    module = ModuleType("pickle")
    vars(module).update(vars(pickle), loads=read, load=_refuse, Unpickler=_Reader)
    return module


def _refuse(*_: object, **__: object) -> object:
    raise _RefusedName("a pickle in a file")
