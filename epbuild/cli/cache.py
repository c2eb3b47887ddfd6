"""`epbuild cache`: what is in the store, and whether all of it is sound."""

from __future__ import annotations

from contextlib import nullcontext

import typer

from epbuild.cache.location import cache_directory, toolchain_directory
from epbuild.cli import arguments
from epbuild.commands.cache import cache_stats, check_cache
from epbuild.remote.keys import SigningKey
from epbuild.remote.settings import SIGNING_KEY
from epbuild.report.cache import (
    NoBar,
    cache_check_document,
    cache_stats_document,
    check_progress,
    print_cache_check,
    print_cache_stats,
)
from epbuild.report.documents import print_json

app = arguments.application(invoke_without_command=True, subcommand_metavar="[COMMAND] [ARGS]...")


@app.callback()
def cache(context: typer.Context, json: arguments.Json = False) -> int:
    """Show what is in the store: blobs (the files of all results, by content), records (what each action came to), and the rest."""
    if context.invoked_subcommand is not None:
        return 0
    found = cache_stats(cache_directory(), toolchain_directory())
    if json:
        print_json(cache_stats_document(found))
    else:
        print_cache_stats(found)
    return 0


@app.command(short_help="Check every blob and every record.")
def verify(json: arguments.Json = False) -> int:
    """Read every blob and every record, and set aside what is damaged: the next build that needs it makes it again.

    Exit code 1: something was damaged.
    """
    place = cache_directory()
    with nullcontext(NoBar()) if json else check_progress() as progress:
        found = check_cache(place, progress)
    if json:
        print_json(cache_check_document(place, found))
    else:
        print_cache_check(found)
    return 1 if found.damaged else 0


@app.command(short_help="Make a pair of keys for a remote cache.")
def key(json: arguments.Json = False) -> int:
    """Make a new pair of keys: the secret one signs what is written to a remote cache, the public one is what a recipe trusts.

    Nothing is kept: give the secret to CI, and put the public key under `cache` in the recipe.
    """
    made = SigningKey.generate()
    if json:
        print_json({"format": 1, "signing_key": made.text, "trust": made.public})
    else:
        typer.echo(f"{SIGNING_KEY}={made.text}\ntrust: [{made.public}]")
    return 0
