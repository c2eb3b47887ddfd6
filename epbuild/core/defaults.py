"""Fixed names of files, and the folder of caches.

The fast path imports this module before all others.
"""

from __future__ import annotations

import os
import sys

from epbuild.core.user_folders import find_below, find_settings_file, is_missing

DEFAULT_RECIPE = "epbuild.yaml"
WORKSPACE = ".epbuild"
MANIFEST = "manifest.json"
STATEMENT = ".intoto.json"
"""Suffix of provenance files. The provenance of `dist.tar` is in `dist.tar.intoto.json`, beside the archive."""

CACHE_VARIABLES = ("EPBUILD_CACHE_DIR", "XDG_CACHE_HOME", "LOCALAPPDATA", "HOME", "USERPROFILE")
"""Environment variables that determine the folder of the cache."""


def find_cache_root() -> str | None:
    """Return the folder of the current user's caches, or None if the user has no home directory or invalid settings.

    The folder may not exist.
    """
    chosen = os.environ.get("EPBUILD_CACHE_DIR")
    if chosen:
        return chosen if os.path.isabs(chosen) else os.path.join(os.getcwd(), chosen)  # noqa: PTH109, PTH117, PTH118
    settings = find_settings_file()
    if settings is not None and not is_missing(settings):
        from epbuild.core.errors import StoreError
        from epbuild.core.user_settings import read_user_settings  # few users have settings

        try:
            chosen = read_user_settings().get("cache_dir")
        except StoreError:
            return None
        if chosen:
            return str(chosen)
    if sys.platform == "win32":
        return find_below("LOCALAPPDATA", ("AppData", "Local"), "epbuild", "cache")
    if sys.platform == "darwin":
        return find_below("", ("Library", "Caches"), "epbuild")
    return find_below("XDG_CACHE_HOME", (".cache",), "epbuild")
