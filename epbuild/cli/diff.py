"""`epbuild diff`: what differs between two artifacts, and in which sense."""

from __future__ import annotations

from pathlib import Path

import click

from epbuild.cli import arguments
from epbuild.report import comparison_document, print_comparison, print_json, print_markdown
from epbuild.unpack import UnsoundArchive, opened
from epbuild.verify import Comparison, Incomparable, compare


@click.command()
@click.argument("a", type=click.Path(path_type=Path))
@click.argument("b", type=click.Path(path_type=Path))
@click.option("--markdown", is_flag=True, help="Print GitHub-flavoured Markdown, as a comment on a pull request.")
@arguments.json
def diff(a: Path, b: Path, markdown: bool, json: bool) -> int:
    """Say what differs between the artifacts A and B, and in which sense: names, target, toolchain, settings, weights or graph.

    Each is a folder, an archive (.zip, .tar.zst), an OCI image layout, a manifest, or one EPContext model. Exit code 1: they differ; 2:
    one of them cannot be read.
    """
    if markdown and json:
        raise click.UsageError("--markdown and --json exclude each other: there is one standard output")
    found = _compared(a, b)
    if json:
        print_json(comparison_document(str(a), str(b), found))
    elif markdown:
        print_markdown(str(a), str(b), found)
    else:
        print_comparison(found)
    return 1 if found.differences else 0


def _compared(a: Path, b: Path) -> Comparison:
    try:
        with opened(a, arguments.tell) as old, opened(b, arguments.tell) as new:
            found = compare(old.place, new.place)
    except UnsoundArchive as error:  # no answer, and so neither `same` nor `different`
        raise Incomparable(*error.problems) from error
    for lent in (old, new):
        for place in lent.passed_over():
            arguments.tell(f"{place.as_posix()}: not looked into; name it to compare it")
    return found
