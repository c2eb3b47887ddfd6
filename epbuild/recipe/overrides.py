"""`--set vars.<name>=<value>`: variables from the command line, their values read as YAML scalars."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from epbuild.core.errors import Argument, Problem, RecipeError
from epbuild.recipe.model import Scalar
from epbuild.recipe.problems import WRONG_VALUE, quoted
from epbuild.recipe.source import ScalarNode, read

_PREFIX = "vars."


@dataclass(frozen=True)
class Override:
    """A variable's value, and where it comes from: the `--set`."""

    value: Scalar
    where: Argument


def read_overrides(settings: Sequence[str]) -> tuple[Mapping[str, Override], list[Problem]]:
    """The values by variable, the last of several for one, and what is wrong with the texts."""
    found: dict[str, Override] = {}
    problems: list[Problem] = []
    for setting in settings:
        where = Argument(f"--set {setting}")
        path, equals, text = setting.partition("=")
        if not equals or not path.startswith(_PREFIX):
            message = f"{quoted(setting)} sets no variable."
            problems.append(Problem(WRONG_VALUE, message, where, "Write vars.<name>=<value>."))
            continue
        value = _scalar(text)
        if value is None:
            hint = "Write a text, a number, true or false; an empty text is ''."
            problems.append(Problem(WRONG_VALUE, f"{quoted(text)} is no single value.", where, hint))
        else:
            found[path.removeprefix(_PREFIX)] = Override(value, where)
    return found, problems


def _scalar(text: str) -> Scalar | None:
    """The YAML scalar that a text is, or None when it is something else."""
    try:
        source = read(f"value: {text}".encode(errors="surrogateescape"), "--set")
    except RecipeError:
        return None
    node = source.root.entries["value"].node if list(source.root.entries) == ["value"] else None
    return node.value if isinstance(node, ScalarNode) and not source.problems else None
