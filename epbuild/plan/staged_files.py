"""Files of the recipe that commands read, by their staged names."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath

from epbuild.core.digest import hash_bytes
from epbuild.core.errors import Position, Problem
from epbuild.core.safepath import is_file
from epbuild.recipe.model import Reference, Setting
from epbuild.recipe.nodes import render
from epbuild.recipe.paths import use_slashes
from epbuild.recipe.patterns import FileFinder, make_unmatched_problem
from epbuild.recipe.template import substitute

PYTHON = "python"
"""Program name that refers to the toolchain's interpreter."""
FILES = "files"
"""Folder in the staging directory for the files of the recipe."""

_MAX_WORD_LENGTH = 1000


class StagedFiles:
    """Files that a command or a built-in preparation reads, by staged name."""

    def __init__(self, base: Path, finder: FileFinder, problems: list[Problem]) -> None:
        self.files: dict[str, Path] = {}
        self._base = base
        self._finder = finder
        self._problems = problems
        self._prefixes: dict[str, str] = {}
        """Staged path of each folder that contains files, by the path of the folder."""
        self._staged_folders: set[str] = set()

    def add(self, patterns: Iterable[Reference]) -> list[str]:
        """Add the files that patterns match, and return their staged names in order. A pattern without matches is a problem."""
        found: dict[str, None] = {}
        for pattern in patterns:
            matches = self._finder.find(pattern)
            if matches is None:
                continue
            if not matches.files:
                self._problems.append(make_unmatched_problem(pattern))
            place, parent = "", Path()
            for folder, file in matches.files:
                name = self._make_name(folder, file)
                if folder != place:
                    place, parent = folder, Path(folder)
                if name not in self.files:
                    self.files[name] = parent / file
                found[name] = None
        return list(found)

    def _make_name(self, folder: str, file: str) -> str:
        """Return the staged name of the file `file` in `folder`."""
        if ":" in file:  # a colon affects where a file is staged
            return _make_staged_name(_make_relative(Path(folder, file), self._base))
        prefix = self._prefixes.get(folder)
        if prefix is None:
            prefix = _make_staged_name(f"{_make_relative(Path(folder), self._base)}/x")[:-1]
            self._prefixes[folder] = prefix
            self._staged_folders.update(str(parent) for parent in PurePosixPath(f"{prefix}x").parents)
        return prefix + file

    def stage_command(self, step: str, command: Sequence[Setting], names: Mapping[str, str]) -> tuple[str, ...]:
        """Return the words of a step's command with staged names. `names` are the values of its templates.

        A word that is the path of a file that is not staged is a problem.
        """
        words = [self.word(render(substitute(str(word.value), names)), word.where) for word in command]
        for word, text in zip(command[1:], words[1:], strict=True):
            if self.hides(text):
                message = f"the command of '{step}' refers to '{text}', which the command cannot read"
                hint = "List it under 'files': the command can read only these files of the recipe's folder."
                self._problems.append(Problem("EPB272", message, word.where, hint))
        return tuple(words)

    def word(self, text: str, where: Position) -> str:
        """Replace a word of a command with its staged name if the word is the path of a staged file or folder.

        A backslash in the path of a file in the recipe's folder is a problem.
        """
        portable = text.replace("\\", "/")
        if portable != text and (self._find_staged_name(portable) or self.hides(portable)):
            text = use_slashes(text, where, self._problems)
        return self._find_staged_name(text) or text

    def _find_staged_name(self, word: str) -> str | None:
        if not word or word in (".", "..") or len(word) > _MAX_WORD_LENGTH:
            return None
        name = _make_staged_name(word)
        return name if name in self.files or name in self._staged_folders else None

    def hides(self, word: str) -> bool:
        """Return whether a word of a command is the path of a file in the recipe's folder that is not staged.

        The command cannot read such a file. A word without a dot or a slash never counts as a file.
        """
        if not set("./") & set(word) or word.startswith("-"):
            return False
        return is_file(self._base / word)


def find_unused_names(
    whose: str, command: Sequence[Setting], names: Mapping[str, str], where: Position, *, key: str = "run"
) -> Iterator[Problem]:
    """Yield a problem for each template name that a command does not use. `names` describes the path that each name stands for."""
    example = ", ".join(f'"${{{name}}}"' for name in names)
    for name, what in names.items():
        if not any(f"${{{name}}}" in str(word.value) for word in command):
            message = f"the command of {whose} does not use ${{{name}}}, {what}"
            yield Problem("EPB270", message, where, f"Pass it to the program, as in `{key}: [python, x.py, {example}]`.")


def _make_relative(path: Path, base: Path) -> str:
    try:
        return os.path.relpath(path, base)
    except ValueError:  # on another Windows drive
        return str(path)


def _make_staged_name(path: str) -> str:
    """Return the staged name of a file at a path relative to the recipe. Encode a path that leads outside the recipe's folder."""
    clean = posixpath.normpath(path.replace(os.sep, "/"))
    if PurePosixPath(clean).is_absolute() or ":" in clean:
        digest = hash_bytes(posixpath.dirname(clean))[:8]
        clean = f"elsewhere-{digest}/{posixpath.basename(clean)}"
    return f"{FILES}/{clean.replace('../', 'above/')}"
