"""Finder of the files that a recipe's patterns match.

The finder lists each folder at most once for all patterns. It follows a link to a folder only if a pattern contains the link before
its first wildcard. A walk is therefore finite, and never leaves the folder in which it starts.
"""

from __future__ import annotations

import fnmatch
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from msgspec import Struct

from epbuild.core.defaults import WORKSPACE
from epbuild.core.errors import BadText, Problem
from epbuild.core.host import is_windows
from epbuild.core.safepath import is_file
from epbuild.recipe.model import Reference
from epbuild.recipe.names import is_glob

_SKIPPED = frozenset({WORKSPACE, "__pycache__"})
_FEWER = "Write a pattern that matches fewer files, or move the files to a folder of their own."
_NAMED = "Write a folder beside or below the recipe, or the full path of a single file."

_Part = Callable[[str], object] | None
"""Predicate for names that match a part of a pattern. None stands for `**`, which matches any number of folders."""


class PatternLimits(Struct, frozen=True):
    """Limits of a walk through folders."""

    entries: int = 2_000_000
    """Maximum number of folder entries that all patterns of a recipe may examine."""
    files: int = 500_000
    """Maximum number of files that a pattern may match."""
    bytes: int = 10**12
    """Maximum total size of the files that a pattern may match."""
    hidden: bool = True
    """True if wildcards also match names that start with a dot, unlike in shells."""


class Matches(Struct, frozen=True):
    """Files that a pattern matches, as pairs of folder and name, sorted by path."""

    files: Sequence[tuple[str, str]]
    root: str = ""
    """Folder before the first wildcard, which contains all matches."""
    folders: Sequence[str] = ()
    """Folders that were listed. A new file in one of these folders may match."""


class _PatternError(BadText):
    """Error for an unusable pattern. The message continues a sentence that begins with the pattern."""


class FileFinder:
    """Finder of files that match patterns. Patterns are relative to the folder `base`. Invalid patterns are added to `problems`."""

    def __init__(self, base: Path, problems: list[Problem], limits: PatternLimits | None = None) -> None:
        self.base = base
        self._limits = limits or PatternLimits()
        self._real_base = os.path.realpath(base)
        self._problems = problems
        self._listings: dict[str, list[os.DirEntry[str]]] = {}
        self._known: dict[str, Matches] = {}
        self._examined = 0

    @property
    def folders(self) -> tuple[Path, ...]:
        """Folders in which a new file may match one of the patterns, without duplicates."""
        return tuple(dict.fromkeys(Path(folder) for matches in self._known.values() for folder in matches.folders))

    def find(self, pattern: Reference) -> Matches | None:
        """Return the files that a pattern matches. If the pattern is invalid, add a problem and return None.

        A pattern without wildcards matches a file, or all files in a folder.
        """
        try:
            if pattern.name not in self._known:
                self._known[pattern.name] = self._find(pattern.name)
            return self._known[pattern.name]
        except _PatternError as error:
            problem = Problem("EPB273", f"'{pattern.name}' {error.message}", pattern.where, error.hint)
        if problem not in self._problems:
            self._problems.append(problem)
        return None

    def _find(self, pattern: str) -> Matches:
        """Return the file that a pattern names, or else all matches below the folder before its first wildcard. Raises _PatternError."""
        parts = Path(pattern).parts
        fixed = next((index for index, part in enumerate(parts) if is_glob(part)), len(parts))
        root = self.base.joinpath(*parts[:fixed])
        if fixed == len(parts) and is_file(root):
            folder, name = os.path.split(root)
            return Matches(((folder, name),), folder)
        if not os.path.isdir(root):  # noqa: PTH112 - also returns False for invalid paths
            return Matches((), os.fspath(root), (os.fspath(root),))
        if ".." in parts[fixed:]:
            raise _PatternError("has '..' after a wildcard", "Write '..' only before the first wildcard.")
        self._check_root(root)
        return self._walk(os.fspath(root), _compile_parts(parts[fixed:] or ("**",)))

    def _check_root(self, root: Path) -> None:
        """Raise _PatternError if a walk from `root` would be too large.

        A walk from the root of a file system, or from a folder above the recipe's folder, is too large.
        """
        real = os.path.realpath(root)
        if (Path(self._real_base).is_relative_to(real) and real != self._real_base) or os.path.dirname(real) == real:  # noqa: PTH120
            raise _PatternError(f"would search all of {real}", _NAMED)

    def _walk(self, root: str, parts: Sequence[_Part]) -> Matches:
        """Return the files below `root` whose paths match all parts. Raises _PatternError."""
        end = len(parts)
        files: list[tuple[str, str]] = []
        folders: list[str] = []
        size = 0
        # A position is the number of parts that a path has matched so far. Because of `**`, a path can have several positions.
        pending: list[tuple[str, os.DirEntry[str] | None, frozenset[int]]] = [(root, None, _close_positions((0,), parts))]
        while pending:
            folder, file, positions = pending.pop()
            if file is not None:
                files.append((folder, file.name))
                size += _get_size(file)
                self._check_size(len(files), size)
                continue
            folders.append(folder)
            for entry, reached in self._match_entries(folder, positions, parts):  # in descending order: the last is visited next
                if entry.is_dir(follow_symlinks=False):
                    if reached != {end}:
                        pending.append((entry.path, None, reached))
                elif end in reached and _is_file(entry):
                    pending.append((folder, entry, reached))
        return Matches(files, root, folders)

    def _check_size(self, count: int, size: int) -> None:
        """Raise _PatternError if a pattern matches too many files, or files that are too large."""
        if count > self._limits.files:
            raise _PatternError(f"matches more than {self._limits.files:,} files", _FEWER)
        if size > self._limits.bytes:
            raise _PatternError(f"matches more than {self._limits.bytes // 10**9:,} GB of files", _FEWER)

    def _match_entries(
        self, folder: str, positions: frozenset[int], parts: Sequence[_Part]
    ) -> Iterator[tuple[os.DirEntry[str], frozenset[int]]]:
        """Yield the entries whose names match, with the positions of their paths. `positions` are those of the folder's path."""
        found = self._list_folder(folder)
        self._examined += len(found)
        if self._examined > self._limits.entries:
            raise _PatternError(f"would search more than {self._limits.entries:,} files and folders", _FEWER)
        kept = _close_positions((index for index in positions if index < len(parts) and parts[index] is None), parts)
        steps = [
            (part, _close_positions((index + 1,), parts)) for index in positions if index < len(parts) and (part := parts[index])
        ]
        for entry in found:
            reached = kept.union(*(after for part, after in steps if part(entry.name)))
            if reached:
                yield entry, reached

    def _list_folder(self, folder: str) -> list[os.DirEntry[str]]:
        """Return the entries of a folder, sorted by name in descending order."""
        found = self._listings.get(folder)
        if found is None:
            try:
                with os.scandir(folder) as entries:
                    visible = (entry for entry in entries if self._limits.hidden or not entry.name.startswith("."))
                    found = [entry for entry in visible if entry.name not in _SKIPPED]
            except FileNotFoundError:  # the folder was removed after its parent was listed
                found = []
            except OSError as error:
                hint = "Make the folder readable, or write a pattern for other files."
                raise _PatternError(f"includes a folder that cannot be read, {folder}: {error.strerror}", hint) from error
            found.sort(key=lambda entry: entry.name, reverse=True)
            self._listings[folder] = found
        return found


def make_unmatched_problem(pattern: Reference) -> Problem:
    """Return the problem of a pattern that matches no file."""
    what = "no file matches" if is_glob(pattern.name) else "file not found:"
    return Problem("EPB271", f"{what} '{pattern.name}'", pattern.where, "Paths are relative to the recipe.")


def _compile_parts(parts: Sequence[str]) -> list[_Part]:
    """Return a predicate for each part of a pattern. Adjacent `**` are merged."""
    flags = re.IGNORECASE if is_windows() else 0
    compiled: list[_Part] = []
    for part in parts:
        if part != "**":
            compiled.append(re.compile(fnmatch.translate(part), flags).match)
        elif not compiled or compiled[-1] is not None:
            compiled.append(None)
    return compiled


def _close_positions(positions: Iterable[int], parts: Sequence[_Part]) -> frozenset[int]:
    """Return the positions, plus the position after each `**`, because `**` may match zero folders."""
    found = frozenset(positions)
    return found.union(index + 1 for index in found if index < len(parts) and parts[index] is None)


def _is_file(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_file()
    except OSError:
        return False


def _get_size(entry: os.DirEntry[str]) -> int:
    try:
        return entry.stat().st_size
    except OSError:  # the file was removed, which is reported when it is read
        return 0
