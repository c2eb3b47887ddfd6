"""`epbuild coverage`: share of each model that each target's EP takes."""

from __future__ import annotations

import os
from typing import Annotated

from epbuild.cli import arguments
from epbuild.cli.options import Excludes, application, option
from epbuild.commands.run import cover
from epbuild.report.json.build import coverage_document
from epbuild.report.json.documents import print_json
from epbuild.report.terminal.coverage import CoverageList, print_coverage, print_coverage_markdown
from epbuild.report.terminal.progress import coverage_reporter
from epbuild.session.request import Request

app = application()

_EXIT_CODES = """\b
Exit codes:
  0    there is a table, whatever is in it (`run` judges)
  2    the recipe or the command line is wrong
  3    the environment is: toolchain, device, permissions, disk
  130  interrupted; what was finished is kept
"""


_RULES = (Excludes(("--markdown",), ("--json",), "--markdown and --json exclude each other"),)


@app.command(epilog=_EXIT_CODES, rules=_RULES)
def coverage(
    target: arguments.Target,
    *,
    jobs: arguments.Jobs = None,
    retry: arguments.Retry = False,
    locked: arguments.Locked = False,
    remote: arguments.RemoteReading,
    settings: arguments.Settings,
    markdown: Annotated[bool, option("--markdown", help="Print a table for a page or a comment.")] = False,
    json: arguments.Json = False,
) -> int:
    """Show which models of RECIPE each target's EP takes whole, in part or not at all, and why.

    Compiles what is not compiled yet, all of it whatever fails, and emits nothing.
    """
    selection = target.selection()
    request = Request(
        recipe=selection.recipe,
        selection=selection.steps,
        places=selection.places,
        settings=tuple(settings),
        jobs=jobs or os.cpu_count() or 1,
        retry=retry,
        locked=locked,
        remote=remote.choice,
    )
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
