"""`epbuild diff`: kinds of difference between two artifacts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from epbuild.cli import arguments
from epbuild.cli.options import Excludes, application, option
from epbuild.commands.artifacts import diff as compare
from epbuild.report.json.checks import comparison_document
from epbuild.report.json.documents import print_json
from epbuild.report.markdown import print_markdown
from epbuild.report.terminal.artifacts import print_comparison

app = application()


_RULES = (
    Excludes(("--markdown",), ("--json",), "--markdown and --json exclude each other: there is one standard output"),
)  # fmt: skip


class _LogLines:
    """Progress lines on standard error. Standard output is for the answer alone."""

    def report(self, text: str, /) -> None:
        typer.echo(text, err=True)


@app.command(rules=_RULES)
def diff(
    a: Annotated[Path, typer.Argument(metavar="A", help="The earlier artifact.", show_default=False)],
    b: Annotated[Path, typer.Argument(metavar="B", help="The later one.", show_default=False)],
    markdown: Annotated[
        bool, option("--markdown", help="Print GitHub-flavoured Markdown, as a comment on a pull request.")
    ] = False,
    json: arguments.Json = False,
) -> int:
    """Show what differs between the artifacts A and B, and in which sense: names, target, toolchain, settings, weights or graph.

    Each is a folder, an archive (.zip, .tar.zst), an OCI image layout, a manifest, or one EPContext model. Exit code 1: they differ, in
    more than their recipe accepts; 2: one of them cannot be read.
    """
    found = compare(a, b, _LogLines())
    if json:
        print_json(comparison_document(str(a), str(b), found))
    elif markdown:
        print_markdown(str(a), str(b), found)
    else:
        print_comparison(found)
    return 1 if found.differences and not found.accepted else 0
