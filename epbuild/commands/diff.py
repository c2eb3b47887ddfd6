"""`epbuild diff`: the comparison of the artifacts at two paths."""

from __future__ import annotations

from pathlib import Path

from epbuild.archive.members import UnsoundArchive
from epbuild.archive.opened import opened
from epbuild.core.shown import ProgressLines
from epbuild.diff.difference import Comparison, compare
from epbuild.diff.traits import Incomparable


def diff(a: Path, b: Path, lines: ProgressLines) -> Comparison:
    """Compare what is at `a` and `b`, archives too; `lines` get the progress, and what was not looked into.

    Raises NothingToVerify (EPB600) where there is nothing, Incomparable (EPB630) where something cannot be read.
    """
    try:
        with opened(a, lines) as old, opened(b, lines) as new:
            found = compare(old.place, new.place)
    except UnsoundArchive as error:  # no answer, and so neither `same` nor `different`
        raise Incomparable(*error.problems) from error
    for received in (old, new):
        for place in received.skipped():
            lines.report(f"{place.as_posix()}: not looked into; name it to compare it")
    return found
