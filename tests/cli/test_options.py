"""Option groups: plain options, and rules that refuse combinations of options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import pytest
import typer
from typer.main import get_command

from epbuild.cli.options import Excludes, Needs, OptionGroup, UsageError, declare_option, declare_options, make_application


class Place(OptionGroup, frozen=True, kw_only=True):
    folder: Annotated[Path | None, declare_option("--folder", "-f", help="The folder.")] = None
    tags: Annotated[list[str], declare_options("--tag", help="A tag.")]


class Color(OptionGroup, frozen=True, kw_only=True):
    name: Annotated[str, declare_option("--color", help="The color.")] = "red"
    seed: Annotated[int | None, declare_option("--seed", help="A number.")] = None


_RULES = (
    Excludes(("--folder",), ("--color blue", "--tag"), "a folder is never blue and has no tag"),
    Needs(("--seed",), ("--tag", "--folder"), "--seed needs --tag or --folder"),
)


def run(*arguments: str) -> tuple[Place, bool, Color, list[str]]:
    """Return the values that a command with two groups gets."""
    found: list[tuple[Place, bool, Color, list[str]]] = []
    app = make_application()

    @app.command(rules=_RULES)
    def command(
        words: Annotated[list[str], typer.Argument(default_factory=list)],
        place: Place,
        *,
        loud: Annotated[bool, declare_option("--loud", help="Loud.")] = False,
        color: Color,
    ) -> int:
        found.append((place, loud, color, words))
        return 0

    get_command(app).main(list(arguments), standalone_mode=False)
    return found[0]


def test_an_option_group_has_values_and_defaults() -> None:
    assert run() == (Place(tags=[]), False, Color(), [])
    expected = (Place(folder=Path("here"), tags=[]), True, Color(name="green"), ["a", "b"])
    assert run("a", "--loud", "b", "-f", "here", "--color", "green") == expected
    assert run("--tag", "x", "--tag", "y", "--seed", "0") == (Place(tags=["x", "y"]), False, Color(seed=0), [])


def test_options_follow_the_order_of_their_groups() -> None:
    app = make_application()

    @app.command()
    def command(place: Place, loud: Annotated[bool, declare_option("--loud", help="Loud.")] = False, *, color: Color) -> None:
        """Do nothing."""

    names = [parameter.opts[0] for parameter in get_command(app).params]
    assert names == ["--folder", "--tag", "--loud", "--color", "--seed"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--folder", "x", "--tag", "y"], "a folder is never blue and has no tag"),
        (["-f", "x", "--color", "blue"], "a folder is never blue and has no tag"),
        (["--seed", "0"], "--seed needs --tag or --folder"),
    ],
)
def test_a_violated_option_rule_is_a_usage_error(arguments: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        run(*arguments)
