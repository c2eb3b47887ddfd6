"""`epbuild init`: a first recipe, from questions or from flags."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from epbuild.report import print_line, tell_problems
from epbuild.starter import KINDS, Kind, Wishes, write_recipe
from epbuild.units import counted

_DEFAULT = Path("epbuild.yaml")


@click.command()
@click.argument("folder", type=click.Path(path_type=Path, exists=True, file_okay=False), default=Path())
@click.option("--model", "-m", "models", multiple=True, metavar="PATH", help="A source model; give it once for each.")
@click.option("--ep", type=click.Choice(list(KINDS), case_sensitive=False), help="The execution provider.")
@click.option(
    "--target",
    "--soc",
    "-t",
    "targets",
    multiple=True,
    metavar="[NAME=]VALUE",
    help="What to compile for: "
    + "; ".join(f"for {name}, {kind.target_words} ({kind.target_option})" for name, kind in KINDS.items())
    + ". Give it once for each.",
)
@click.option("--share-weights/--no-share-weights", default=None, help="Whether the models share one context binary.")
@click.option("--name", help="What the build is called; default: the folder's name.")
@click.option("--output", "-o", type=click.Path(path_type=Path), default=_DEFAULT, show_default=True, help="The recipe's file.")
@click.option("--force", "-f", is_flag=True, help="Replace a file that is there.")
def init(
    folder: Path,
    models: tuple[str, ...],
    ep: str | None,
    targets: tuple[str, ...],
    share_weights: bool | None,
    name: str | None,
    output: Path,
    force: bool,
) -> int:
    """Write a commented recipe into FOLDER (the current one) that validates and builds.

    On a terminal, what no flag says is asked for.
    """
    path = folder / output
    if path.exists() and not force:
        raise _exists(path)
    missing = [flag for flag, given in (("--model", models), ("--ep", ep), ("--target", targets)) if not given]
    if missing and not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise click.UsageError(f"'epbuild init' asks on a terminal only; here it needs {', '.join(missing)}")
    asked = bool(missing)
    models = models or _ask_models(folder)
    ep = ep or str(
        click.prompt("Execution provider", type=click.Choice(list(KINDS), case_sensitive=False), default=next(iter(KINDS)))
    )
    kind = KINDS[ep]
    targets = targets or _ask_targets(kind)
    if share_weights is None:
        share_weights = (
            asked and len(models) > 1 and click.confirm("Do the models share weights, in one context binary?", default=False)
        )
    wishes = Wishes(kind, ep, models, _named(targets), share_weights, name)
    try:
        warnings = write_recipe(path, wishes, overwrite=force)
    except FileExistsError:
        raise _exists(path) from None
    tell_problems(warnings, "warning")
    shown = "" if path == _DEFAULT else f" {path}" if " " not in str(path) else f' "{path}"'
    print_line(f"Wrote {path}: {counted(len(models), 'model')} for {counted(len(targets), 'target')}. Next: epbuild run{shown}")
    return 0


def _ask_models(folder: Path) -> tuple[str, ...]:
    """The paths that a person types, one after another, until there is nothing more; the first that is there is proposed."""
    there = sorted(str(path) for path in folder.glob("*.onnx"))
    found = [str(click.prompt("Model", type=click.Path(exists=True, dir_okay=False), default=there[0] if there else None))]
    another = click.Path(exists=True, dir_okay=False)
    while answer := click.prompt("Another model (none: press Enter)", default="", show_default=False):
        try:
            found.append(str(another.convert(answer, None, None)))
        except click.BadParameter as error:
            click.echo(f"Error: {error.format_message()}", err=True)
    return tuple(found)


def _ask_targets(kind: Kind) -> tuple[str, ...]:
    words = kind.target_words[0].upper() + kind.target_words[1:]
    answer = str(click.prompt(f"{words}; several with spaces between", default=kind.example))
    return tuple(answer.split())


def _named(targets: tuple[str, ...]) -> dict[str, str]:
    """Each target's value by its name, which is the value where none is given."""
    named: dict[str, str] = {}
    for target in targets:
        name, equals, value = target.partition("=")
        if equals and not (name and value):
            raise click.UsageError(f"'{target}' is no target; write VALUE or NAME=VALUE")
        if name in named:
            raise click.UsageError(f"two targets are called '{name}'; write NAME=VALUE to tell them apart")
        named[name] = value if equals else name
    return named


def _exists(path: Path) -> click.UsageError:
    return click.UsageError(f"{path} exists already; take --force to replace it, or --output for another file")
