"""A recipe's files, read into a `Recipe`; everything that is wrong with them is told at once."""

from __future__ import annotations

import dataclasses
import gc
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path

from epbuild.core.digest import digest_of
from epbuild.core.errors import RecipeError
from epbuild.core.schemas import schema_text
from epbuild.recipe.assemble import assemble
from epbuild.recipe.compose import compose
from epbuild.recipe.model import Recipe
from epbuild.recipe.overrides import read_overrides
from epbuild.recipe.schema import Verdict, judge


class BrokenRecipe(RecipeError):
    """A recipe whose text is wrong in some places; `rest` is what could be made of the others, to look for more that is wrong."""

    rest: Recipe


def load(
    path: Path,
    *,
    is_known_valid: Callable[[str], bool] | None = None,
    environment: Mapping[str, str] | None = None,
    settings: Sequence[str] = (),
) -> Recipe:
    """The recipe in the file at `path`, with the files that it extends and includes; its positions name the file as `path` does.

    Paths in the result are relative to the folder of `path`, whichever file they were written in: a path in another file is
    relative to that file, and is rewritten (with forward slashes). Outputs alone always are relative to the folder of `path`.

    `is_known_valid` is asked, with the recipe's `digest`, whether the schema has been satisfied before, and saves the time of asking
    it again when it answers True. The digest may be remembered as valid once `load` has returned, unless it is empty. `environment` is what
    `${env.NAME}` reads (default: this process's), `settings` are the texts of `--set`: `vars.<name>=<YAML scalar>`, the last wins.

    Raises RecipeError with every problem that was found: a BrokenRecipe where something could be made of the rest.
    """
    with _uncollected():
        return _load(path, is_known_valid, os.environ if environment is None else environment, settings)


def _load(
    path: Path, is_known_valid: Callable[[str], bool] | None, environment: Mapping[str, str], settings: Sequence[str]
) -> Recipe:
    composition = compose(path)
    digest = _digest(*composition.contents)
    verdict = Verdict() if is_known_valid is not None and is_known_valid(digest) else judge(composition.root)
    overrides, refused = read_overrides(settings)
    recipe, problems = assemble(path, composition.root, verdict, environment, overrides)
    problems = [*composition.problems, *(violation.problem for violation in verdict.violations), *refused, *problems]
    if problems:
        broken = BrokenRecipe(*problems)
        broken.rest = recipe
        raise broken
    # Where the schema was asked about substituted values, its verdict depends on more than the files.
    known = "" if verdict.pending else digest
    return dataclasses.replace(recipe, files=composition.files, names=composition.names, digest=known)


@contextmanager
def _uncollected() -> Iterator[None]:
    """Reading makes many small objects and no garbage to speak of: looking for some takes half of a large recipe's time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _digest(*contents: bytes) -> str:
    """The SHA-256, in hex, of the recipe schema and the bytes of a recipe's files: what the schema's verdict depends on."""
    return digest_of(schema_text("recipe").encode() + b"".join(b"\0" + sha256(content).digest() for content in contents))
