"""Dask's package `distributed`, if it is installed."""

from __future__ import annotations

import importlib
import logging
from typing import Any

from epbuild.cluster.unpickling import guard
from epbuild.core.errors import Problem, ToolchainError

_NOISY = ("distributed", "tornado", "asyncio")  # asyncio logs tasks of Dask that are never awaited
_INSTALL = "Install it with `pip install 'epbuild[dask]'`."


def distributed() -> Any:
    """Return the package, with guarded unpickling and without logging: callers report errors.

    Raises ToolchainError if it is not installed.
    """
    try:
        package = importlib.import_module("distributed")
    except ImportError as error:
        message = "compiles on other machines need the package distributed"
        raise ToolchainError(Problem("EPB533", message, hint=_INSTALL)) from error
    guard()
    for name in ("asyncio", "tornado", *logging.root.manager.loggerDict):  # Dask gives some of its loggers a level of their own
        if name.startswith(_NOISY):
            logging.getLogger(name).setLevel(logging.CRITICAL)
    return package
