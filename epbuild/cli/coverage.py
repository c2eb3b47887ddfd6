"""`epbuild coverage`: share of each model that each target's EP takes."""

from __future__ import annotations

import os
from typing import Annotated

from epbuild.cli import arguments
from epbuild.cli.options import Excludes, declare_option, make_application
from epbuild.commands.run import cover
from epbuild.report.json.build import build_coverage_document
from epbuild.report.json.documents import print_json
from epbuild.report.terminal.coverage import CoverageList, print_coverage, print_coverage_markdown
from epbuild.report.terminal.progress import make_coverage_reporter
from epbuild.session.request import Request

app = make_application()


_RULES = (Excludes(("--markdown",), ("--json",), "--markdown and --json cannot be combined"),)


@app.command(rules=_RULES, exits={0: "the coverage was shown, even if models failed or do not meet `expect`"})
def coverage(
    target: arguments.Target,
    *,
    jobs: arguments.Jobs = None,
    retry: arguments.Retry = False,
    locked: arguments.Locked = False,
    remote: arguments.RemoteReading,
    settings: arguments.Settings,
    markdown: Annotated[bool, declare_option("--markdown", help="Print a Markdown table.")] = False,
    json: arguments.Json = False,
) -> int:
    """Show how much of each model in RECIPE runs on the EP of each target, and why.

    Models that are not compiled yet are compiled. A failed model does not stop the others. Nothing is emitted.
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
    with make_coverage_reporter(found) as progress:
        cover(request, progress)
    if json:
        print_json(build_coverage_document(found.rows))
    elif markdown:
        print_coverage_markdown(found.rows)
    else:
        print_coverage(found.rows)
    return 0
