"""Files about a build: reports, traces, summaries, and documents for CI."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from epbuild.cli.options import Needs, OptionGroup, UsageError, declare_option
from epbuild.core.errors import EpbuildError
from epbuild.core.shown import format_path

if TYPE_CHECKING:
    from epbuild.commands.reporting.values import Report
    from epbuild.report.listeners import Listener
    from epbuild.session.request import Request


def _declare_file(name: str, text: str) -> Any:
    """Declare an option that names a file to write."""
    return declare_option(name, metavar="FILE", dir_okay=False, help=text)


Sarif = Annotated[
    Path | None, _declare_file("--sarif", "Write errors and warnings with their positions to FILE, as SARIF 2.1.0.")
]
Against = Annotated[
    Path | None,
    declare_option(
        "--against",
        metavar="PATH",
        help="Compare the report with another report (.html, .json), a manifest, or a folder of outputs.",
        default="the existing report in the output file",
    ),
]
AGAINST_NEEDS_REPORT = Needs(("--against",), ("--report",), "--against requires --report")


class BuildFiles(OptionGroup, frozen=True, kw_only=True):
    """Options for files that describe a build."""

    panel: ClassVar[str] = "Files"

    summary: Annotated[
        Path | None,
        declare_option(
            "--summary",
            metavar="FILE",
            help="Append a summary of the build to FILE, as Markdown tables.",
            variable="GITHUB_STEP_SUMMARY",
        ),
    ] = None
    junit: Annotated[
        Path | None, _declare_file("--junit", "Write the outcome of each step to FILE, as JUnit XML, even if steps fail.")
    ] = None
    sarif: Sarif = None
    report: Annotated[
        Path | None,
        _declare_file(
            "--report", "Write a report to FILE: a page (.html) or JSON (.json). The file is also written if steps fail."
        ),
    ] = None
    against: Against = None
    trace: Annotated[
        Path | None,
        _declare_file("--trace", "Write a timeline to FILE, as Chrome trace events. Open the file in ui.perfetto.dev."),
    ] = None

    def check(self, recipe: Path) -> None:
        """Raise UsageError if a file is the recipe, or has an unsupported suffix."""
        refuse_recipe(recipe, self.junit, self.sarif, self.trace, self.summary)
        if self.report is not None:
            check_suffix(self.report)

    def add_documents(self, listener: Listener, recipe: Path) -> Listener:
        """Return a listener that also writes the requested JUnit and SARIF documents."""
        if self.junit is None and self.sarif is None:
            return listener
        from epbuild.report.listeners import DocumentFile

        if self.junit is not None:
            from epbuild.report.ci.junit import JUnitDocument

            listener = DocumentFile(listener, self.junit, JUnitDocument())
        if self.sarif is not None:
            from epbuild.report.ci.sarif import SarifDocument

            listener = DocumentFile(listener, self.sarif, SarifDocument(recipe))
        return listener

    @contextmanager
    def write_after(self, request: Request) -> Iterator[None]:
        """Write the report and the trace after the block, even if the block fails. After an interrupt, write only the trace."""
        began = time.time()
        try:
            yield
        except EpbuildError:
            self._write_trace(request, began)
            with suppress(EpbuildError):  # Without a plan, there is no report. The original error states the reason.
                self._write_report(request)
            raise
        except BaseException:
            self._write_trace(request, began)
            raise
        self._write_trace(request, began)
        self._write_report(request)

    def _write_report(self, request: Request) -> None:
        if self.report is not None:
            from epbuild.commands.reporting.report import report

            write_report(compare_report(report(request), self.against, self.report), self.report)

    def _write_trace(self, request: Request, since: float) -> None:
        """Write the trace of this process's build that began at or after `since`. Raises EnvironmentFailure (EPB443)."""
        if self.trace is not None:
            from epbuild.commands.reporting.build_record import BuildRecords
            from epbuild.report.json.events import build_trace_document
            from epbuild.report.listeners import write_document
            from epbuild.session.planning import get_workspace_folder

            record = BuildRecords(get_workspace_folder(request.recipe)).find_own(since)
            write_document(self.trace, json.dumps(build_trace_document(record)) + "\n")


def check_suffix(file: Path) -> None:
    """Raise UsageError if the suffix of a report's file is not supported."""
    if file.suffix.lower() not in (".html", ".htm", ".json"):
        raise UsageError(f"invalid report file '{format_path(file)}': the name must end in .html or .json")


def refuse_recipe(recipe: Path, *files: Path | None) -> None:
    """Raise UsageError if one of the output files is the recipe."""
    for file in files:
        if file is not None and file.resolve() == recipe.resolve():
            raise UsageError(f"'{format_path(file)}' is the recipe: choose another file to write")


def write_report(found: Report, file: Path) -> None:
    """Write a report in the format that the file's suffix indicates. Raises EnvironmentFailure (EPB443)."""
    from epbuild.commands.reporting.against import PAGES
    from epbuild.report.html.report_page import report_page
    from epbuild.report.json.documents import build_report_document, format_json
    from epbuild.report.listeners import write_document

    is_page = file.suffix.lower() in PAGES
    write_document(file, report_page(found) if is_page else format_json(build_report_document(found)))


def compare_report(found: Report, against: Path | None, output: Path | None) -> Report:
    """Return `found` with the changes since the report `against`, or else since the recipe's last report at `output`.

    Raises NothingToVerify and Incomparable if `against` cannot be compared.
    """
    from epbuild.commands.reporting.against import read_report, with_comparison

    if against is not None:
        return with_comparison(found, against)
    with suppress(EpbuildError):
        if output is not None and (last := read_report(output)) is not None and last.recipe.name == found.recipe.name:
            return with_comparison(found, output)
    return found
