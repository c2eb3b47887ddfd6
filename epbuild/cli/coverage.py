"""`epbuild coverage`: how far the EPs of each target take each model."""

from __future__ import annotations

import os
from typing import Annotated

from epbuild.cli import arguments, remote_options
from epbuild.cli.usage import UsageError
from epbuild.commands.request import Request
from epbuild.commands.run import cover
from epbuild.report.json.documents import print_json
from epbuild.report.reporter import coverage_reporter
from epbuild.report.terminal.coverage import CoverageList, coverage_document, print_coverage, print_coverage_markdown

app = arguments.application()

_EXIT_CODES = """\b
Exit codes:
  0    there is a table, whatever is in it (`run` judges)
  2    the recipe or the command line is wrong
  3    the environment is: toolchain, device, permissions, disk
  130  interrupted; what was finished is kept
"""


@app.command(epilog=_EXIT_CODES)
def coverage(
    names: arguments.Names,
    *,
    recipe: arguments.RecipeOption = None,
    jobs: arguments.Jobs = None,
    retry: arguments.Retry = False,
    locked: arguments.Locked = False,
    remote_cache: remote_options.RemoteCacheReading = "read",
    offline: remote_options.Offline = False,
    insecure: remote_options.Insecure = False,
    settings: arguments.Settings,
    markdown: Annotated[bool, arguments.option("--markdown", help="Print a table for a page or a comment.")] = False,
    json: arguments.Json = False,
) -> int:
    """Show which models of RECIPE each target's EP takes whole, in part or not at all, and why.

    Compiles what is not compiled yet, all of it whatever fails, and publishes nothing.
    """
    if markdown and json:
        raise UsageError("--markdown and --json exclude each other")
    file, steps, places = arguments.named(names, recipe)
    count = jobs or os.cpu_count() or 1
    remote = remote_options.remote_choice(remote_cache, offline=offline, insecure=insecure)
    request = Request(file, steps, count, settings=tuple(settings), locked=locked, retry=retry, places=places, remote=remote)
    found = CoverageList()
    with coverage_reporter(found) as progress:
        cover(request, progress)
    if json:
        print_json(coverage_document(found.rows))
    elif markdown:
        print_coverage_markdown(found.rows)
    else:
        print_coverage(found.rows)
    return 0
