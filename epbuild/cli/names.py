"""Names on a command line: a recipe, then steps, including steps in a file."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from epbuild.core.defaults import DEFAULT_RECIPE
from epbuild.core.errors import Argument, PlanError, Position, Problem

_SEPARATORS = "/\\"
_GLOB = frozenset("*?[")
_COMMENT = re.compile(r"(^|\s)#.*")
_FORM = "Write one id or glob per line, in UTF-8. A # starts a comment."


def split_names(names: Sequence[str], recipe: str | None = None) -> tuple[str, tuple[str, ...]]:
    """Split `names` into the recipe and the ids or globs of steps. `recipe` is the value of `--recipe`.

    The first name is the recipe unless it can only be a step: a glob, a file of steps (`@steps.txt`), or a name with a `:`
    before any separator, as in `emit:decoder/npu/directory`. A single letter before a `:` is a Windows drive (`C:`).
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


def expand_step_files(names: Sequence[str]) -> tuple[tuple[str, ...], Mapping[str, Position]]:
    """Replace each `@FILE` in `names` with the steps in the file. Return all steps, and the position of each step that was read.

    Raises PlanError (EPB278) for a file that cannot be read or has no steps. An empty selection would mean all steps.
    """
    steps: dict[str, Position | None] = {}
    for name in names:
        steps |= dict(_read_steps(name)) if name.startswith("@") else {name: None}
    return tuple(steps), {step: where for step, where in steps.items() if where is not None}


def _read_steps(name: str) -> Iterator[tuple[str, Position]]:
    path = name[1:]
    try:
        content = Path(path).read_bytes()
    except (OSError, ValueError) as error:  # ValueError: the text is not a valid file name.
        why = error.strerror if isinstance(error, OSError) else error
        raise PlanError(Problem("EPB278", f"the file of steps cannot be read: {why}", Argument(name), None)) from error
    found = False
    for number, line in enumerate(content.split(b"\n"), 1):
        try:
            text = line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            where = Position(path, number, len(line[: error.start].decode("utf-8", "replace")) + 1)
            raise PlanError(Problem("EPB278", "the file of steps is not UTF-8", where, _FORM)) from error
        step = _COMMENT.sub("", text).strip()
        if step:
            found = True
            yield step, Position(path, number, text.index(step) + 1)
    if not found:
        raise PlanError(Problem("EPB278", "the file of steps contains no steps", Position(path, 1, 1), _FORM))
