"""`epbuild diff`: what differs between two artifacts, and in which sense."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from epbuild.archive.opened import opened
from epbuild.archive.refusal import UnsoundArchive
from epbuild.cli import arguments
from epbuild.cli.usage import UsageError
from epbuild.diff.difference import Comparison, compare
from epbuild.diff.traits import Incomparable
from epbuild.report.difference import comparison_document, print_comparison
from epbuild.report.documents import print_json
from epbuild.report.markdown import print_markdown

app = arguments.application()


@app.command()
def diff(
    a: Annotated[Path, typer.Argument(metavar="A", help="The former artifact.", show_default=False)],
    b: Annotated[Path, typer.Argument(metavar="B", help="The later one.", show_default=False)],
    markdown: Annotated[
        bool, arguments.option("--markdown", help="Print GitHub-flavoured Markdown, as a comment on a pull request.")
    ] = False,
    json: arguments.Json = False,
) -> int:
    """Say what differs between the artifacts A and B, and in which sense: names, target, toolchain, settings, weights or graph.

    Each is a folder, an archive (.zip, .tar.zst), an OCI image layout, a manifest, or one EPContext model. Exit code 1: they differ, in
    more than their recipe accepts; 2: one of them cannot be read.
    """
    if markdown and json:
        raise UsageError("--markdown and --json exclude each other: there is one standard output")
    found = _compared(a, b)
    if json:
        print_json(comparison_document(str(a), str(b), found))
    elif markdown:
        print_markdown(str(a), str(b), found)
    else:
        print_comparison(found)
    return 1 if found.differences and not found.accepted else 0


def _compared(a: Path, b: Path) -> Comparison:
    try:
        with opened(a, arguments.tell) as old, opened(b, arguments.tell) as new:
            found = compare(old.place, new.place)
    except UnsoundArchive as error:  # no answer, and so neither `same` nor `different`
        raise Incomparable(*error.problems) from error
    for received in (old, new):
        for place in received.skipped():
            arguments.tell(f"{place.as_posix()}: not looked into; name it to compare it")
    return found
