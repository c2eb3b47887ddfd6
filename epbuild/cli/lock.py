"""`epbuild lock`: write down what the toolchains and remote models of a recipe are, exactly."""

from __future__ import annotations

from pathlib import Path

import click

from epbuild.build import Event, Listener, Request, Upgrade, Warned, make_lock, write_lock
from epbuild.cli import arguments
from epbuild.errors import Problem
from epbuild.report import lock_document, print_json, print_lock, reporter


@click.command()
@arguments.recipe
@click.option("--check", is_flag=True, help="Write nothing; exit with 1 if the lock is not up to date.")
@click.option(
    "--upgrade", "-U", is_flag=True, help="Take the newest versions that do, instead of those of the lock that is there."
)
@click.option("--upgrade-package", "-P", "upgraded", multiple=True, metavar="NAME", help="The same for one package.")
@arguments.settings
@arguments.json
def lock(recipe: Path, check: bool, upgrade: bool, upgraded: tuple[str, ...], settings: tuple[str, ...], json: bool) -> int:
    """Write the lock of RECIPE (epbuild.yaml) beside it (epbuild.lock).

    It has every package of every toolchain, with version and digests, for the platforms that the toolchain names; the digests of all remote
    models; and the catalog's revision. Builds use it from then on. What is locked already stays as it is, as long as the recipe allows.
    """
    warnings: list[Problem] = []
    request, wanted = Request(recipe, settings=settings), Upgrade(upgraded, upgrade)
    if json:
        found = make_lock(request, _collector(warnings), wanted)
    else:
        with reporter(json=False) as listener:
            found = make_lock(request, listener, wanted)
    written = not check and not found.is_written
    if written:
        write_lock(found)
    if json:
        print_json(lock_document(found, warnings, written=written))
    else:
        print_lock(found, written=written)
    return 1 if check and not found.is_written else 0


def _collector(warnings: list[Problem]) -> Listener:
    """A listener that keeps warnings, for the end."""

    def hear(event: Event) -> None:
        if isinstance(event, Warned):
            warnings.append(event.problem)

    return hear
