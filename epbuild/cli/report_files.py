"""Files with a report, and those that a build leaves about itself."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from epbuild.commands.planning import workspace_of
from epbuild.commands.reporting.against import PAGES, read_report, with_comparison
from epbuild.commands.reporting.build_record import BuildRecords
from epbuild.commands.reporting.report import report as report_of
from epbuild.commands.reporting.values import Report
from epbuild.commands.request import Request
from epbuild.core.errors import EpbuildError
from epbuild.core.values import dataclass
from epbuild.report.build_document import write_document
from epbuild.report.html.report_page import report_page
from epbuild.report.json.documents import json_text
from epbuild.report.json.report_text import report_document
from epbuild.report.json.trace import trace_document


def write_report(found: Report, file: Path) -> None:
    """Write a report in the form that the name of the file has. Raises EnvironmentFailure (EPB443)."""
    is_page = file.suffix.lower() in PAGES
    write_document(file, report_page(found) if is_page else json_text(report_document(found)))


def compared(found: Report, against: Path | None, output: Path | None) -> Report:
    """A report with what changed since what it is compared `against`: without that, since the last report of the recipe in its place.

    Raises NothingToVerify and Incomparable for what is named and cannot be compared.
    """
    if against is not None:
        return with_comparison(found, against)
    with suppress(EpbuildError):
        if output is not None and (last := read_report(output)) is not None and last.recipe.name == found.recipe.name:
            return with_comparison(found, output)
    return found


@dataclass(frozen=True)
class BuildFiles:
    """The files that a build leaves about itself."""

    report: Path | None = None
    trace: Path | None = None
    against: Path | None = None

    def write_report(self, request: Request) -> None:
        """Raises EpbuildError."""
        if self.report is not None:
            write_report(compared(report_of(request), self.against, self.report), self.report)

    def write_trace(self, request: Request, since: float) -> None:
        """Write the trace of the build of this process that began after that moment. Raises EnvironmentFailure (EPB443)."""
        if self.trace is not None:
            record = BuildRecords(workspace_of(request.recipe)).of_this_process(since)
            write_document(self.trace, json.dumps(trace_document(record)) + "\n")


@contextmanager
def written(request: Request, files: BuildFiles) -> Iterator[None]:
    """Write a build's report and its trace after a `with` block, whether it failed or not; of one that was stopped, the trace alone."""
    began = time.time()
    try:
        yield
    except EpbuildError:
        files.write_trace(request, began)
        with suppress(EpbuildError):  # where there is no plan there is no report, and why is what is raised anyway
            files.write_report(request)
        raise
    except BaseException:
        files.write_trace(request, began)
        raise
    files.write_trace(request, began)
    files.write_report(request)
