"""Fixed names of files, and the folder of caches.

The fast path reads this module before anything else is imported.
"""

from __future__ import annotations

import os
import sys

DEFAULT_RECIPE = "epbuild.yaml"
WORKSPACE = ".epbuild"
MANIFEST = "manifest.json"
STATEMENT = ".intoto.json"
"""Suffix of the provenance beside an archive, which is named like the archive."""

CACHE_VARIABLES = ("EPBUILD_CACHE_DIR", "XDG_CACHE_HOME", "LOCALAPPDATA", "HOME", "USERPROFILE")
"""Environment variables that decide where the cache is."""


def find_cache_root() -> str | None:
    """Return the folder of this user's caches, which need not exist. None if there is no home directory for it."""
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
    # The XDG specification ignores relative values. The same is sensible for the others.
    if os.path.isabs(named):  # noqa: PTH117
        return os.path.join(named, *names)  # noqa: PTH118
    home = os.path.expanduser("~")  # noqa: PTH111
    return None if home == "~" else os.path.join(home, *below_home, *names)  # noqa: PTH118
