"""Completion in shells: commands and options, recipes, ids of steps.

Typer's script for bash passes on the words as bash splits them, which does so at `:` and `=` too (COMP_WORDBREAKS), and replaces the
last part alone. Step ids are put together again here, and what is proposed is cut off before what bash keeps.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer

from epbuild.survey.asked import recipe_and_steps

VARIABLE = "_EPBUILD_COMPLETE"
"""By this variable of the environment a shell's script asks for completions, instead of running a command."""

_BREAKS = ":="
_SPECIAL = re.compile(r"[^\w@%+=:,./~-]")  # what bash would not leave as it is
_SUFFIXES = (".yaml", ".yml")
_MOST_BYTES = 1 << 16  # of a file, in which a recipe shows that it is one


def recipes(incomplete: str) -> list[str]:
    """The recipes in the folder of a path that is being written. Where there are none, a shell completes names of files."""
    folder, name = os.path.split(incomplete)
    try:
        found = sorted(path.name for path in Path(folder).iterdir() if path.suffix in _SUFFIXES and path.name.startswith(name))
    except (OSError, ValueError):
        return []
    return [os.path.join(folder, file) for file in found if _is_recipe(Path(folder, file))]  # noqa: PTH118 - as it is being written


def recipes_and_steps(ctx: typer.Context, incomplete: str) -> list[str]:
    """What can come next: a recipe as the first, and ids of its steps."""
    names: Sequence[str] = ctx.params.get("names") or []
    option = ctx.params.get("recipe")
    recipe, steps = recipe_and_steps(names, None if option is None else str(option))
    first = [] if names or option is not None else recipes(incomplete)
    return [*first, *(step for step in _steps(Path(recipe), ctx.params.get("settings") or []) if step not in steps)]


def _is_recipe(path: Path) -> bool:
    try:
        if not path.is_file():
            return False
        with path.open("rb") as file:
            return any(line.startswith(b"epbuild:") for line in file.read(_MOST_BYTES).splitlines())
    except OSError:
        return False


def _steps(recipe: Path, settings: Sequence[str]) -> list[str]:
    """The ids of a recipe's steps; none where it cannot be planned, as a key that is pressed does not ask for the reasons."""
    from epbuild.commands.planning import read_plan
    from epbuild.commands.request import Request
    from epbuild.core.errors import EpbuildError

    try:
        _, plan = read_plan(Request(recipe, settings=tuple(settings)))
    except (EpbuildError, OSError):
        return []
    return [step.id for step in plan.steps]


def answer_shell(command: Any) -> None:
    """Print what a shell asked for by the variable, and exit; `command` is the command line as a whole."""
    from typer._click.shell_completion import add_completion_class
    from typer._completion_classes import BashComplete

    class Bash(BashComplete):
        kept = ""

        def get_completion_args(self) -> tuple[list[str], str]:
            parts, current = os.environ.get("COMP_WORDS", "").split("\n"), int(os.environ.get("COMP_CWORD", "0"))
            words, word = joined(parts, current)
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


def joined(parts: Sequence[str], current: int) -> tuple[list[str], int]:
    """The words that bash has split at `:` and `=`, and the index of the one that has the part `current`.

    Blanks around a part are lost, but for the empty part of a word that has just begun.
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
    """Whether bash replaces only the end of the word that has the part `current`."""
    if current >= len(parts) or current < 2 or not parts[current]:
        return False
    return _is_break(parts[current]) or _is_break(parts[current - 1])
