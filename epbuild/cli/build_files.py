"""Options for files about a build, which few command lines have."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from epbuild.cli import arguments
from epbuild.cli.usage import UsageError

if TYPE_CHECKING:
    from epbuild.commands.request import Request
    from epbuild.report.listener import Listener


def _file(name: str, text: str) -> Any:
    """An option that names a file to write."""
    return arguments.option(name, metavar="FILE", dir_okay=False, help=text)


JUnit = Annotated[Path | None, _file("--junit", "Write what came of each step to FILE, as JUnit XML, also when steps fail.")]
Sarif = Annotated[Path | None, _file("--sarif", "Write what is wrong, with its places, to FILE, as SARIF 2.1.0.")]
ReportFile = Annotated[
    Path | None, _file("--report", "Write what came of it to FILE, also when it fails: a page (.html), or JSON (.json).")
]
TraceFile = Annotated[
    Path | None, _file("--trace", "Write what it did when to FILE, as Chrome trace events: open it in ui.perfetto.dev.")
]
Against = Annotated[
    Path | None,
    arguments.option(
        "--against",
        metavar="PATH",
        help="What to compare with: another report (.html, .json), a manifest, or a folder of outputs.",
    ),
]


def check_suffix(file: Path) -> None:
    """Raises UsageError unless a report can be written to a file of that name."""
    if file.suffix.lower() not in (".html", ".htm", ".json"):
        raise UsageError(f"a report is a page or JSON: '{file}' ends with neither .html nor .json")


def spare_recipe(recipe: Path, *files: Path | None) -> None:
    """Raises UsageError where one of the files to be written is the recipe."""
    for file in files:
        if file is not None and file.resolve() == recipe.resolve():
            raise UsageError(f"'{file}' is the recipe: name another file to write")


def with_documents(listener: Listener, recipe: Path, junit: Path | None, sarif: Path | None) -> Listener:
    """A listener that also writes the documents that are asked for."""
    if junit is None and sarif is None:
        return listener
    from epbuild.report.build_document import DocumentFile

    if junit is not None:
        from epbuild.report.ci.junit import JUnitDocument

        listener = DocumentFile(listener, junit, JUnitDocument())
    if sarif is not None:
        from epbuild.report.ci.sarif import SarifDocument

        listener = DocumentFile(listener, sarif, SarifDocument(recipe))
    return listener


def written_after(
    request: Request, report: Path | None, against: Path | None, trace: Path | None
) -> AbstractContextManager[None]:
    """Write a build's report and its trace after a `with` block, whether it failed or not; of one that was stopped, the trace alone.

    Raises UsageError where they cannot be what they are asked to be.
    """
    if report is not None:
        check_suffix(report)
    elif against is not None:
        raise UsageError("--against is about a report: name its file (--report)")
    if report is None and trace is None:
        return nullcontext()
    from epbuild.cli.report_files import BuildFiles, written

    return written(request, BuildFiles(report, trace, against))
