"""`epbuild cache`: contents and integrity of the store and the remote cache."""

from __future__ import annotations

from typing import Annotated

import typer

from epbuild.cache.location import cache_directory, toolchain_directory
from epbuild.cli import arguments
from epbuild.cli.options import Needs, application, option
from epbuild.commands.cache import cache_stats, check_cache
from epbuild.remote.keys import SigningKey
from epbuild.remote.settings import SIGNING_KEY
from epbuild.report.json.documents import print_json
from epbuild.report.json.store import cache_check_document, cache_stats_document
from epbuild.report.terminal.problems import print_problems
from epbuild.report.terminal.store import byte_progress, print_cache_check, print_cache_stats
from epbuild.session.request import RemoteChoice, Request

app = application(invoke_without_command=True, subcommand_metavar="[COMMAND] [ARGS]...")


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


_VERIFY_RULES = (
    Needs(
        ("names", "--recipe", "--set", "--insecure"),
        ("--remote",),
        "a recipe, --set and --insecure are for --remote; without it, the whole store is checked",
    ),
)


@app.command(rules=_VERIFY_RULES, short_help="Check every blob and every record, or those of a recipe in its remote cache.")
def verify(
    names: arguments.Names,
    *,
    remote: Annotated[
        bool, option("--remote", help="Read what the remote cache has of the results of RECIPE, in place of the store.")
    ] = False,
    recipe: arguments.RecipeOption = None,
    insecure: arguments.InsecureCache = False,
    settings: arguments.Settings,
    json: arguments.Json = False,
) -> int:
    """Read every blob and every record, and set aside what is damaged: the next build that needs it makes it again.

    With --remote, read all that the remote cache has of the results of RECIPE, and name what cannot be used, and why; nothing is changed.
    Exit code 1: something was damaged, or cannot be used; 3: the remote cache could not be read.
    """
    if remote:
        return _verify_remote(
            _request(arguments.Target(names=names, recipe=recipe), settings, RemoteChoice(insecure=insecure)), json=json
        )
    place = cache_directory()
    with byte_progress("checking", shown=not json) as progress:
        found = check_cache(place, progress)
    if json:
        print_json(cache_check_document(place, found))
    else:
        print_cache_check(found)
    return 1 if found.damaged else 0


def _verify_remote(request: Request, *, json: bool) -> int:
    from epbuild.commands.remote_cache import check_results
    from epbuild.report.json.store import remote_check_document
    from epbuild.report.terminal.store import print_remote_check

    with byte_progress("checking", shown=not json) as progress:
        found = check_results(request, progress)
    if json:
        print_json(remote_check_document(found))
    else:
        print_problems(found.warnings, "warning")
        print_remote_check(found)
    outcomes = {result.outcome for result in found.results}
    return 1 if "unusable" in outcomes else 3 if "unknown" in outcomes else 0


@app.command(short_help="Write results of the store to a remote cache.")
def push(
    target: arguments.Target,
    *,
    replace: Annotated[bool, option("--replace", help="Write all of it again, in place of what the remote cache has.")] = False,
    insecure: arguments.InsecureCache = False,
    settings: arguments.Settings,
    json: arguments.Json = False,
) -> int:
    """Write the results of RECIPE that the store has, and its remote cache has not, to the remote cache.

    EPBUILD_SIGNING_KEY has to hold the key that signs them. Nothing is compiled: what the store has not is only counted. Exit code 3:
    something could not be written.
    """
    from epbuild.commands.remote_cache import push_results
    from epbuild.report.json.store import push_document
    from epbuild.report.terminal.store import print_push

    request = _request(target, settings, RemoteChoice("write", insecure=insecure))
    with byte_progress("writing", shown=not json) as progress:
        done = push_results(request, progress, replace=replace)
    if json:
        print_json(push_document(done))
    else:
        print_problems(done.warnings, "warning")
        print_push(done)
    return 3 if any(result.outcome == "failed" for result in done.results) else 0


def _request(target: arguments.Target, settings: list[str], remote: RemoteChoice) -> Request:
    """Return a request for the results of a recipe or of some of its steps."""
    recipe, steps, places = target.selection()
    return Request(recipe, steps, settings=tuple(settings), remote=remote, places=places, emits=False)


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
