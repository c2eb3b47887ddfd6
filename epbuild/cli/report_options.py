"""Options for files that CI systems read, and the listeners that write them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from epbuild.cli import arguments

if TYPE_CHECKING:
    from epbuild.report.listener import Listener

JUnit = Annotated[
    Path | None,
    arguments.option(
        "--junit",
        metavar="FILE",
        dir_okay=False,
        help="Write what came of each step to FILE, as JUnit XML, also when steps fail.",
    ),
]
Sarif = Annotated[
    Path | None,
    arguments.option(
        "--sarif", metavar="FILE", dir_okay=False, help="Write what is wrong, with its places, to FILE, as SARIF 2.1.0."
    ),
]


def with_report_files(listener: Listener, recipe: Path, junit: Path | None, sarif: Path | None) -> Listener:
    """A listener that also writes the files that are asked for."""
    if junit is not None:
        from epbuild.report.junit import JUnitDocument
        from epbuild.report.report_file import ReportFile

        listener = ReportFile(listener, junit, JUnitDocument())
    if sarif is not None:
        from epbuild.report.report_file import ReportFile
        from epbuild.report.sarif import SarifDocument

        listener = ReportFile(listener, sarif, SarifDocument(recipe))
    return listener
