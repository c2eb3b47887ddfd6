"""Memo: cached results of pure functions, by the digests of their inputs.

A value is reused only if this version of epbuild computed it from equal inputs. So a memo never changes a result, and losing it only costs
time. A memo is a file in the user's cache, beside the snapshots. It is not in the workspace, which cannot be trusted because a checkout may
contain one. A memo contains only data, never code.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TypeVar

from msgspec import Raw, msgpack

from epbuild import __version__
from epbuild.core.digest import hash_values
from epbuild.core.own_files import list_own_files, read_own, write_own
from epbuild.core.records import get_decoder, prepare_type

FORMAT = 1
MAX_MEMO_BYTES = 1 << 26
"""Maximum size of a memo file. Larger files are neither read nor written."""

_DAMAGED = (ValueError, RecursionError)
"""Errors from decoding content that a memo did not write."""
_UNENCODABLE = (UnicodeError, OverflowError)
"""Errors from encoding file names that are not valid Unicode, or integers of more than 64 bits."""

_T = TypeVar("_T")
_Content = tuple[str, dict[str, Raw]]


class Program:
    """Running program. An update or a developer may change its `files` while it runs."""

    def __init__(self, files: Callable[[], Sequence[str]] = list_own_files) -> None:
        self._files = files

    @cached_property
    def loaded_version(self) -> str | None:
        """Version of the running code. The first access computes the version, and must follow immediately after the code is loaded."""
        return self.read_installed_version()

    def read_installed_version(self) -> str | None:
        """Return a text with the versions of epbuild and Python and a digest of the files' stats. Return None if a file is missing."""
        try:
            stats = [(path, seen.st_size, seen.st_mtime_ns) for path in sorted(self._files()) if (seen := os.stat(path))]  # noqa: PTH116
        except OSError:
            return None
        return f"{FORMAT} {__version__} {sys.version} {hash_values(stats)}"


_THIS_PROGRAM = Program()


class Memo:
    """Cached values of pure functions. Not thread-safe."""

    def __init__(
        self, entries: dict[str, Raw] | None = None, *, program: Program = _THIS_PROGRAM, remembers: bool = True
    ) -> None:
        self._entries = entries or {}
        self._program = program
        self._remembers = remembers
        self._used: dict[str, Raw] = {}
        self._has_new = False

    @classmethod
    def read(cls, place: str | None, program: Program = _THIS_PROGRAM) -> Memo:
        """Return the memo in a file. It is empty if the file is missing, damaged, too large, or from another user or version."""
        current, empty = program.loaded_version, cls(program=program)
        try:
            if place is None or os.stat(place).st_size > MAX_MEMO_BYTES:  # noqa: PTH116 - the place is a string, as for snapshots
                return empty
            version, entries = msgpack.decode(read_own(place), type=prepare_type(_Content))
        except (OSError, *_DAMAGED):
            return empty
        return cls(entries, program=program) if version == current else empty

    def value(self, name: str, inputs: object, compute: Callable[[], _T], result_type: type[_T]) -> _T:
        """Return the value of `compute()`, from the memo if `name` was computed from equal `inputs` before.

        `compute` must depend only on `inputs` and this version of epbuild. Inputs are paths and values that msgspec can encode. If `inputs`
        is None, the inputs are unknown, and the memo is not used. A damaged value is computed again. A set among the inputs may cause a
        miss, as the order of its items differs between processes.
        """
        if inputs is None or not self._remembers:
            return compute()
        key = hash_values((name, inputs))
        entry = self._entries.get(key)
        if entry is not None:
            try:
                value = get_decoder(result_type).decode(entry)
            except _DAMAGED:
                entry = None
        if entry is None:
            value = compute()
            try:
                entry = Raw(msgpack.encode(value))
            except _UNENCODABLE:
                return value
            self._has_new = True
        self._used[key] = entry
        return value

    def write(self, place: str | None, *, is_whole: bool) -> None:
        """Write the memo to a file.

        `is_whole` states that the run covered the whole recipe. In this case, values that the run did not use are dropped.

        Nothing is written if epbuild's files have changed since they were loaded, as the old code computed these values. A memo above the
        maximum size is not written either: the old file stays.
        """
        kept = self._used if is_whole else {**self._entries, **self._used}
        if place is None or not (self._has_new or len(kept) < len(self._entries)):
            return
        version = self._program.read_installed_version()
        if version is None or version != self._program.loaded_version:
            return
        content = msgpack.encode((version, kept))
        if len(content) <= MAX_MEMO_BYTES:
            write_own(place, content)


NO_MEMO = Memo(remembers=False)
"""Memo that stores nothing, so that every value is computed."""
