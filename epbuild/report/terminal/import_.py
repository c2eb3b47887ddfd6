"""Imported recipes, and settings that were not carried over."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from epbuild.core.defaults import DEFAULT_RECIPE
from epbuild.core.errors import printable
from epbuild.core.units import counted
from epbuild.report.terminal.problems import print_problems
from epbuild.report.terminal.screen import print_line, wrapped

if TYPE_CHECKING:
    from epbuild.commands.importing.importing import ImportedRecipe


def print_imported(done: ImportedRecipe) -> None:
    """The file on standard output; on standard error, what it does not have, as the comment at its beginning has it."""
    print_problems(done.warnings, "warning")
    if done.left:
        sys.stderr.write("Not carried over:\n")
    for item in done.left:
        for line in wrapped(printable(str(item)), "  ", "    "):
            sys.stderr.write(f"{line}\n")
    choices = done.choices
    guesses = sum(not sized.chosen for sizes in choices.sizes.values() for sized in sizes.values())
    if guesses:
        print_line(f"The sizes of {counted(guesses, 'input')} are guesses, marked in the recipe: look at them.")
    counts = f"{counted(len(choices.models), 'model')} for {counted(len(choices.targets), 'target')}"
    shown = "" if str(done.path) == DEFAULT_RECIPE else f" {done.path}"
    print_line(f"Wrote {done.path}: {counts}. Next: epbuild run{shown}")
