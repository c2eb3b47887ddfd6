"""`epbuild init`: a first recipe, from questions or from flags."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from epbuild.cli import arguments
from epbuild.cli.usage import UsageError
from epbuild.commands.init.kinds import KINDS, Kind, without_recipe
from epbuild.commands.init.recipe import Wishes, model_names, why_not, write_recipe
from epbuild.commands.init.sizing import BadSizes, Check, Sized, Sizes, Sizing, read_sizes
from epbuild.commands.init.sources import FoundModel, LeftOut, find_models
from epbuild.core.errors import printable
from epbuild.core.units import counted
from epbuild.onnxfile.headers import ValueInfo
from epbuild.onnxfile.sizes import shape_text
from epbuild.report.problems import tell_problems
from epbuild.report.text import print_line

_DEFAULT = Path("epbuild.yaml")
_WIDTH = 80


_EP: dict[str, Any] = arguments.choice(KINDS)

app = arguments.application()


@app.command()
def init(
    places: Annotated[
        list[str],
        typer.Argument(
            metavar="[FOLDER | MODEL...]",
            help="The folder to write the recipe into, whose *.onnx are the models; or models: files, folders and globs, for a recipe in "
            "the current folder. Default: the current folder.",
            default_factory=list,
            show_default=False,
        ),
    ],
    *,
    models: Annotated[
        list[str],
        arguments.options(
            "--model", "-m", metavar="PATH", help="A source model: a file, folder, glob or address. Give it once for each."
        ),
    ],
    sizes: Annotated[
        list[str],
        arguments.options(
            "--size",
            "-s",
            metavar="[MODEL:]INPUT=SIZES",
            help="The sizes of an input with open dimensions, such as x=1,3,320,320: of every model that has it, or of one. Give it once "
            "for each.",
        ),
    ],
    ep: Annotated[str | None, arguments.option("--ep", help="The execution provider.", **_EP)] = None,
    targets: Annotated[
        list[str],
        arguments.options(
            "--target",
            "--soc",
            "-t",
            metavar="[NAME=]VALUE",
            help="What to compile for: "
            + "; ".join(f"for {name}, {kind.start.words}" for name, kind in KINDS.items() if kind.asks)
            + ". Give it once for each.",
        ),
    ],
    share_weights: Annotated[
        bool | None,
        arguments.option("--share-weights/--no-share-weights", help="Whether the models share one context binary."),
    ] = None,
    name: Annotated[
        str | None, arguments.option("--name", metavar="NAME", help="What the build is called; default: the folder's name.")
    ] = None,
    output: Annotated[
        Path, arguments.option("--output", "-o", metavar="PATH", help=f"The recipe's file; default: {_DEFAULT}.")
    ] = _DEFAULT,
    force: Annotated[bool, arguments.option("--force", "-f", help="Replace a file that is there.")] = False,
) -> int:
    """Write a commented recipe that validates and builds, for the models that it finds.

    On a terminal, what no flag says is asked for. Elsewhere, open dimensions that no --size gives a size get one that is a guess.
    """
    given = dict(map(_size, sizes))
    folder, named = _places(places)
    path = folder / output
    if path.exists() and not force:
        raise _exists(path)
    terminal = sys.stdin.isatty() and sys.stdout.isatty()
    found, left = _models(folder, named, models, terminal=terminal)
    kind = KINDS[ep] if ep else None
    missing = [
        flag
        for flag, there in (("--model", found), ("--ep", kind), ("--target", targets or not (kind and kind.asks)))
        if not there
    ]
    missing += ["--target"] if not terminal and kind is None and not targets else []
    if missing and not terminal:
        raise UsageError(f"'epbuild init' asks on a terminal only; here it needs {', '.join(dict.fromkeys(missing))}")
    asked = bool(missing)
    kind = kind or _ask_kind()
    targets = targets or (_ask_targets(kind) if kind.asks else [kind.start.example])
    if terminal and kind.static and any(model.header and _is_open(model.header.inputs) for model in found):
        print_line(f"{kind.entry.ep} takes static shapes only.")
        print_line("Give sizes to what is open; Enter takes the guess.")
    sizing = Sizing(given, _ask_sizes if terminal else None)
    chosen, unsized = _sized(found, sizing, kind)
    left += unsized
    unused = given.keys() - sizing.used
    if unused:
        raise UsageError(f"no model has an input '{min(unused)}'; write INPUT=SIZES, or MODEL:INPUT=SIZES with a model's name")
    if share_weights is None:
        share_weights = (
            asked and len(chosen) > 1 and typer.confirm("Do the models share weights, in one context binary?", default=False)
        )
    wishes = Wishes(kind, list(chosen), _named(targets), share_weights, name, chosen)
    wishes, refused = _possible(path, wishes, sure=set(models))
    left += refused
    if not wishes.models:
        raise UsageError(f"there is no model to start with: {'; '.join(f'{item.path}: {item.why}' for item in left)}")
    try:
        warnings = write_recipe(path, wishes, overwrite=force)
    except FileExistsError:
        raise _exists(path) from None
    tell_problems(warnings, "warning")
    if not terminal and (len(found) > 1 or left):
        _print_found(found, [])
    _print_left(left)
    if obstacle := kind.obstacle():
        print_line(f"Not here: {kind.entry.ep} {obstacle}.")
    _print_guesses(wishes)
    several = " --keep-going" if len(wishes.models) > 1 and not share_weights else ""
    shown = "" if path == _DEFAULT else f" {path}" if " " not in str(path) else f' "{path}"'
    print_line(
        f"Wrote {path}: {counted(len(wishes.models), 'model')} for {counted(len(targets), 'target')}. Next: epbuild run{shown}{several}"
    )
    return 0


def _places(places: Sequence[str]) -> tuple[Path, list[str]]:
    """The folder that the recipe goes into, and the models that are named."""
    if len(places) == 1 and Path(places[0]).is_dir():
        return Path(places[0]), []
    for place in places:
        if not any(sign in place for sign in "*?[:") and not Path(place).exists():
            raise UsageError(f"'{place}' does not exist: name a folder, or models by files and globs")
    return Path(), list(places)


def _models(
    folder: Path, named: Sequence[str], flagged: Sequence[str], *, terminal: bool
) -> tuple[list[FoundModel], list[LeftOut]]:
    """The models to start with, listed: those that are named, else those of the folder."""
    found, left = find_models([*named, *flagged], sure=not named)
    if not named and not flagged:
        found, left = find_models([str(folder)] if str(folder) != "." else ["*.onnx"])
        left = [item for item in left if Path(item.path).is_file()]
    while not found and terminal:
        _print_left(left)
        answer = typer.prompt("Models (files, folders or globs, with spaces between)")
        found, left = find_models(str(answer).split())
    if left and not found:
        raise UsageError(f"there is no model to start with: {'; '.join(f'{item.path}: {item.why}' for item in left)}")
    if terminal:
        _print_found(found, left)
    return found, left


def _print_found(found: Sequence[FoundModel], left: list[LeftOut]) -> None:
    """Say what was found, and what of it is left out."""
    print_line(f"{counted(len(found), 'model')}:")
    for line in _listed(found):
        print_line(line)
    _print_left(left)


def _listed(found: Sequence[FoundModel]) -> Iterator[str]:
    """A line for each model: its file, its size, its inputs; what is too long for it goes on in others."""
    wide = min(max(len(model.path) for model in found), _WIDTH // 2)
    for model in found:
        size = "" if model.size is None else _amount(model.size)
        inputs = "looked at when it is built" if model.header is None else ", ".join(map(_input, model.header.inputs))
        head = f"  {printable(model.path):{wide}}  {size:>9}  "
        yield from textwrap.wrap(
            printable(inputs), _WIDTH, initial_indent=head, subsequent_indent=" " * (wide + 15), break_on_hyphens=False
        )


def _input(value: ValueInfo) -> str:
    """An input with its dimensions; names that an exporter made up say nothing, and are shown as open."""
    shape = value.shape and tuple(None if isinstance(size, str) and any(map(str.isdigit, size)) else size for size in value.shape)
    return f"{value.name}{shape_text(shape).replace(', ', ',')}"


def _is_open(inputs: Sequence[ValueInfo]) -> bool:
    return any(value.shape is None or not all(isinstance(size, int) for size in value.shape) for value in inputs)


def _amount(size: int) -> str:
    from rich.filesize import decimal

    return decimal(size)


def _print_left(left: list[LeftOut]) -> None:
    """Say what is left out, and why, once."""
    for item in left:
        text = f"Left out: {printable(item.path)}. {printable(item.why)}"
        for line in textwrap.wrap(text, _WIDTH, subsequent_indent="  ", break_on_hyphens=False):
            print_line(line)
    left.clear()


def _ask_kind() -> Kind:
    """The EP that a person chooses of all that the catalog knows, with what each can do here."""
    print_line("Execution providers:")
    wide = max(map(len, KINDS)) + 2
    for name, kind in KINDS.items():
        what = kind.entry.description.rstrip(".")
        limit = kind.obstacle() or kind.condition()
        here = f"{what}. It {limit}." if limit else f"{what}. Compiles here."
        for line in textwrap.wrap(here, _WIDTH, initial_indent=f"  {name:{wide}}", subsequent_indent=" " * (wide + 2)):
            print_line(line)
    for why, eps in without_recipe().items():
        for line in textwrap.wrap(f"{', '.join(eps)}: {why}.", _WIDTH, initial_indent="  Not ", subsequent_indent="  "):
            print_line(line)
    default = next((name for name, kind in KINDS.items() if not kind.obstacle() and not kind.condition()), next(iter(KINDS)))
    return KINDS[str(typer.prompt("Execution provider", value_proc=_EP["parser"], default=default))]


def _ask_targets(kind: Kind) -> list[str]:
    words = kind.start.words[0].upper() + kind.start.words[1:]
    return str(typer.prompt(f"{words}; several with spaces between", default=kind.start.example)).split()


def _ask_sizes(model: str, value: ValueInfo, suggested: Sizes | None, check: Check) -> Sizes:
    """The sizes that a person gives an input; asked again until they fit."""

    def read(text: str) -> Sizes:
        try:
            return check(text)
        except BadSizes as error:
            raise UsageError(str(error)) from error

    default = ",".join(map(str, suggested)) if suggested else None
    sizes: Sizes = typer.prompt(f"{printable(model)}: sizes of {printable(_input(value))}", value_proc=read, default=default)
    return sizes


def _sized(found: Sequence[FoundModel], sizing: Sizing, kind: Kind) -> tuple[dict[str, dict[str, Sized]], list[LeftOut]]:
    """The sizes of the models' inputs, by their paths, and the models for which there are none."""
    chosen: dict[str, dict[str, Sized]] = {}
    left = []
    headers = {model.path: model.header for model in found}
    for name, path in model_names(list(headers)).items():
        header = headers[path]
        try:
            chosen[path] = sizing.sizes_of(name, header, static=kind.static) if header is not None else {}
        except BadSizes as error:
            if sizing.given:
                raise UsageError(str(error)) from error
            left.append(LeftOut(path, str(error)))
    return chosen, left


def _possible(path: Path, wishes: Wishes, sure: set[str]) -> tuple[Wishes, list[LeftOut]]:
    """The wishes without the models that cannot be planned, each tried alone; those that somebody is `sure` of stay, to be refused."""
    left = []
    if len(wishes.models) > 1 and not wishes.share_weights:
        for model in wishes.models:
            why = None if model in sure else why_not(path, replace(wishes, models=[model]))
            if why is not None:
                left.append(LeftOut(model, why[:1].upper() + why[1:]))
        gone = {item.path for item in left}
        if gone != set(wishes.models):  # what stops all of them is no model's fault
            return replace(wishes, models=[model for model in wishes.models if model not in gone]), left
    return wishes, []


def _print_guesses(wishes: Wishes) -> None:
    guesses = sum(not sized.chosen for model in wishes.models for sized in wishes.sizes.get(model, {}).values())
    if guesses:
        print_line(
            f"The sizes of {counted(guesses, 'input')} are guesses, marked in the recipe: look at them, or give them with --size."
        )


def _size(text: str) -> tuple[str, Sizes]:
    key, equals, sizes = text.rpartition("=")
    if not equals or not key:
        raise UsageError(f"'{text}' is no size; write INPUT=SIZES, such as x=1,3,320,320")
    try:
        return key, read_sizes(sizes)
    except BadSizes as error:
        raise UsageError(str(error)) from error


def _named(targets: Sequence[str]) -> dict[str, str]:
    """Each target's value by its name, which is the value where none is given."""
    named: dict[str, str] = {}
    for target in targets:
        name, equals, value = target.partition("=")
        if equals and not (name and value):
            raise UsageError(f"'{target}' is no target; write VALUE or NAME=VALUE")
        if name in named:
            raise UsageError(f"two targets are called '{name}'; write NAME=VALUE to tell them apart")
        named[name] = value if equals else name
    return named


def _exists(path: Path) -> UsageError:
    return UsageError(f"{path} exists already; take --force to replace it, or --output for another file")
