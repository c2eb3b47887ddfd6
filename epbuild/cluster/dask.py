"""Dask's package `distributed`, where it is installed."""

from __future__ import annotations

import importlib
import logging
from typing import Any

from epbuild.cluster.unpickling import guard
from epbuild.core.errors import Problem, ToolchainError

_NOISY = ("distributed", "tornado", "asyncio")  # the last: of tasks of Dask's that no one awaits
_INSTALL = "Install it with `pip install 'epbuild[dask]'`."


def distributed() -> Any:
    """Return the package, which from then on reads no pickle with a name in it, and logs nothing: callers report what goes wrong.

    Raises ToolchainError where it is not installed.
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
