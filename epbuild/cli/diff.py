"""`epbuild diff`: what differs between two artifacts, and in which sense."""

from __future__ import annotations

from pathlib import Path

import click

from epbuild.cli import arguments
from epbuild.report import comparison_document, print_comparison, print_json, print_markdown
from epbuild.verify import compare


@click.command()
@click.argument("a", type=click.Path(path_type=Path))
@click.argument("b", type=click.Path(path_type=Path))
@click.option("--markdown", is_flag=True, help="Print GitHub-flavoured Markdown, as a comment on a pull request.")
@arguments.json
def diff(a: Path, b: Path, markdown: bool, json: bool) -> int:
    """Say what differs between the artifacts A and B, and in which sense: names, target, toolchain, settings, weights or graph.

    Each is a folder, a manifest, or one EPContext model. Exit code 1: they differ; 2: one of them cannot be read.
    """
    if markdown and json:
        raise click.UsageError("--markdown and --json exclude each other: there is one standard output")
    found = compare(a, b)
    if json:
        print_json(comparison_document(str(a), str(b), found))
    elif markdown:
        print_markdown(str(a), str(b), found)
    else:
        print_comparison(found)
    return 1 if found.differences else 0
