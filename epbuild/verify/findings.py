"""Findings: outcomes of the checks of an artifact."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from msgspec import Struct

Outcome = Literal["passed", "failed", "skipped"]
"""`skipped`: the check was not possible, for the reason in the message; this is not a failure."""
EMIT_AGAIN = "Emit or copy it again."


class Flaw(Struct, frozen=True):
    """Fault of a file, as a clause that follows the file's name."""

    code: str
    file: str
    text: str
    hint: str | None = None
    standalone: bool = False
    """True if the text has its own subject instead of following the file's name."""

    @property
    def sentence(self) -> str:
        """The clause as a sentence for a place that already names the file."""
        return format_sentence(self.text if self.standalone else f"it {self.text}")


class Finding(Struct, frozen=True):
    """Outcome of one check of one subject."""

    check: str
    """Name of the check, such as `references`, `digests`, `target`, `load` or `numbers`."""
    subject: str
    """A file, as a POSIX path below the artifact's directory, or a group's name."""
    outcome: Outcome
    message: str = ""
    """A sentence: the fault, why the check was skipped, or what was measured."""
    code: str | None = None
    """The EPB6xx code of the fault."""
    hint: str | None = None
    figures: tuple[Mapping[str, Any], ...] = ()
    """Metrics and kind of inputs of each output, if the model was run."""


def make_failed(check: str, subject: str, flaw: Flaw) -> Finding:
    return Finding(check, subject, "failed", flaw.sentence, flaw.code, flaw.hint)


def format_sentence(text: str) -> str:
    """Turn a clause into a sentence: with a full stop, and with a capital letter unless it begins with a name."""
    begin = text[:1].upper() if text.partition(" ")[0].isalpha() else text[:1]
    return f"{begin}{text[1:]}" + ("" if text.endswith((".", "!", "?")) else ".")
