"""`epbuild cache`: contents and integrity of the store and the remote cache."""

from __future__ import annotations

from typing import Annotated

import typer

from epbuild.cache.location import find_cache_directory, find_toolchain_directory
from epbuild.cli import arguments
from epbuild.cli.options import COMMAND_LINE, Needs, declare_option, make_application
from epbuild.commands.cache import check_cache, count_cache
from epbuild.commands.remote_cache import check_results, push_results
from epbuild.remote.keys import SigningKey
from epbuild.remote.settings import SIGNING_KEY
from epbuild.report.json.documents import print_json
from epbuild.report.json.store import (
    KeyDocument,
    build_cache_check_document,
    build_cache_stats_document,
    build_push_document,
    build_remote_check_document,
)
from epbuild.report.terminal.problems import print_problems
from epbuild.report.terminal.store import print_cache_check, print_cache_stats, print_push, print_remote_check, show_byte_progress
from epbuild.session.request import RemoteChoice, Request

app = make_application(invoke_without_command=True, subcommand_metavar="[COMMAND] [ARGS]...")


@app.callback(exits={0: "the store was shown", 2: COMMAND_LINE, 3: "the store cannot be read"})
def cache(context: typer.Context, json: arguments.Json = False) -> int:
    """Show the number and size of the entries in the store: blobs, action records, toolchains and others.

    Blobs are files of results, named by their SHA-256. An action record lists the files that an action produced, and
    describes them.
    """
    if context.invoked_subcommand is not None:
        return 0
    found = count_cache(find_cache_directory(), find_toolchain_directory())
    if json:
        print_json(build_cache_stats_document(found))
    else:
        print_cache_stats(found)
    return 0


_VERIFY_RULES = (
    Needs(
        ("names", "--recipe", "--set", "--insecure"),
        ("--remote",),
        "a recipe, --set and --insecure require --remote: without --remote, the whole store is checked",
    ),
)


@app.command(
    rules=_VERIFY_RULES,
    exits={
        0: "all checked entries are valid",
        1: "an entry is damaged, or a result in the remote cache is unusable",
        3: "the store or the remote cache cannot be read",
    },
    short_help="Check the store, or the results of a recipe in its remote cache.",
)
def verify(
    names: arguments.Names,
    *,
    remote: Annotated[
        bool, declare_option("--remote", help="Check the results of RECIPE in its remote cache instead of the store.")
    ] = False,
    recipe: arguments.RecipeOption = None,
    insecure: arguments.InsecureCache = False,
    settings: arguments.Settings,
    json: arguments.Json = False,
) -> int:
    """Check all blobs and records of the store, and quarantine damaged entries.

    Builds recreate the entries that they need. With --remote, check the results of RECIPE in its remote cache without changing
    it, and list unusable results with the reasons.
    """
    if remote:
        target = arguments.Target(names=names, recipe=recipe)
        return _verify_remote(target.request(settings, remote=RemoteChoice(insecure=insecure), emits=False), json=json)
    place = find_cache_directory()
    with show_byte_progress("checking", shown=not json) as progress:
        found = check_cache(place, progress)
    if json:
        print_json(build_cache_check_document(place, found))
    else:
        print_cache_check(found)
    return 1 if found.damaged else 0


def _verify_remote(request: Request, *, json: bool) -> int:
    with show_byte_progress("checking", shown=not json) as progress:
        found = check_results(request, progress)
    if json:
        print_json(build_remote_check_document(found))
    else:
        print_problems(found.warnings, "warning")
        print_remote_check(found)
    outcomes = {result.outcome for result in found.results}
    return 1 if "unusable" in outcomes else 3 if "unknown" in outcomes else 0


@app.command(
    short_help="Upload results from the store to a remote cache.",
    exits={
        0: "the remote cache has all results that the store has",
        3: "a result could not be uploaded, or the store cannot be read",
    },
)
def push(
    target: arguments.Target,
    *,
    replace: Annotated[
        bool, declare_option("--replace", help="Upload all results, including results that the remote cache already has.")
    ] = False,
    insecure: arguments.InsecureCache = False,
    settings: arguments.Settings,
    json: arguments.Json = False,
) -> int:
    """Upload the results of RECIPE that are in the store, but not in its remote cache.

    EPBUILD_SIGNING_KEY must contain the secret key that signs results. Nothing is compiled: missing results are only counted.
    """
    request = target.request(settings, remote=RemoteChoice("write", insecure=insecure), emits=False)
    with show_byte_progress("uploading", shown=not json) as progress:
        done = push_results(request, progress, replace=replace)
    if json:
        print_json(build_push_document(done))
    else:
        print_problems(done.warnings, "warning")
        print_push(done)
    return 3 if any(result.outcome == "failed" for result in done.results) else 0


@app.command(short_help="Generate a key pair for a remote cache.", exits={0: "a key pair was printed", 2: COMMAND_LINE})
def key(json: arguments.Json = False) -> int:
    """Generate a key pair. The secret key signs results for a remote cache; a recipe trusts the public key.

    The keys are printed, but not stored. Store the secret key in CI as EPBUILD_SIGNING_KEY, and write the public key to `cache.trust`
    in the recipe.
    """
    made = SigningKey.generate()
    if json:
        print_json(KeyDocument(signing_key=made.text, trust=made.public))
    else:
        typer.echo(f"{SIGNING_KEY}={made.text}\ntrust: [{made.public}]")
    return 0
