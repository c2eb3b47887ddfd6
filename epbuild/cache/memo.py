"""Memo: results of pure functions of earlier runs, by the digests of their inputs.

A value is reused only if it was computed from equal inputs, by this version of epbuild. So a memo never changes an answer, and a lost one
costs time only. It lies in the user's cache beside the snapshots and not in the workspace, as a checkout may bring a workspace. Its content
is data: no code is loaded from it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TypeVar

from msgspec import Raw, msgpack

from epbuild import __version__
from epbuild.core.digest import fingerprint_of
from epbuild.core.own_files import own_files, read_own, write_own
from epbuild.core.records import ready

FORMAT = 1
MAX_MEMO_BYTES = 1 << 26
"""Size of the largest file that is read or written."""

_DAMAGED = (ValueError, RecursionError)
"""Errors of content that was not written by a memo."""
_UNENCODABLE = (UnicodeError, OverflowError)
"""Errors of file names that are no Unicode, and of integers of more than 64 bits."""

_T = TypeVar("_T")
_Content = tuple[str, dict[str, Raw]]


class Program:
    """Running program. It consists of `files`, which an update or a developer may change while it runs."""

    def __init__(self, files: Callable[[], Sequence[str]] = own_files) -> None:
        self._files = files

    @cached_property
    def loaded(self) -> str | None:
        """Version of the running code, which was loaded just before this is first called."""
        return self.installed()

    def installed(self) -> str | None:
        """Return the versions of epbuild and Python, and a digest of the stats of the files. None if a file is gone."""
        try:
            stats = [(path, seen.st_size, seen.st_mtime_ns) for path in sorted(self._files()) if (seen := os.stat(path))]  # noqa: PTH116
        except OSError:
            return None
        return f"{FORMAT} {__version__} {sys.version} {fingerprint_of(stats)}"


_THIS_PROGRAM = Program()


class Memo:
    """Values of pure functions. It is used by one thread."""

    def __init__(
        self, entries: dict[str, Raw] | None = None, *, program: Program = _THIS_PROGRAM, remembers: bool = True
    ) -> None:
        self._known = entries or {}
        self._program = program
        self._remembers = remembers
        self._used: dict[str, Raw] = {}
        self._has_new = False

    @classmethod
    def read(cls, place: str | None, program: Program = _THIS_PROGRAM) -> Memo:
        """Read the memo in a file. It is empty if the file is missing, damaged, too large, another user's or another epbuild's."""
        current, nothing = program.loaded, cls(program=program)
        try:
            if place is None or os.stat(place).st_size > MAX_MEMO_BYTES:  # noqa: PTH116 - the place is a text, as a snapshot's
                return nothing
            version, entries = msgpack.decode(read_own(place), type=ready(_Content))
        except (OSError, *_DAMAGED):
            return nothing
        return cls(entries, program=program) if version == current else nothing

    def value(self, name: str, inputs: object, compute: Callable[[], _T], result_type: type[_T]) -> _T:
        """Return `compute()`, from the memo if `name` was computed from equal `inputs` before.

        `compute` must depend on nothing but `inputs` and this version of epbuild. Inputs are values that msgspec encodes, and paths; None
        if they are not known well enough. A set in them may cause a miss, as the order of its items differs between processes.
        """
        if inputs is None or not self._remembers:
            return compute()
        key = fingerprint_of((name, inputs))
        known = self._known.get(key)
        if known is not None:
            try:
                found = msgpack.decode(known, type=ready(result_type))
            except _DAMAGED:
                known = None
        if known is None:
            found = compute()
            try:
                known = Raw(msgpack.encode(found))
            except _UNENCODABLE:
                return found
            self._has_new = True
        self._used[key] = known
        return found

    def write(self, place: str | None, *, is_whole: bool) -> None:
        """Write the memo to a file. After a run of the whole recipe, values that it did not use are dropped.

        Nothing is written if epbuild's files have changed since it was loaded: the values are those of the former code.
        """
        kept = self._used if is_whole else {**self._known, **self._used}
        if place is None or not (self._has_new or len(kept) < len(self._known)):
            return
        version = self._program.installed()
        if version is None or version != self._program.loaded:
            return
        content = msgpack.encode((version, kept))
        if len(content) <= MAX_MEMO_BYTES:
            write_own(place, content)


NO_MEMO = Memo(remembers=False)
"""Memo that computes every value."""
