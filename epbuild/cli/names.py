"""Names on a command line: a recipe, then steps."""

from __future__ import annotations

from collections.abc import Sequence

from epbuild.core.defaults import DEFAULT_RECIPE

_SEPARATORS = "/\\"
_GLOB = frozenset("*?[")


def recipe_and_steps(names: Sequence[str], recipe: str | None = None) -> tuple[str, tuple[str, ...]]:
    """Return the recipe, and the ids or globs of steps, of a command that is given `names`; `recipe` is that of its `--recipe`.

    The first name is a recipe unless it can only be a step: it has a `:` before any separator, as in `emit:decoder/npu/directory`, or it
    is a glob, or a file of steps (`@steps.txt`). One letter before a `:` is a drive (`C:`).
    """
    if recipe is not None:
        return recipe, tuple(names)
    if not names or _is_step(names[0]):
        return DEFAULT_RECIPE, tuple(names)
    return names[0], tuple(names[1:])


def _is_step(name: str) -> bool:
    if name.startswith("@") or not _GLOB.isdisjoint(name):
        return True
    colon = name.find(":")
    before = name[: max(colon, 0)]
    is_drive = len(before) == 1 and before.isalpha()
    return colon >= 0 and not is_drive and not any(separator in before for separator in _SEPARATORS)
