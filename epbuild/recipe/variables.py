"""Reader of variables in a recipe and on the command line (`--set`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from epbuild.core.errors import Argument, Position, Problem, RecipeError
from epbuild.recipe.nodes import KeyedNode, Scalar, ScalarNode
from epbuild.recipe.problems import TEMPLATE, WRONG_VALUE, quote_text
from epbuild.recipe.source import read
from epbuild.recipe.template import TemplateError, TemplateNames, substitute

_PREFIX = "vars."


class Override(Struct, frozen=True):
    """Value of a variable from the command line, and the `--set` argument that contains it."""

    value: Scalar
    where: Argument


def read_overrides(settings: Sequence[str]) -> tuple[Mapping[str, Override], list[Problem]]:
    """Return the overrides by variable, and the problems of invalid settings. If a variable is set twice, the last setting wins."""
    found: dict[str, Override] = {}
    problems: list[Problem] = []
    for setting in settings:
        where = Argument(f"--set {setting}")
        path, equals, text = setting.partition("=")
        if not equals or not path.startswith(_PREFIX):
            message = f"invalid setting {quote_text(setting)}: expected a value for a variable"
            problems.append(Problem(WRONG_VALUE, message, where, "Write vars.<name>=<value>."))
            continue
        value = _parse_scalar(text)
        if value is None:
            hint = "Write a string, a number, true or false. Write '' for an empty string."
            problems.append(Problem(WRONG_VALUE, f"{quote_text(text)} is not a single value", where, hint))
        else:
            found[path.removeprefix(_PREFIX)] = Override(value, where)
    return found, problems


def _parse_scalar(text: str) -> Scalar | None:
    """Return the value of a text that is a YAML scalar. Return None if the text is anything else."""
    try:
        source = read(f"value: {text}".encode(errors="surrogateescape"), "--set")
    except RecipeError:
        return None
    node = source.root.entries["value"].node if list(source.root.entries) == ["value"] else None
    return node.value if isinstance(node, ScalarNode) and not source.problems else None


def read_variables(
    section: Mapping[str, KeyedNode], overrides: Mapping[str, Override], environment: Mapping[str, str], problems: list[Problem]
) -> dict[str, Scalar]:
    """Return the values of variables by their names in templates, such as `vars.size`. Add problems to `problems`.

    Invalid variables are included, so that references to them cause no further problems.
    """
    found: dict[str, Scalar] = {}
    for name, entry in section.items():
        node = entry.node
        value = node.value if isinstance(node, ScalarNode) and node.value is not None else ""
        where: Position | Argument = node.where
        if name in overrides:
            value, where = overrides[name].value, overrides[name].where
        if isinstance(value, str):
            try:
                value = substitute(value, TemplateNames(environment))
            except TemplateError as error:
                problems.append(_make_problem(error, where))
        found[f"vars.{name}"] = value
    return found


def _make_problem(error: TemplateError, where: Position | Argument) -> Problem:
    if error.name is None or error.name.startswith("env."):
        return error.problem(where)
    message = f"a variable can refer only to environment variables, not to {quote_text('${' + error.name + '}')}"
    return Problem(TEMPLATE, message, where, "Write '$${' for a literal '${'.")
