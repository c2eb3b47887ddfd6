"""`epbuild report`: what builds came to, as a page, as JSON, or in short."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from epbuild.cli import arguments, build_files, remote_options
from epbuild.cli.report_files import compared, write_report
from epbuild.cli.usage import UsageError
from epbuild.commands.reporting.report import report as report_of
from epbuild.commands.request import Request
from epbuild.report.json.documents import print_json
from epbuild.report.json.report_text import report_document
from epbuild.report.terminal.report import print_report
from epbuild.report.terminal.waiting import WaitingRow

app = arguments.application()

_EXIT_CODES = """\b
Exit codes:
  0    there is a report, whatever is in it (`run` judges)
  2    the recipe or the command line is wrong, or there is nothing to
       compare with
  3    the environment is: permissions, disk
"""


@app.command(epilog=_EXIT_CODES)
def report(
    names: arguments.Names,
    *,
    recipe: arguments.RecipeOption = None,
    output: Annotated[
        Path | None,
        arguments.option(
            "--output",
            "-o",
            metavar="FILE",
            dir_okay=False,
            help="Write it to FILE: one self-contained page (.html), or JSON (.json).",
        ),
    ] = None,
    against: build_files.Against = None,
    remote_cache: remote_options.RemoteCacheReading = "read",
    offline: remote_options.Offline = False,
    insecure: remote_options.Insecure = False,
    settings: arguments.Settings,
    json: arguments.Json = False,
) -> int:
    """Show what builds of RECIPE came to: coverage, sizes, times, accuracy, and what the last build did.

    Builds nothing. What is shown is what is known: in the workspace, the store, the places of the outputs, and a remote cache.
    """
    if output is not None and json:
        raise UsageError("--output and --json exclude each other")
    if output is not None:
        build_files.check_suffix(output)
    file, steps, places = arguments.named(names, recipe)
    remote = remote_options.remote_choice(remote_cache, offline=offline, insecure=insecure)
    request = Request(file, steps, settings=tuple(settings), remote=remote, places=places)
    with WaitingRow() as waiting:
        found = compared(report_of(request, waiting), against, output)
    if output is not None:
        write_report(found, output)
    elif json:
        print_json(report_document(found))
    else:
        print_report(found)
    return 0
