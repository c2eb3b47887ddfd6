"""Comparisons of artifacts under a verdict.

They differ in target and context.

                                  A                       B
target
  QNNExecutionProvider: option soc_model
                                  SC8380XP                SM8750
  prefill: compiled for           SC8380XP                SM8750
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator
from itertools import zip_longest

from epbuild.core.differences import shown
from epbuild.core.errors import printable
from epbuild.diff.difference import Comparison, Difference
from epbuild.report.terminal.screen import BOLD, WIDTH, has_colors, paint, print_lines, wrap

_GAP = 2
_VALUE = 22
_WHAT = WIDTH - 2 * (_VALUE + _GAP)
NOT_COMPARED = "the options, the toolchain and the source models"
"""Facts that are not compared without manifests."""


def print_comparison(found: Comparison) -> None:
    """Print the verdict, every fact that differs by category, what is equal, and what was not compared."""
    color = has_colors(sys.stdout)
    lines = [paint(found.verdict, BOLD, color)]
    if found.differences:
        lines += ["", f"{'':{_WHAT + _GAP}}{'A':{_VALUE + _GAP}}B"]
    for sense in found.senses:
        lines.append(paint(sense, BOLD, color))
        lines += [line for item in found.differences if item.sense == sense for line in _row(item)]
    notes = []
    if found.differences and found.same:
        notes.append(f"The same: {', '.join(found.same)}.")
    if found.without_manifest:
        has_none = " and ".join(found.without_manifest) + (
            " has no manifest" if len(found.without_manifest) == 1 else " have no manifests"
        )
        notes.append(f"Not compared, as {has_none}: {NOT_COMPARED}.")
    if notes:
        lines += ["", *(line for note in notes for line in wrap(note))]
    print_lines(lines)


def _row(item: Difference) -> Iterator[str]:
    """Return the fact and its two values in three columns. A long fact gets lines of its own."""
    what = wrap(item.what, "  ", "    ")
    if len(what) > 1 or len(what[0]) > _WHAT:
        yield from what
        what = []
    values = [_cell(None if value is None and item.kind != "changed" else shown(value)) for value in (item.old, item.new)]
    for cells in zip_longest(what, *values, fillvalue=""):
        yield f"{cells[0]:{_WHAT + _GAP}}{cells[1]:{_VALUE + _GAP}}{cells[2]}".rstrip()


def _cell(text: str | None) -> list[str]:
    if text is None:
        return ["-"]
    return textwrap.wrap(printable(text), _VALUE) or ["(empty)"]
