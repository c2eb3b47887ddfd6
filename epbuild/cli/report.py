"""`epbuild report`: what builds came to, as a page, as JSON, or in short."""

from __future__ import annotations

import json as json_format
from pathlib import Path
from typing import Annotated

from epbuild.cli import arguments
from epbuild.cli.usage import UsageError
from epbuild.commands.report import report as report_of
from epbuild.commands.report_values import Report
from epbuild.commands.request import Request
from epbuild.core.atomic import write_file
from epbuild.report.documents import print_json
from epbuild.report.report_page import report_page
from epbuild.report.report_text import print_report, report_document

app = arguments.application()

_EXIT_CODES = """\b
Exit codes:
  0    there is a report, whatever is in it (`run` judges)
  2    the recipe or the command line is wrong
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
    settings: arguments.Settings,
    json: arguments.Json = False,
) -> int:
    """Show what builds of RECIPE came to: coverage, sizes, times, accuracy, and what the last build did.

    Builds nothing. What is shown is what is known here: in the workspace, in the store, and in the places of the outputs.
    """
    if output is not None and json:
        raise UsageError("--output and --json exclude each other")
    file, steps, places = arguments.named(names, recipe)
    if output is not None:
        check_suffix(output)
    found = report_of(Request(file, steps, settings=tuple(settings), places=places))
    if output is not None:
        write_report(found, output)
    elif json:
        print_json(report_document(found))
    else:
        print_report(found)
    return 0


def check_suffix(file: Path) -> None:
    """Raises UsageError unless a report can be written to a file of that name."""
    if file.suffix.lower() not in (".html", ".htm", ".json"):
        raise UsageError(f"a report is a page or JSON: '{file}' ends with neither .html nor .json")


def write_report(found: Report, file: Path) -> None:
    """Write a report in the form that the name of the file has. Raises OSError."""
    if file.suffix.lower() == ".json":
        write_file(file, json_format.dumps(report_document(found), indent=2) + "\n")
    else:
        write_file(file, report_page(found))
