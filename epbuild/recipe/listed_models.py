"""Reader of models that a recipe lists by paths or patterns instead of names.

    models: models/*.onnx
    models: [det.onnx, more/*.onnx]

A model's name is the name of its file without the last suffix. A pattern matches files in the order of their paths. It skips files
that the list names explicitly or that an earlier pattern matches. It also skips hidden files and folders, because some systems
add hidden files beside visible files.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePath, PurePosixPath

from epbuild.core.errors import Position, Problem
from epbuild.recipe.model import Reference
from epbuild.recipe.names import is_glob, name_of_text
from epbuild.recipe.nodes import KeyedNode, Node, Scalar, ScalarNode, SequenceNode, render
from epbuild.recipe.paths import find_package_file, is_remote, rebase_path, use_slashes
from epbuild.recipe.patterns import FileFinder, PatternLimits, make_unmatched_problem
from epbuild.recipe.problems import BAD_NAME, quote_text
from epbuild.recipe.template import TemplateError, escape, substitute

_LIMITS = PatternLimits(files=100_000, hidden=False)


def read_listed(models: Node, recipe: Path, names: Mapping[str, Scalar], problems: list[Problem]) -> ListedModels | None:
    """Return the models in a list or a single text, or None for any other node. Add problems to `problems`.

    Templates are substituted with the values in `names`, because templates affect which files a pattern matches.
    """
    items = models.items if isinstance(models, SequenceNode) else (models,)
    texts = [item for item in items if isinstance(item, ScalarNode) and isinstance(item.value, str) and item.value]
    return ListedModels(texts, recipe, names, problems) if len(texts) == len(items) else None


class ListedModels:
    """Models from a list, with names that are derived from their file names."""

    def __init__(self, items: list[ScalarNode], recipe: Path, names: Mapping[str, Scalar], problems: list[Problem]) -> None:
        self.entries: dict[str, KeyedNode] = {}
        self.is_whole = True
        """False if an entry is invalid. `entries` may then lack models that other parts of the recipe refer to."""
        self._paths: dict[str, str] = {}
        """Path of each model, by its name."""
        self._spellings: dict[str, str] = {}
        self._recipe = recipe
        self._names = names
        self._problems = problems
        self._finder = FileFinder(recipe.parent, problems, _LIMITS)
        self._read(items)

    @property
    def folders(self) -> tuple[Path, ...]:
        """Folders in which a new file may match a pattern."""
        return self._finder.folders

    def _read(self, items: list[ScalarNode]) -> None:
        texts = [(item, text) for item in items if (text := self._substitute(item)) is not None]
        named = {self._normalize_path(text, item.where) for item, text in texts if not _is_pattern(text)}
        for item, text in texts:
            if not _is_pattern(text):
                self._add(text, item)
                continue
            start, written_start = _split_start(text, str(item.value))
            for rest in self._find_matches(text, item.where):
                path = f"{start}{rest}"
                place = self._normalize_path(path, item.where)
                if place not in named:
                    named.add(place)
                    written = f"{written_start}{escape(rest)}"
                    self._add(path, ScalarNode(item.where, written, written))

    def _substitute(self, item: ScalarNode) -> str | None:
        """Return a text with its templates substituted, or None if a problem was added."""
        try:
            text = render(substitute(str(item.value), self._names))
            return text if is_remote(text) else use_slashes(text, item.where, self._problems)
        except TemplateError as error:
            self._add_problem(error.problem(item.where))
            return None

    def _add(self, path: str, node: ScalarNode) -> None:
        name = name_of_text(PurePosixPath(path).stem)
        hint = f"Name the models explicitly: `models: {{<name>: {path}}}`."
        other = self._spellings.setdefault(name.casefold(), name)
        if not name:
            message = f"cannot derive a model name from {quote_text(path)}: the file name has no letter or digit"
            self._add_problem(Problem(BAD_NAME, message, node.where, hint))
        elif other in self.entries:
            both = f"{quote_text(self._paths[other])} and {quote_text(path)}"
            message = f"two models have the name {quote_text(name)}: {both}"
            if other != name:
                message = f"the names of two models differ only in case: {both}"
            self._add_problem(Problem(BAD_NAME, message, node.where, hint))
        else:
            self.entries[name] = KeyedNode(node.where, node)
            self._paths[name] = path

    def _find_matches(self, pattern: str, where: Position) -> Iterator[str]:
        """Yield the files that a pattern matches, as paths relative to the folder before its first wildcard."""
        reference = Reference(rebase_path(pattern, where, self._recipe), where)
        found = self._finder.find(reference)
        if found is None:  # the finder has added the problem
            self.is_whole = False
            return
        if not found.files:
            self._add_problem(make_unmatched_problem(reference))
        for folder, name in found.files:
            yield PurePath(folder, name).relative_to(found.root).as_posix()

    def _normalize_path(self, path: str, where: Position) -> str:
        """Return a canonical form of a path. All spellings of the path have the same canonical form."""
        if not _is_file_path(path):
            return path
        return os.path.normcase(os.path.normpath(rebase_path(path, where, self._recipe)))

    def _add_problem(self, problem: Problem) -> None:
        self._problems.append(problem)
        self.is_whole = False


def _split_start(pattern: str, written: str) -> tuple[str, str]:
    """Return the part of a pattern before its first wildcard, in two forms.

    The first form is the start of `pattern`, in which templates are substituted. The second form is the start of `written`, the
    pattern in the recipe. The
    second form keeps its templates if the rest of `written` has none. Otherwise, it is equal to the first form, escaped.
    """
    path = Path(pattern).as_posix()
    parts = path.split("/")
    rest = "/".join(parts[next(index for index, part in enumerate(parts) if is_glob(part)) :])
    start = path.removesuffix(rest)
    has_template = "${" in written and written.endswith(f"/{rest}")
    return start, written.removesuffix(rest) if has_template else escape(start)


def _is_file_path(text: str) -> bool:
    return not is_remote(text) and find_package_file(text) is None


def _is_pattern(text: str) -> bool:
    return is_glob(text) and _is_file_path(text)
