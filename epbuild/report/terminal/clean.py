"""Outputs that `clean` removed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from epbuild.commands.clean import Forgotten
from epbuild.core.shown import shown_path
from epbuild.core.units import counted
from epbuild.publish.removal import Cleaned
from epbuild.report.formatting import format_size, shorten_list
from epbuild.report.terminal.cache import MAX_NAMED
from epbuild.report.terminal.screen import print_line


def print_cleaned(found: Cleaned, *, dry_run: bool) -> None:
    """Print the removed and the kept files of an output."""
    folder = shown_path(found.directory)
    removed = "would remove" if dry_run else "removed"
    if found.removed:
        print_line(f"{removed}  {shown_path(found.place)}  {counted(len(found.removed), 'file')}, {format_size(found.size)}")
    words = {
        "not made by epbuild": "epbuild did not make it",
        "changed since": "it was changed since; --force removes it",
        "of another recipe": f"it is an output of {found.owner}, too; `epbuild clean {found.owner}` removes it",
    }
    kept = [f"{folder}/{name}".rstrip("/") + f": {words[why]}" for name, why in found.kept.items()]
    for line in shorten_list(kept, MAX_NAMED, "and {} more there"):
        print_line(f"{'kept':<{len(removed)}}  {line}")


def print_clean_sum(found: Sequence[Cleaned], forgotten: Forgotten | None, recipe: Path, *, dry_run: bool) -> None:
    """Print the sum of a `clean`, and how to restore the outputs."""
    files, size = sum(len(item.removed) for item in found), sum(item.size for item in found)
    if forgotten is not None and forgotten.size:
        print_line(
            f"{'would remove' if dry_run else 'removed'}  {shown_path(forgotten.directory)}  {format_size(forgotten.size)}"
        )
    if not files:
        print_line("There is no output to remove.")
    elif dry_run:
        print_line(f"Would remove {counted(files, 'file')}, {format_size(size)}.")
    else:
        print_line(f"Removed {counted(files, 'file')}, {format_size(size)}. `epbuild run {recipe}` restores what the store has.")
