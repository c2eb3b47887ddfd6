"""Composition of a recipe from several files with `extends` and `include`.

A file extends one base recipe (`extends`) and includes fragments of recipes (`include`), in order. Mappings are merged key by key.
Later files override earlier files, and the extending file overrides all others. Lists and scalars are replaced.
"""

from __future__ import annotations

import errno
import os.path
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path

from epbuild.core.canonical import read_schema_text
from epbuild.core.digest import hash_bytes
from epbuild.core.errors import Position, Problem, RecipeError
from epbuild.core.safepath import is_file, is_folder, open_regular, resolve_links
from epbuild.recipe.fields import MappingReader
from epbuild.recipe.nodes import MAX_NODES, MappingNode, ScalarNode, drop_keys, merge_nodes, prune_paths
from epbuild.recipe.paths import is_same, use_slashes
from epbuild.recipe.problems import CANNOT_READ, SYNTAX, TEMPLATE, TOO_LARGE, UNKNOWN_KEY, WRONG_VALUE, quote_text
from epbuild.recipe.schema import get_recipe_schema, validate_raw
from epbuild.recipe.source import MAX_BYTES, read

MAX_FILE_DEPTH = 10
"""Maximum depth of `extends` and `include`."""

_VERSION = 1
_EXTENDS = "extends"
_INCLUDE = "include"
_VERSION_LINE = re.compile(rb"^epbuild:", re.MULTILINE)
_MAX_FILES_TO_JUDGE = 50
_MAX_RECIPES_TO_NAME = 3


class Composition:
    """Recipe at a path, merged with all files that it extends and includes.

    Raises RecipeError if any file cannot be read, because further problems would then be noise.
    """

    def __init__(self, path: Path) -> None:
        self.problems: list[Problem] = []
        """Problems that are not syntax errors."""
        self.contents: dict[Path, bytes] = {}
        """Content of each file. The first file is the recipe itself."""
        self.names: dict[Path, None] = {path: None}
        """Paths that were used to open the files. Several paths may lead to the same file."""
        self._stopped: list[Problem] = []
        self._known: dict[Path, MappingNode] = {}
        self._merged = 0
        self._is_full = False
        self.root = self._read_tree(path, _read_content(path), ())
        """Merged tree of the recipe."""
        if self._stopped:
            raise RecipeError(*self.problems, *self._stopped)

    def _read_tree(self, path: Path, content: bytes, above: tuple[Path, ...]) -> MappingNode:
        """Return the tree of a file, merged over the files that it extends and includes.

        `above` is the chain of files from the recipe to this file.
        """
        self.contents[path] = content
        source = read(content, str(path))
        self.problems += source.problems
        _check_version(source.root)
        root: MappingNode | None = None
        for name, where in self._read_named_files(path, source.root):
            if self._is_full:
                break
            try:
                part = self._read_part(path, name, where, (*above, resolve_links(path)))
            except RecipeError as error:
                self._stopped += error.problems
            else:
                root = merge_nodes(root, part) if root else part
        own = drop_keys(source.root, (_EXTENDS, _INCLUDE))
        return merge_nodes(root, own) if root else own

    def _read_named_files(self, path: Path, root: MappingNode) -> Iterator[tuple[str, Position]]:
        """Yield the files that a file extends or includes. Later files override earlier files."""
        violations = [
            found for key in (_EXTENDS, _INCLUDE) if key in root.entries for found in validate_raw((key,), root.entries[key].node)
        ]
        self.problems += [violation.problem for violation in violations]
        fields = MappingReader(prune_paths(root, [violation.path for violation in violations]), self.problems, path)
        base = fields.text(_EXTENDS)
        names = [(base, fields.where_of(_EXTENDS))] if base else []
        for name, where in [*names, *fields.texts(_INCLUDE)]:
            if "${" in name:
                hint = "Write the path without a template, because epbuild merges files before it resolves templates."
                self.problems.append(Problem(TEMPLATE, "the path of a recipe file cannot contain a template", where, hint))
            else:
                yield use_slashes(name, where, self.problems), where

    def _read_part(self, path: Path, name: str, where: Position, above: tuple[Path, ...]) -> MappingNode:
        """Return the tree of the file `name`, which the file at `path` extends or includes.

        Raises RecipeError if the file is not usable.
        """
        part = _resolve_beside(path, name)
        self.names[part] = None
        place = resolve_links(part)
        if place in above:
            circle = " → ".join(file.name for file in (*above[above.index(place) :], place))
            raise _make_error(WRONG_VALUE, f"the file {quote_text(name)} extends or includes itself: {circle}", where)
        if len(above) > MAX_FILE_DEPTH:
            message = f"'extends' and 'include' are nested more than {MAX_FILE_DEPTH} levels deep"
            raise _make_error(TOO_LARGE, message, where)
        if place not in self._known:
            if not is_file(part):
                what = "not a file" if os.path.lexists(part) else "no such file"
                hint = "Paths are relative to the file that contains them."
                raise _make_error(CANNOT_READ, f"{what}: {quote_text(name)}", where, hint)
            content = _read_content(part)
            if not place.is_relative_to(above[0].parent):
                _check_foreign_file(content, name, where)
            self._known[place] = self._read_tree(part, content, above)
        known = self._known[place]
        self._merged += known.size
        if self._merged > MAX_NODES and not self._is_full:
            self._is_full = True
            raise _make_error(TOO_LARGE, f"with this file, the recipe exceeds {MAX_NODES:,} values", where)
        return known


def _check_foreign_file(content: bytes, name: str, where: Position) -> None:
    """Raise RecipeError if the content of a file outside the recipe's folder is not part of a recipe.

    The message quotes nothing from the file, because the file may contain a user's secrets.
    """
    hint = "Remove all keys that are not keys of a recipe, or name another file."
    try:
        keys = read(content, name).root.entries
    except RecipeError as error:
        found = error.problems[0].where
        line = f" (line {found.line})" if isinstance(found, Position) else ""
        raise _make_error(SYNTAX, f"the file {quote_text(name)} is not valid YAML for a recipe{line}", where, hint) from None
    foreign = [entry.name_where.line for key, entry in keys.items() if key not in get_recipe_schema()["properties"]]
    if foreign:
        message = f"the file {quote_text(name)} is not part of a recipe: line {foreign[0]} has an unknown key"
        raise _make_error(UNKNOWN_KEY, message, where, hint)


def _make_error(code: str, message: str, where: Position, hint: str | None = None) -> RecipeError:
    return RecipeError(Problem(code, message, where, hint))


def _resolve_beside(file: Path, name: str) -> Path:
    """Return the path of the file `name`, which is relative to the folder of `file`.

    Remove `..` parts if the shorter path leads to the same file.
    """
    joined = file.parent / name
    short = Path(os.path.normpath(joined))
    return short if is_same(short, joined) else joined


def _suggest_recipe(path: Path) -> str:
    """Return the hint for a missing recipe. The hint lists recipes in the folder, or else suggests `epbuild init`."""
    recipes = _list_recipes(path.parent)
    if recipes:
        return f"Name one of the recipes in this folder: {', '.join(recipes)}."
    return "Name another recipe, or create one for your models with `epbuild init`."


def _list_recipes(folder: Path) -> list[str]:
    """Return the names of the first few recipes in a folder, or an empty list if the folder is unreadable."""
    try:
        files = sorted(file for file in folder.iterdir() if file.suffix in {".yaml", ".yml"})
    except OSError:
        return []
    return [file.name for file in files[:_MAX_FILES_TO_JUDGE] if is_recipe(file)][:_MAX_RECIPES_TO_NAME]


def is_recipe(path: Path) -> bool:
    """Return whether a file has a line with the key `epbuild`, as every recipe has."""
    try:
        with open_regular(path) as file:
            return _VERSION_LINE.search(file.read(MAX_BYTES)) is not None
    except OSError:
        return False


def _read_content(path: Path) -> bytes:
    """Return the content of a file, truncated to one byte more than the maximum size of a recipe."""
    try:
        with open_regular(path) as file:
            return file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        problem = Problem(CANNOT_READ, "the recipe does not exist", path, _suggest_recipe(path))
    except OSError as error:
        if is_folder(path):
            problem = Problem(CANNOT_READ, "expected a file, found a directory", path, "Name a recipe in this directory.")
        else:
            hint = (
                "Shorten its path." if error.errno == errno.ENAMETOOLONG else "Check that it is a file and that you may read it."
            )
            problem = Problem(CANNOT_READ, f"the recipe cannot be read: {error.strerror}", path, hint)
    raise RecipeError(problem)


def _check_version(root: MappingNode) -> None:
    """Raise RecipeError if the recipe uses another version of the recipe language. Further problems would then be noise."""
    entry = root.entries.get("epbuild")
    if entry is None or not isinstance(entry.node, ScalarNode):
        return
    version = entry.node.value
    if isinstance(version, int) and not isinstance(version, bool) and version != _VERSION:
        message = (
            f"unsupported version {version} of the recipe language: this release of epbuild supports only version {_VERSION}"
        )
        raise RecipeError(Problem(WRONG_VALUE, message, entry.node.where))


_READ = re.compile(rb"\$\{env\.([^\s=${}:<>]+)")


def hash_texts(contents: Collection[bytes], environment: Mapping[str, str], settings: Sequence[str]) -> str:
    """Return the SHA-256, in hex, of a recipe's inputs.

    The inputs are the schema, the texts of the recipe's files, and the values of `settings` and of environment variables in templates.
    """
    read = sorted({name.decode(errors="replace") for content in contents for name in _READ.findall(content)})
    values = [*(f"{name}={environment.get(name)!a}" for name in read), *settings]
    parts = [read_schema_text("recipe").encode(), *contents, *(text.encode(errors="surrogateescape") for text in values)]
    return hash_bytes(b"".join(sha256(part).digest() for part in parts))
