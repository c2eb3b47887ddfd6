"""A recipe's file, read into a `Recipe`; everything that is wrong with it is told at once."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

from epbuild.errors import Problem, RecipeError
from epbuild.recipe.assemble import assemble
from epbuild.recipe.model import Recipe
from epbuild.recipe.problems import CANNOT_READ, WRONG_VALUE
from epbuild.recipe.schema import violations
from epbuild.recipe.source import MAX_BYTES, MappingNode, ScalarNode, read
from epbuild.schemas import schema_text

_VERSION = 1


def load(path: Path, *, is_known_valid: Callable[[str], bool] | None = None) -> Recipe:
    """The recipe in the file at `path`; its positions name the file as `path` does.

    `is_known_valid` is asked, with a `validation_digest`, whether the schema has been satisfied before, and saves the time of asking
    it again when it answers True. The digest may be remembered as valid once `load` has returned.

    Raises RecipeError with every problem that was found.
    """
    content = _content(path)
    source = read(content, str(path))
    _check_version(source.root)
    found = []
    if is_known_valid is None or not is_known_valid(validation_digest(content)):
        found = violations(source.root)
    recipe, problems = assemble(path, source.root, [violation.path for violation in found])
    problems = [*source.problems, *(violation.problem for violation in found), *problems]
    if problems:
        raise RecipeError(*dict.fromkeys(problems))
    return recipe


def validation_digest(content: bytes) -> str:
    """The SHA-256, in hex, of the recipe schema and a recipe's bytes: what the schema's verdict depends on."""
    digest = hashlib.sha256(schema_text("recipe").encode())
    digest.update(b"\0")
    digest.update(content)
    return digest.hexdigest()


def _content(path: Path) -> bytes:
    """The file's bytes, or the first of them when it is larger than a recipe may be."""
    try:
        with path.open("rb") as file:
            return file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        hint = "Name the recipe's file, or run epbuild in the folder that holds it."
        problem = Problem(CANNOT_READ, "There is no such recipe.", str(path), hint)
    except OSError as error:
        if path.is_dir():
            problem = Problem(CANNOT_READ, "This is a folder.", str(path), "Name the recipe's file in it.")
        else:
            problem = Problem(CANNOT_READ, f"The recipe cannot be read: {error.strerror}.", str(path))
    raise RecipeError(problem)


def _check_version(root: MappingNode) -> None:
    """Stop at a recipe for another epbuild: what else is said of it would be noise."""
    entry = root.entries.get("epbuild")
    if entry is None or not isinstance(entry.node, ScalarNode):
        return
    version = entry.node.value
    if isinstance(version, int) and not isinstance(version, bool) and version != _VERSION:
        message = f"The recipe is in version {version} of the language; this epbuild reads version {_VERSION}."
        raise RecipeError(Problem(WRONG_VALUE, message, entry.node.where))
