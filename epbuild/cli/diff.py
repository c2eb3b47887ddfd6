"""`epbuild diff`: differences between two artifacts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from epbuild.cli import arguments
from epbuild.cli.options import Excludes, declare_option, make_application
from epbuild.commands.artifacts import diff as compare
from epbuild.report.json.checks import build_comparison_document
from epbuild.report.json.documents import print_json
from epbuild.report.markdown import print_markdown
from epbuild.report.terminal.artifacts import print_comparison

app = make_application()


_RULES = (
    Excludes(("--markdown",), ("--json",), "--markdown and --json cannot be combined"),
)  # fmt: skip


class _LogLines:
    """Receiver that prints progress messages to standard error. Standard output contains only the result."""

    def report(self, text: str, /) -> None:
        typer.echo(text, err=True)


@app.command(
    rules=_RULES,
    exits={
        0: "the artifacts are equal, or the recipe accepts the differences",
        1: "the artifacts differ",
        2: "the command line is invalid, or an artifact cannot be read",
    },
)
def diff(
    a: Annotated[Path, typer.Argument(metavar="A", help="The old artifact.", show_default=False)],
    b: Annotated[Path, typer.Argument(metavar="B", help="The new artifact.", show_default=False)],
    markdown: Annotated[
        bool, declare_option("--markdown", help="Print GitHub-flavored Markdown, for a comment on a pull request.")
    ] = False,
    json: arguments.Json = False,
) -> int:
    """Compare the artifacts A and B: names, targets, toolchains, settings, weights, graphs and sizes.

    An artifact is a folder, an archive (.zip, .tar.zst), an OCI image layout, a manifest, or an EPContext model.
    """
    found = compare(a, b, _LogLines())
    if json:
        print_json(build_comparison_document(str(a), str(b), found))
    elif markdown:
        print_markdown(str(a), str(b), found)
    else:
        print_comparison(found)
    return 1 if found.differences and not found.accepted else 0
