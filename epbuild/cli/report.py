"""`epbuild report`: results of builds, as a page, as JSON, or as a summary."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from epbuild.cli import arguments
from epbuild.cli.build_files import Against, check_suffix, compare_report, write_report
from epbuild.cli.options import Excludes, declare_option, make_application
from epbuild.commands.reporting.report import report as report_of
from epbuild.report.json.documents import build_report_document, print_json
from epbuild.report.listeners import WaitingRow
from epbuild.report.terminal.report import format_report
from epbuild.report.terminal.screen import print_lines

app = make_application()
EXITS = {
    0: "the report was written, whether or not builds failed",
    2: "the recipe or the command line is invalid, or there is nothing to compare at --against",
    3: "a file cannot be read or written",
}


_RULES = (Excludes(("--output",), ("--json",), "--output and --json cannot be combined"),)


@app.command(rules=_RULES, exits=EXITS)
def report(
    target: arguments.Target,
    *,
    output: Annotated[
        Path | None,
        declare_option(
            "--output",
            "-o",
            metavar="FILE",
            dir_okay=False,
            help="File to write: one self-contained page (.html), or JSON (.json).",
            default="a summary on standard output",
        ),
    ] = None,
    against: Against = None,
    remote: arguments.RemoteReading,
    settings: arguments.Settings,
    json: arguments.Json = False,
) -> int:
    """Report the coverage, sizes, times and accuracy of RECIPE's builds, and the steps of the last build.

    Nothing is built. The data is read from the workspace, the store, the emitted outputs, and the remote cache.
    """
    if output is not None:
        check_suffix(output)
    request = target.request(settings, remote=remote.choice)
    with WaitingRow() as waiting:
        found = compare_report(report_of(request, waiting), against, output)
    if output is not None:
        write_report(found, output)
    elif json:
        print_json(build_report_document(found))
    else:
        print_lines(format_report(found))
    return 0
