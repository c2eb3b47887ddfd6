"""`epbuild init`: a first recipe, from questions or from flags."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from epbuild.cli import arguments
from epbuild.cli.usage import UsageError
from epbuild.report import print_line, tell_problems
from epbuild.starter import KINDS, Kind, Wishes, write_recipe
from epbuild.units import counted

_DEFAULT = Path("epbuild.yaml")


_EP: dict[str, Any] = arguments.choice(KINDS)

app = arguments.application()


@app.command()
def init(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="[FOLDER]", help="Where to; default: the current folder.", exists=True, file_okay=False, show_default=False
        ),
    ] = Path(),
    *,
    models: Annotated[
        list[str], arguments.options("--model", "-m", metavar="PATH", help="A source model; give it once for each.")
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
            + "; ".join(f"for {name}, {kind.target_words} ({kind.target_option})" for name, kind in KINDS.items())
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
    """Write a commented recipe into FOLDER that validates and builds.

    On a terminal, what no flag says is asked for.
    """
    path = folder / output
    if path.exists() and not force:
        raise _exists(path)
    missing = [flag for flag, given in (("--model", models), ("--ep", ep), ("--target", targets)) if not given]
    if missing and not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError(f"'epbuild init' asks on a terminal only; here it needs {', '.join(missing)}")
    asked = bool(missing)
    models = models or _ask_models(folder)
    ep = ep or str(typer.prompt(f"Execution provider ({', '.join(KINDS)})", value_proc=_EP["parser"], default=next(iter(KINDS))))
    kind = KINDS[ep]
    targets = targets or _ask_targets(kind)
    if share_weights is None:
        share_weights = (
            asked and len(models) > 1 and typer.confirm("Do the models share weights, in one context binary?", default=False)
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


def _ask_models(folder: Path) -> list[str]:
    """The paths that a person types, one after another, until there is nothing more; the first that is there is proposed."""
    there = sorted(str(path) for path in folder.glob("*.onnx"))
    found = [str(typer.prompt("Model", value_proc=_file, default=there[0] if there else None))]
    while answer := typer.prompt("Another model (none: press Enter)", value_proc=_no_file_or, default="", show_default=False):
        found.append(str(answer))
    return found


def _file(text: str) -> str:
    """The path of a file that is there; for a prompt, which asks again otherwise."""
    if not Path(text).exists():
        raise UsageError(f"File '{text}' does not exist.")
    if Path(text).is_dir():
        raise UsageError(f"File '{text}' is a directory.")
    return text


def _no_file_or(text: str) -> str:
    return _file(text) if text else text


def _ask_targets(kind: Kind) -> list[str]:
    words = kind.target_words[0].upper() + kind.target_words[1:]
    return str(typer.prompt(f"{words}; several with spaces between", default=kind.example)).split()


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
