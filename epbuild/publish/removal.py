"""Removal of an output: unchanged files are removed, changed files are kept."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from epbuild.cache.digests import Digests, StatKey, is_unchanged
from epbuild.core.defaults import STATEMENT
from epbuild.core.directory import Owned, prepare, recover_swaps, swap_in
from epbuild.core.entries import HiddenFolders, list_entries
from epbuild.core.errors import EnvironmentFailure, Problem, StepId
from epbuild.core.file_use import CLOSE_PROGRAM, describe_use, discard
from epbuild.output.existing import OwnedFiles, read_listed_files
from epbuild.output.provenance import is_statement_about

Reason = Literal["not made by epbuild", "changed since", "of another recipe", "in use"]


class Cleaned(Struct, frozen=True):
    """Result of cleaning an output: removed files, and kept files with reasons. Paths are POSIX paths below `directory`."""

    step: str
    place: Path
    """Path of the output's folder or archive. For an archive, file paths are relative to its folder."""
    directory: Path
    removed: tuple[str, ...]
    size: int
    kept: Mapping[str, Reason]
    owner: str | None = None
    """Another recipe that also owns the output; null if there is none. If there is one, all files are kept."""

    def kept_for(self, reason: Reason) -> tuple[Path, ...]:
        """Return the files that were kept for the given reason."""
        return tuple(self.directory / name for name, other in self.kept.items() if other == reason)


class EmittedFiles(Owned):
    """Files that the step `step` emitted to `directory`. `recorded` has the SHA-256 of each file that the step wrote, by path.

    For an archive, `directory` is the path of the archive itself, and `recorded` has the names of the archive and its statement.
    """

    def __init__(
        self,
        step: str,
        directory: Path,
        recorded: Mapping[str, str],
        digests: Digests,
        *,
        force: bool = False,
        claimed: Collection[Path] = (),
    ) -> None:
        """If `force` is set, changed files are also removed. The absolute paths in `claimed` belong to another output and are kept."""
        self._step = step
        self._directory = directory
        self._archive = not directory.is_dir() and (directory.name in recorded or bool(read_listed_files(directory)))
        self._root = directory.parent if self._archive else directory
        statement = directory.with_name(f"{directory.name}{STATEMENT}")
        if self._archive and not recorded and is_statement_about(statement, directory.name):
            recorded = {statement.name: digests.of(statement)}
        self._written = OwnedFiles({name: {digest} for name, digest in recorded.items()}, digests)
        self._force = force
        self._claimed = claimed
        self._keys: dict[str, StatKey] = {}

    def remove(self, top: Path, hidden: HiddenFolders | None = None) -> Cleaned:
        """Remove the output's files and then empty folders below `top`. Return the removed and the kept files.

        A new folder with only the kept files replaces the output's folder, so that no reader sees a partially
        removed output. `hidden` is passed to `recover_swaps`. Raises EnvironmentFailure if the directory cannot be written, and
        StoreError if a file cannot be read.
        """
        if not self._directory.parent.is_dir():
            return self.plan_removal()
        if self._archive:
            return self._remove_archive(top, hidden)
        with prepare(self._directory, self._written, self._step, hidden, task="remove") as staged:
            cleaned = self.plan_removal()
            if cleaned.removed:
                swap_in(staged, self._directory, self, self._step)
        _remove_empty(self._directory, top)
        return _exclude_files_in(staged, cleaned) if staged.exists() else cleaned

    def _remove_archive(self, top: Path, hidden: HiddenFolders | None) -> Cleaned:
        """Remove the archive and its provenance statement, and then the archive's folder if the folder is empty."""
        cleaned = self.plan_removal()
        try:
            recover_swaps(self._directory, self._written, hidden)
            # The archive comes first: if it is in use, its statement is kept as well.
            for name in sorted(self.list_unchanged(self._root), key=lambda name: name != self._directory.name):
                discard(self._root / name)
        except OSError as error:
            used = describe_use(error)
            message = f"cannot remove the output {self._directory.name}: {used or error.strerror or error}"
            hint = CLOSE_PROGRAM if used else "Check the permissions of its folder."
            raise EnvironmentFailure(Problem("EPB424", message, StepId(self._step), hint)) from error
        _remove_empty(self._root, top)
        return cleaned

    def plan_removal(self) -> Cleaned:
        """Return which files to remove and which to keep. Raises StoreError if a file cannot be read."""
        directory, removed, kept = self._root, list[str](), dict[str, Reason]()
        if directory.is_symlink() or (directory.exists() and not directory.is_dir()):
            return Cleaned(self._step, self._directory, directory, (), 0, {"": "not made by epbuild"})
        wrote = self._written.list_written(self._directory)
        keys = {name: StatKey.of(path, path.lstat()) for name in wrote if (path := directory / name).is_file()}
        if self._archive:
            unchanged_names = self._written.list_unchanged_in_archive(self._directory)
            paths = [directory / name for name in keys]
        else:
            unchanged_names = self._written.list_unchanged(self._directory)
            paths = _list_files(directory)
        for path in paths:
            name = path.relative_to(directory).as_posix()
            if path.absolute() in self._claimed:
                continue
            if name not in keys or path.is_symlink():
                kept[name] = "not made by epbuild"
            elif self._force or name in unchanged_names:
                self._keys[name] = keys[name]
                removed.append(name)
            else:
                kept[name] = "changed since"
        size = sum((directory / name).stat().st_size for name in removed)
        return Cleaned(self._step, self._directory, directory, tuple(removed), size, kept)

    def list_written(self, folder: Path) -> Collection[str]:
        """Return the files that epbuild wrote to a folder."""
        return self._written.list_written(folder)

    def list_unchanged(self, folder: Path) -> Collection[str]:
        """Return the files that `plan_removal` chose for removal and that have not changed since."""
        return {name for name, key in self._keys.items() if is_unchanged(folder / name, key)}


def _exclude_files_in(remains: Path, cleaned: Cleaned) -> Cleaned:
    """Return the result without the files in `remains`, which cannot be removed because another program uses them."""
    left = set(list_entries(remains).files)
    in_use: dict[str, Reason] = dict.fromkeys((name for name in cleaned.removed if name in left), "in use")
    size = sum((remains / name).stat().st_size for name in in_use)
    removed = tuple(name for name in cleaned.removed if name not in in_use)
    return replace(cleaned, removed=removed, size=cleaned.size - size, kept={**cleaned.kept, **in_use})


def _list_files(directory: Path) -> list[Path]:
    return sorted(path for path in directory.rglob("*") if path.is_symlink() or not path.is_dir())


def _remove_empty(directory: Path, top: Path) -> None:
    """Remove a directory if it is empty, and then each parent below `top` that becomes empty."""
    for folder in (directory, *directory.parents):
        if folder == top or not folder.is_relative_to(top):
            return
        try:
            folder.rmdir()
        except FileNotFoundError:
            continue
        except OSError:
            return
