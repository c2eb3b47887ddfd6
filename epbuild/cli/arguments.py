"""Arguments that several commands take, in one place so that they read alike."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
from typer.core import TyperCommand

from epbuild.cli import completion
from epbuild.cli.usage import UsageError
from epbuild.core.defaults import DEFAULT_RECIPE
from epbuild.core.errors import Position
from epbuild.core.units import bytes_of, seconds_of
from epbuild.survey.asked import recipe_and_steps


class _Command(TyperCommand):
    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """What goes into the line "Usage:": of arguments that are needed, the bare names, which typer has braces around."""
        pieces = super().collect_usage_pieces(ctx)
        return [piece[1:-1] if piece.startswith("{") else piece for piece in pieces]


class _Application(typer.Typer):
    def command(self, *arguments: Any, **settings: Any) -> Any:
        return super().command(*arguments, cls=_Command, **settings)


def application(**settings: Any) -> typer.Typer:
    """What a command is registered in: its module's `app`. Help is plain text, and errors are `app.execute`'s to show."""
    return _Application(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False, **settings)


def option(*names: str, help: str, **settings: Any) -> Any:  # noqa: A002 - as typer has it
    """An option of one value; its default, where there is one, is in its help."""
    return typer.Option(*names, help=help, show_default=False, **settings)


def options(*names: str, help: str, **settings: Any) -> Any:  # noqa: A002
    """An option that may be given several times: a list, empty where it is not given."""
    return option(*names, help=help, default_factory=list, **settings)


def amount(name: str, read: Callable[[str], int]) -> Callable[[str], int]:
    """The parser of a number with a unit, read by `read`."""

    def convert(text: str) -> int:
        try:
            return read(text)
        except ValueError as error:
            raise typer.BadParameter(f"invalid {name}: {text}. {error}") from None

    return convert


def choice(names: Collection[str]) -> dict[str, Any]:
    """What an option or an argument is that takes one of `names`, in any case."""

    def convert(text: str) -> str:
        if text.lower() not in names:
            raise typer.BadParameter(f"'{text}' is not one of {', '.join(repr(name) for name in names)}.")
        return text.lower()

    def complete(incomplete: str) -> list[str]:
        return [name for name in names if name.startswith(incomplete)]

    return {"parser": convert, "autocompletion": complete, "metavar": f"[{'|'.join(names)}]"}


size = amount("size", bytes_of)
"""Bytes, such as `20GB`."""
age = amount("time", seconds_of)
"""Seconds, such as `30d`."""

Recipe = Annotated[
    Path,
    typer.Argument(
        metavar="[RECIPE]", help=f"The recipe; default: {DEFAULT_RECIPE}.", show_default=False, autocompletion=completion.recipes
    ),
]
Recipes = Annotated[
    list[Path],
    typer.Argument(
        metavar="[RECIPE]...",
        help=f"The recipe, or several; default: {DEFAULT_RECIPE}.",
        show_default=False,
        default_factory=list,
        autocompletion=completion.recipes,
    ),
]
RecipeOption = Annotated[
    Path | None,
    option(
        "--recipe",
        "-r",
        metavar="RECIPE",
        help="The recipe, where its name is like a step's; all arguments are steps then.",
        autocompletion=completion.recipes,
    ),
]


def _names_argument(metavar: str, steps: str, **settings: Any) -> Any:
    return typer.Argument(
        metavar=metavar,
        help=f"The recipe (default: {DEFAULT_RECIPE}), and then {steps}.",
        show_default=False,
        autocompletion=completion.recipes_and_steps,
        **settings,
    )


_GLOBS = "ids of steps, or globs over ids, such as 'emit:decoder/*', or @FILE with one of these a line"
Names = Annotated[list[str], _names_argument("[RECIPE] [STEP]...", f"{_GLOBS}: only these", default_factory=list)]
NeededNames = Annotated[list[str], _names_argument("[RECIPE] STEP...", _GLOBS)]
NamesOfOne = Annotated[list[str], _names_argument("[RECIPE] [STEP]", "the id of a step", default_factory=list)]
Json = Annotated[bool, option("--json", help="Print JSON only.")]
AllWarnings = Annotated[bool, option("--all-warnings", help="Show every warning; default: three of each code, and a count.")]
Locked = Annotated[bool, option("--locked", help="Refuse what is not as the recipe's lock has it (`epbuild lock`).")]
NoExec = Annotated[
    bool,
    option("--no-exec", help="Start no program: a toolchain of which nothing is known yet stays unknown."),
]
Settings = Annotated[
    list[str],
    options("--set", metavar="vars.NAME=VALUE", help="Give a variable of the recipe another value, for this run."),
]
Jobs = Annotated[
    int | None,
    option("--jobs", "-j", min=1, metavar="N", help="How many actions may run at once; default: one per CPU."),
]
Retry = Annotated[bool, option("--retry", help="Try again what failed before, although nothing that it depends on has changed.")]
DryRun = Annotated[bool, option("--dry-run", "-n", help="Show what would be removed, and remove nothing.")]
NewName = Annotated[str | None, option("--name", metavar="NAME", help="What the build is called; default: the folder's name.")]
NewRecipe = Annotated[Path, option("--output", "-o", metavar="PATH", help=f"The recipe's file; default: {DEFAULT_RECIPE}.")]
Force = Annotated[bool, option("--force", "-f", help="Replace a file that is there.")]

DEFAULT = Path(DEFAULT_RECIPE)


class Named(NamedTuple):
    """The recipe and the steps that a command is about, and where a file of steps has them."""

    recipe: Path
    steps: tuple[str, ...]
    places: Mapping[str, Position]


def named(names: Sequence[str], recipe: Path | None) -> Named:
    """What a command line names; `recipe` is that of `--recipe`. Raises PlanError for a file of steps that is none."""
    found, steps = recipe_and_steps(names, None if recipe is None else str(recipe))
    if not any(step.startswith("@") for step in steps):
        return Named(Path(found), steps, {})
    from epbuild.cli.steps_file import with_files  # few command lines name one

    return Named(Path(found), *with_files(steps))


def needed(steps: Sequence[str], recipe: Path) -> Sequence[str]:
    """The steps, where there are any. Raises UsageError."""
    if not steps:
        raise UsageError(f"'{recipe}' is a recipe: name a step as well, such as 'compile:*'")
    return steps


class LogLines:
    """Lines about what takes long, beside the answer, which alone goes to standard output."""

    def report(self, text: str, /) -> None:
        typer.echo(text, err=True)
