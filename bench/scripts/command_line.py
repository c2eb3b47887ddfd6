"""`python command_line.py click|typer RECIPE --check`: an empty command with epbuild's options, built with one library."""

import sys
from pathlib import Path


def with_click() -> None:
    import click

    @click.command()
    @click.argument("recipe", type=click.Path(path_type=Path))
    @click.option("--jobs", "-j", type=int)
    @click.option("--check", is_flag=True)
    @click.option("--set", "settings", multiple=True)
    def run(recipe: Path, jobs: int | None, check: bool, settings: tuple[str, ...]) -> None:
        print(recipe, jobs, check, settings)

    run(sys.argv[2:])


def with_typer() -> None:
    from typing import Annotated

    import typer

    app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)

    @app.command()
    def run(
        recipe: Path,
        jobs: Annotated[int | None, typer.Option("--jobs", "-j")] = None,
        check: Annotated[bool, typer.Option("--check")] = False,
        settings: Annotated[list[str] | None, typer.Option("--set")] = None,
    ) -> None:
        print(recipe, jobs, check, settings)

    app(sys.argv[2:])


{"click": with_click, "typer": with_typer}[sys.argv[1]]()
