"""Mistakes on the command line, each as one sentence with what to do.

Typer shows them in its own way, and has no name of its own for them: they are those of the click inside it.
"""

from __future__ import annotations

from typer._click.exceptions import ClickException, NoSuchOption, UsageError

__all__ = ["ClickException", "UsageError", "sentence"]


def sentence(error: ClickException) -> str:
    """What is wrong, as a whole sentence; of an option that does not exist, with the nearest ones that do."""
    if isinstance(error, NoSuchOption):
        near = " or ".join(f"'{name}'" for name in sorted(error.possibilities or ()))
        return f"No such option '{error.option_name}'." + (f" Did you mean {near}?" if near else "")
    text = error.format_message()
    return text if text.endswith((".", "?", "!")) else f"{text}."
