"""`epbuild cache`: what is in the store, and whether all of it is sound."""

from __future__ import annotations

from contextlib import nullcontext

import typer

from epbuild.cache.location import cache_directory, toolchain_directory
from epbuild.cli import arguments
from epbuild.commands.gc import stock
from epbuild.commands.gc import verify as check
from epbuild.report.documents import print_json
from epbuild.report.store import checking, print_stock, print_verification, stock_document, verification_document

app = arguments.application(invoke_without_command=True, subcommand_metavar="[COMMAND] [ARGS]...")


@app.callback()
def cache(context: typer.Context, json: arguments.Json = False) -> int:
    """Show what is in the store: blobs (the files of all results, by content), records (what each action came to), and the rest."""
    if context.invoked_subcommand is not None:
        return 0
    found = stock(cache_directory(), toolchain_directory())
    if json:
        print_json(stock_document(found))
    else:
        print_stock(found)
    return 0


@app.command(short_help="Check every blob and every record.")
def verify(json: arguments.Json = False) -> int:
    """Read every blob and every record, and set aside what is damaged: the next build that needs it makes it again.

    Exit code 1: something was damaged.
    """
    place = cache_directory()
    with nullcontext(lambda done, total: None) if json else checking() as told:
        found = check(place, told)
    if json:
        print_json(verification_document(place, found))
    else:
        print_verification(found)
    return 1 if found.damaged else 0
