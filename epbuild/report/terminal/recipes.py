"""Terminal output for first recipes, imported recipes, and locks."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from epbuild.commands.init.answers import FirstRecipe
from epbuild.commands.init.choices import FoundModel, LeftOut, StarterKind, find_eps_without_recipe, list_starter_kinds
from epbuild.commands.init.recipe import RecipeChoices
from epbuild.commands.init.sizing import BadSizes, Sizes
from epbuild.commands.lock import Locking
from epbuild.core.defaults import DEFAULT_RECIPE
from epbuild.core.errors import escape_controls
from epbuild.core.shown import format_path
from epbuild.core.units import format_count
from epbuild.onnxfile.read.model_header import ValueInfo
from epbuild.onnxfile.read.sizes import format_shape
from epbuild.report.formatting import format_size
from epbuild.report.terminal.problems import print_problems
from epbuild.report.terminal.screen import get_text_width, has_colors, paint, print_line, print_lines, wrap
from epbuild.toolchain.lock import Lock, LockChange

if TYPE_CHECKING:
    from epbuild.commands.add import Addition
    from epbuild.commands.importing.importing import ImportedRecipe

_COLORS = {"added": "32", "updated": "33", "removed": "31"}
_WIDTH = max(map(len, _COLORS))


class TerminalQuestions:
    """Questions about a first recipe, asked on a terminal."""

    def models(self) -> list[str]:
        return str(typer.prompt("Models (files, folders or globs, separated by spaces)")).split()

    def kind(self) -> StarterKind:
        """Ask for an EP. List the catalog's EPs with their limitations on this machine."""
        print_line("Execution providers:")
        kinds = list_starter_kinds()
        wide = max(map(len, kinds)) + 2
        for name, kind in kinds.items():
            what = kind.entry.description.rstrip(".")
            limit = kind.obstacle() or kind.condition()
            here = f"{what}. It {limit}." if limit else f"{what}. Compiles on this machine."
            print_lines(wrap(here, f"  {name:{wide}}", " " * (wide + 2)))
        for why, eps in find_eps_without_recipe().items():
            print_lines(wrap(f"{', '.join(eps)}: {why}.", "  Not ", "  "))
        default = next((name for name, kind in kinds.items() if not kind.obstacle() and not kind.condition()), next(iter(kinds)))
        return kinds[str(typer.prompt("Execution provider", value_proc=_read_kind, default=default))]

    def targets(self, kind: StarterKind) -> list[str]:
        words = kind.start.words[0].upper() + kind.start.words[1:]
        return str(typer.prompt(f"{words}; separate several with spaces", default=kind.start.example)).split()

    def sizes(self, model: str, value: ValueInfo, suggested: Sizes | None, read: Callable[[str], Sizes]) -> Sizes:
        """Ask for the sizes of an input until they are valid."""

        def parse(text: str) -> Sizes:
            try:
                return read(text)
            except BadSizes as error:
                raise typer.BadParameter(str(error)) from error

        default = ",".join(map(str, suggested)) if suggested else None
        sizes: Sizes = typer.prompt(
            f"{escape_controls(model)}: sizes of {escape_controls(_format_input(value))}", value_proc=parse, default=default
        )
        return sizes

    def share_weights(self) -> bool:
        return bool(typer.confirm("Should the models share weights in one context binary?", default=False))

    def show_found(self, found: Sequence[FoundModel]) -> None:
        """Print each model with its file, size and inputs."""
        print_line(f"{format_count(len(found), 'model')}:")
        wide = min(max(len(model.path) for model in found), get_text_width() // 2)
        for model in found:
            size = "" if model.size is None else format_size(model.size)
            unread = f"made by {model.export.name}" if model.export is not None else "read during the build"
            inputs = unread if model.header is None else ", ".join(map(_format_input, model.header.inputs))
            print_lines(wrap(inputs, f"  {escape_controls(model.path):{wide}}  {size:>9}  ", " " * (wide + 15)))

    def show_left(self, left: Sequence[LeftOut]) -> None:
        for item in left:
            print_lines(wrap(f"Skipped: {item.path}. {item.why}", others="  "))

    def show_static(self, kind: StarterKind) -> None:
        print_line(f"{kind.entry.ep} supports only static shapes.")
        print_line("Enter sizes for dynamic dimensions; press Enter to accept the guess.")


def make_questions() -> TerminalQuestions | None:
    """Return questions for a user, or None if there is no terminal to ask them on."""
    return TerminalQuestions() if sys.stdin.isatty() and sys.stdout.isatty() else None


def print_first_recipe(recipe: FirstRecipe, *, with_models: bool) -> None:
    """Print the warnings and a summary of the written recipe. With `with_models`, also print the models that were found."""
    choices, show = recipe.choices, TerminalQuestions()
    print_problems(recipe.warnings, "warning")
    if with_models and (len(recipe.found) > 1 or recipe.left):
        show.show_found(recipe.found)
    show.show_left(recipe.left)
    if obstacle := choices.kind.obstacle():
        print_line(f"{choices.kind.entry.ep} {obstacle}.")
    several = " --keep-going" if len(choices.models) > 1 and not choices.share_weights else ""
    _print_written(recipe.path, choices, "check them, or set them with --size", several)


def _read_kind(text: str) -> str:
    if text.lower() not in list_starter_kinds():
        raise typer.BadParameter(f"'{text}' is not one of {', '.join(repr(name) for name in list_starter_kinds())}.")
    return text.lower()


def _format_input(value: ValueInfo) -> str:
    """Format an input with its dimensions. A dimension name that an exporter generated is shown as dynamic."""
    shape = value.shape and tuple(None if isinstance(size, str) and any(map(str.isdigit, size)) else size for size in value.shape)
    return f"{value.name}{format_shape(shape).replace(', ', ',')}"


def print_imported(done: ImportedRecipe) -> None:
    """Print a summary of the recipe to standard output. List settings that were not imported on standard error."""
    print_problems(done.warnings, "warning")
    if done.left:
        sys.stderr.write("Not imported:\n")
    for item in done.left:
        for line in wrap(escape_controls(str(item)), "  ", "    "):
            sys.stderr.write(f"{line}\n")
    _print_written(done.path, done.choices, "check them")


def print_addition(addition: Addition) -> None:
    """Print the lines that were added to a recipe, and what the user should check."""
    print_problems(addition.warnings, "warning")
    TerminalQuestions().show_left(addition.left)
    lines = (f"  {line}" for definition in addition.definitions for line in definition.lines)
    print_lines([f"{addition.section}:", *lines])
    if addition.guesses:
        print_line(f"The sizes of {format_count(addition.guesses, 'input')} are guesses: check them, or set them with --size.")
    if addition.unused:
        print_line(f"No group has {', '.join(addition.unused)}: add it to `groups`.")
    counts = format_count(len(addition.definitions), addition.section.removesuffix("s"))
    print_line(f"Added {counts} to {format_path(addition.path)}. Next: epbuild run{_format_argument(addition.path)}")


def _format_argument(recipe: Path) -> str:
    """Return the recipe as an argument of a command, with the space before it. The default recipe needs no argument."""
    return "" if recipe == Path(DEFAULT_RECIPE) else f" {recipe}" if " " not in str(recipe) else f' "{recipe}"'


def _print_written(path: Path, choices: RecipeChoices, advice: str, options: str = "") -> None:
    """Print how many inputs have guessed sizes, what the recipe contains, and the command that builds it."""
    guesses = sum(not sized.chosen for model in choices.models for sized in choices.sizes.get(model, {}).values())
    if guesses:
        print_line(f"The sizes of {format_count(guesses, 'input')} are guesses, marked in the recipe: {advice}.")
    if choices.export is not None:
        script = escape_controls(choices.export.name)
        print_line(f"The arguments and packages of {script} are guesses, marked in the recipe: check them.")
    counts = f"{format_count(len(choices.models), 'model')} for {format_count(len(choices.targets), 'target')}"
    print_line(f"Wrote {path}: {counts}. Next: epbuild run{_format_argument(path)}{options}")


def print_lock(locking: Locking, exported: Mapping[str, Path | None], *, written: bool) -> None:
    """Print each change, the state of the lock, and each exported toolchain."""
    color = has_colors(sys.stdout)
    for change in locking.changes:
        print_line(
            f"{paint(f'{change.kind:<{_WIDTH}}', _COLORS[change.kind], color)}  {escape_controls(_format_lock_change(change))}"
        )
    place = format_path(locking.path)
    if written:
        print_line(f"Wrote {place}: {_format_contents(locking.lock)}")
    elif locking.is_written:
        print_line(f"{place} is up to date: {_format_contents(locking.lock)}")
    else:
        print_line(f"{place} is out of date; run `epbuild lock` to update it.")
    for name, path in exported.items():
        if path is not None:
            print_line(f"Wrote {format_path(path)}: toolchain {name}")
        else:
            print_line(f"Skipped toolchain {name}: it uses an existing environment, so no files are locked")


def _format_lock_change(change: LockChange) -> str:
    owner = f"toolchain {change.toolchain}  " if change.toolchain else "" if change.about == "python" else f"{change.about} "
    where = f"  ({', '.join(change.platforms)})" if change.platforms else ""
    return f"{owner}{'' if change.about == 'recipe' else f'{change.name} '}{_format_versions(change)}{where}"


def _format_versions(change: LockChange) -> str:
    match change.old, change.new:
        case None, new:
            return str(new)
        case old, None:
            return str(old)
        case old, new if old == new:
            return f"{old}, with different content"
        case old, new:
            return f"{old} -> {new}"


def _format_contents(lock: Lock) -> str:
    environments = [environment for toolchain in lock.toolchains.values() for environment in toolchain.platforms.values()]
    packages = {package.name for environment in environments for package in environment.packages}
    platforms = {platform for toolchain in lock.toolchains.values() for platform in toolchain.platforms}
    counts = {
        "toolchain": lock.toolchains,
        "package": packages,
        "platform": platforms,
        "remote model": lock.models,
        "wheel": lock.wheels,
    }
    return ", ".join(format_count(len(items), noun) for noun, items in counts.items() if items)
