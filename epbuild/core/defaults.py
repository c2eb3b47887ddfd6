"""Fixed names of files, and the folder of caches.

The fast path imports this module before all others.
"""

from __future__ import annotations

import os
import sys

DEFAULT_RECIPE = "epbuild.yaml"
WORKSPACE = ".epbuild"
MANIFEST = "manifest.json"
STATEMENT = ".intoto.json"
"""Suffix of provenance files. The provenance of `dist.tar` is in `dist.tar.intoto.json`, beside the archive."""

CACHE_VARIABLES = ("EPBUILD_CACHE_DIR", "XDG_CACHE_HOME", "LOCALAPPDATA", "HOME", "USERPROFILE")
"""Environment variables that determine the folder of the cache."""


def find_cache_root() -> str | None:
    """Return the folder of the current user's caches, or None if the user has no home directory. The folder may not exist."""
    chosen = os.environ.get("EPBUILD_CACHE_DIR")
    if chosen:
        return os.path.join(os.getcwd(), chosen)  # noqa: PTH109, PTH118
    if sys.platform == "win32":
        return _find_below("LOCALAPPDATA", ("AppData", "Local"), "epbuild", "cache")
    if sys.platform == "darwin":
        return _find_below("", ("Library", "Caches"), "epbuild")
    return _find_below("XDG_CACHE_HOME", (".cache",), "epbuild")


def _find_below(variable: str, below_home: tuple[str, ...], *names: str) -> str | None:
    named = os.environ.get(variable, "")
    # The XDG specification ignores relative values. This is also sensible for the other variables.
    if os.path.isabs(named):  # noqa: PTH117
        return os.path.join(named, *names)  # noqa: PTH118
    home = os.path.expanduser("~")  # noqa: PTH111
    return None if home == "~" else os.path.join(home, *below_home, *names)  # noqa: PTH118
