"""Settings of the user, from `config.toml` in the user's configuration folder.

They are defaults for all of the user's builds. Options, environment variables and the recipe override them. The file is never in a
project: a project cannot change it, and nothing in it runs.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from epbuild.core.errors import Position, Problem, StoreError, suggest_nearest
from epbuild.core.safepath import open_regular
from epbuild.core.user_folders import find_settings_file

_CODE = "EPB519"
_COLORS = ("auto", "always", "never")
_KINDS = {"cache_dir": "path", "color": "color", "jobs": "number", "remote_cache": "address", "remote_trust": "keys"}
"""Keys of the file, each with the kind of its value."""
_EXPECTED = {
    "path": 'an absolute path, such as "/data/epbuild"',
    "color": f"one of {', '.join(_COLORS)}",
    "number": "a whole number of at least 1",
    "address": 'an absolute path, or an address such as "https://cache.example/epbuild"',
    "keys": "a list of public keys",
}
_ADDRESS = re.compile(r"[a-z][a-z0-9+.-]+://")
_PLACE = re.compile(r" \(at line (\d+), column (\d+)\)$")


def read_user_settings() -> Mapping[str, Any]:
    """Return the user's settings by key, with absolute paths. Return an empty mapping if there is no file. Raises StoreError."""
    path = find_settings_file()
    if path is None:
        return {}
    try:
        seen = os.stat(path)  # noqa: PTH116
    except (FileNotFoundError, NotADirectoryError, PermissionError):  # as in `is_missing`
        return {}
    except OSError as error:
        raise _make_read_error(path, error) from error
    return _read(path, seen.st_mtime_ns, seen.st_size)


def find_settings() -> Mapping[str, Any]:
    """Return the user's settings like `read_user_settings`, or an empty mapping if they are invalid."""
    try:
        return read_user_settings()
    except StoreError:
        return {}


def get_jobs() -> int:
    """Return how many actions run at once by default: the user's setting, or else the number of CPUs. Raises StoreError."""
    return read_user_settings().get("jobs") or os.cpu_count() or 1


@lru_cache(maxsize=8)
def _read(path: str, changed_ns: int, size: int) -> Mapping[str, Any]:
    """Read a file. `changed_ns` and `size` are keys of the cache: a changed file is read again."""
    import tomllib  # few users have settings

    try:
        with open_regular(Path(path)) as file:
            _check_owner(path, os.fstat(file.fileno()))
            text = file.read().decode("utf-8")
        document = tomllib.loads(text)
    except OSError as error:
        raise _make_read_error(path, error) from error
    except UnicodeDecodeError as error:
        raise _make_error("the file is not UTF-8 text", path) from error
    except (ValueError, RecursionError) as error:  # also for an integer of thousands of digits
        place = _PLACE.search(str(error))
        where = Position(path, int(place[1]), int(place[2])) if place else None
        raise _make_error(f"invalid TOML: {_PLACE.sub('', str(error))}", path, where=where) from error
    problems = list(_find_problems(path, text, document))
    if problems:
        raise StoreError(*problems)
    return {key: os.path.expanduser(value) if _is_path(key, value) else value for key, value in document.items()}  # noqa: PTH111


def _check_owner(path: str, seen: os.stat_result) -> None:
    """Raise StoreError if a user other than this one and root owns the file, or if all users can write it.

    The check is needed because settings choose whose results a build uses. Write access for the group is allowed, because many systems
    give each user a group.
    """
    if not hasattr(os, "getuid"):
        return
    if seen.st_uid not in (os.getuid(), 0):
        hint = f"Run epbuild as this user, or own the file: `chown {os.getuid()} {path}`."
        raise _make_error("the file belongs to another user", path, hint)
    if seen.st_mode & 0o002:
        raise _make_error("other users can change the file", path, f"Remove their access: `chmod 600 {path}`.")


def _make_read_error(path: str, error: OSError) -> StoreError:
    return _make_error(f"the file cannot be read: {error.strerror or error}", path)


def _make_error(message: str, path: str, hint: str | None = None, where: Position | None = None) -> StoreError:
    return StoreError(Problem(_CODE, message, where or Path(path), hint))


def _find_problems(path: str, text: str, document: Mapping[str, Any]) -> Iterator[Problem]:
    lines = text.splitlines()
    for key, value in document.items():
        pattern = re.compile(rf"\s*\[?\s*[\"']?{re.escape(key)}\b")
        where = Position(path, next((number for number, line in enumerate(lines, 1) if pattern.match(line)), 1), 1)
        if key not in _KINDS:
            hint = suggest_nearest(key, _KINDS) or f"Known keys: {', '.join(_KINDS)}."
            yield Problem(_CODE, f"unknown key '{key}'", where, hint)
        elif not _is_valid(key, value):
            yield Problem(_CODE, f"invalid value of '{key}': expected {_EXPECTED[_KINDS[key]]}", where)


def _is_valid(key: str, value: object) -> bool:
    match _KINDS[key]:
        case "number":
            return type(value) is int and 1 <= value < 1 << 31
        case "keys":
            return isinstance(value, list) and all(isinstance(item, str) for item in value)
        case "color":
            return value in _COLORS
        case "address" if isinstance(value, str) and _ADDRESS.match(value):
            return True
        case _:
            return isinstance(value, str) and "\0" not in value and os.path.isabs(os.path.expanduser(value))  # noqa: PTH111, PTH117


def _is_path(key: str, value: object) -> bool:
    return isinstance(value, str) and _KINDS[key] in ("path", "address") and not _ADDRESS.match(value)
