"""The folder of this user's caches, found without any import but `os`."""

from __future__ import annotations

import os
import sys

CACHE_VARIABLES = ("EPBUILD_CACHE_DIR", "XDG_CACHE_HOME", "LOCALAPPDATA", "HOME", "USERPROFILE")
"""The variables of the environment that decide where it is."""


def cache_root() -> str | None:
    """`$EPBUILD_CACHE_DIR`, else `epbuild` in the platform's cache folder; None where neither that nor a home is set. Makes nothing."""
    chosen = os.environ.get("EPBUILD_CACHE_DIR")
    if chosen:
        return os.path.join(os.getcwd(), chosen)  # noqa: PTH109, PTH118
    if sys.platform == "win32":
        return _below("LOCALAPPDATA", ("AppData", "Local"), "epbuild", "cache")
    if sys.platform == "darwin":
        return _below("", ("Library", "Caches"), "epbuild")
    return _below("XDG_CACHE_HOME", (".cache",), "epbuild")


def _below(variable: str, below_home: tuple[str, ...], *names: str) -> str | None:
    named = os.environ.get(variable, "")
    # The XDG specification has relative values ignored; the same sense holds for the others.
    if os.path.isabs(named):  # noqa: PTH117
        return os.path.join(named, *names)  # noqa: PTH118
    home = os.path.expanduser("~")  # noqa: PTH111
    return None if home == "~" else os.path.join(home, *below_home, *names)  # noqa: PTH118
