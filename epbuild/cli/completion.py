"""Shell completion of commands, options, recipes and step ids.

Bash also splits words at `:` and `=` (COMP_WORDBREAKS), and replaces only the last part of a word. Typer's script
passes all parts to epbuild. This module joins the parts of a step id, and strips the prefix that bash keeps from each completion.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer

from epbuild.cli.names import split_names

VARIABLE = "_EPBUILD_COMPLETE"
"""Environment variable that a shell's completion script sets to request completions."""

_BREAKS = ":="
_SPECIAL = re.compile(r"[^\w@%+=:,./~-]")  # Characters that bash would interpret.
_SUFFIXES = (".yaml", ".yml")


def complete_recipes(incomplete: str) -> list[str]:
    """Return the recipes whose paths start with `incomplete`. If there are none, the shell completes file names."""
    from epbuild.recipe.compose import is_recipe

    folder, name = os.path.split(incomplete)
    try:
        found = sorted(path.name for path in Path(folder).iterdir() if path.suffix in _SUFFIXES and path.name.startswith(name))
    except (OSError, ValueError):
        return []
    return [os.path.join(folder, file) for file in found if is_recipe(Path(folder, file))]  # noqa: PTH118 - keeps the folder


def complete_recipes_and_steps(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the completions of `incomplete`: recipes if it is the first name, and the ids of the recipe's steps."""
    names: Sequence[str] = ctx.params.get("names") or []
    option = ctx.params.get("recipe")
    recipe, steps = split_names(names, None if option is None else str(option))
    first = [] if names or option is not None else complete_recipes(incomplete)
    return [*first, *(step for step in _list_steps(Path(recipe), ctx.params.get("settings") or []) if step not in steps)]


def _list_steps(recipe: Path, settings: Sequence[str]) -> list[str]:
    """Return the ids of a recipe's steps. Return an empty list if the recipe cannot be planned, since completions show no errors."""
    from epbuild.core.errors import EpbuildError
    from epbuild.session.planning import read_plan
    from epbuild.session.request import Request

    try:
        _, plan = read_plan(Request(recipe, settings=tuple(settings)))
    except (EpbuildError, OSError):
        return []
    return [step.id for step in plan.steps]


def answer_shell(command: Any) -> None:
    """Print the completions that a shell requested, and exit. `command` is the root command of the application."""
    from typer._click.shell_completion import add_completion_class
    from typer._completion_classes import BashComplete

    class Bash(BashComplete):
        kept = ""

        def get_completion_args(self) -> tuple[list[str], str]:
            parts, current = os.environ.get("COMP_WORDS", "").split("\n"), int(os.environ.get("COMP_CWORD", "0"))
            words, word = join_words(parts, current)
            os.environ["COMP_WORDS"], os.environ["COMP_CWORD"] = "\n".join(words), str(word)
            arguments, incomplete = super().get_completion_args()
            last = parts[current] if current < len(parts) and not _is_break(parts[current]) else ""
            self.kept = incomplete[: len(incomplete) - len(last)] if _is_split(parts, current) else ""
            self.is_quoted = word < len(words) and words[word].startswith(("'", '"'))
            return arguments, incomplete

        def format_completion(self, item: Any) -> str:
            text = str(item.value).removeprefix(self.kept)
            return text if self.is_quoted else _SPECIAL.sub(r"\\\g<0>", text)

    add_completion_class(Bash, "bash")
    command.main([], "epbuild", complete_var=VARIABLE, standalone_mode=False)


def join_words(parts: Sequence[str], current: int) -> tuple[list[str], int]:
    """Join parts of words that bash has split at `:` and `=`. Return the words and the index of the current word.

    The current word contains the part with the index `current`. Blanks around `:` and `=` are ignored, but an empty part starts a new word.
    """
    words: list[str] = []
    found = len(parts)
    for index, part in enumerate(parts):
        if index > 1 and part and (_is_break(part) or _is_break(parts[index - 1])):
            words[-1] += part
        else:
            words.append(part)
        if index == current:
            found = len(words) - 1
    return words, min(found, len(words))


def _is_break(part: str) -> bool:
    return bool(part) and not part.strip(_BREAKS)


def _is_split(parts: Sequence[str], current: int) -> bool:
    """Return whether bash replaces only the end of the word that contains the part with the index `current`."""
    if current >= len(parts) or current < 2 or not parts[current]:
        return False
    return _is_break(parts[current]) or _is_break(parts[current - 1])
