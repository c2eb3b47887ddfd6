"""Folders of the user. The fast path imports this module."""

from __future__ import annotations

import os
import sys

SETTINGS_VARIABLES = ("XDG_CONFIG_HOME", "APPDATA", "HOME", "USERPROFILE")
"""Environment variables that determine the folder of the user's settings."""


def find_settings_file() -> str | None:
    """Return the path of the user's settings, or None if the user has no home directory. The file may not exist."""
    if sys.platform == "win32":
        return find_below("APPDATA", ("AppData", "Roaming"), "epbuild", "config.toml")
    return find_below("XDG_CONFIG_HOME", (".config",), "epbuild", "config.toml")


def is_missing(path: str) -> bool:
    """Return whether a user has no such file.

    A file in a folder that the user must not enter is not the user's: in a container, HOME may be the home of root.
    """
    try:
        os.stat(path)  # noqa: PTH116
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return True
    except OSError:
        return False
    return False


def find_below(variable: str, below_home: tuple[str, ...], *names: str) -> str | None:
    """Return the path of `names` below the folder in `variable`, or else below a folder in the home directory.

    Return None if the user has no home directory.
    """
    named = os.environ.get(variable, "")
    # The XDG specification ignores relative values. This is also sensible for the other variables.
    if os.path.isabs(named):  # noqa: PTH117
        return os.path.join(named, *names)  # noqa: PTH118
    home = os.path.expanduser("~")  # noqa: PTH111
    return None if home == "~" else os.path.join(home, *below_home, *names)  # noqa: PTH118
