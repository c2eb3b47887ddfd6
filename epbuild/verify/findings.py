"""Findings: the outcome of each check of an artifact, whatever it is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from msgspec import Struct

Outcome = Literal["passed", "failed", "skipped"]
"""`skipped`: it could not be checked here, for the reason in the message; that is no failure."""
EMIT_AGAIN = "Emit or copy it again."


class Flaw(Struct, frozen=True):
    """What is wrong with a file, as a clause that goes on after its name, or, with `apart`, has a subject of its own."""

    code: str
    file: str
    text: str
    hint: str | None = None
    apart: bool = False

    @property
    def sentence(self) -> str:
        """The clause where the file is named beside it."""
        return sentence(self.text if self.apart else f"it {self.text}")


class Finding(Struct, frozen=True):
    """The outcome of one check of one thing."""

    check: str
    """The check's name, such as `references`, `digests`, `target`, `load` or `numbers`."""
    subject: str
    """What was checked: a file, as a POSIX path below the artifact's directory, or a group's name."""
    outcome: Outcome
    message: str = ""
    """A sentence: what is wrong, why it was skipped, or what was measured."""
    code: str | None = None
    """The EPB6xx code of what is wrong."""
    hint: str | None = None
    figures: tuple[Mapping[str, Any], ...] = ()
    """Of each output of a model that was run: its metrics, and on what kind of inputs."""


def failed(check: str, subject: str, flaw: Flaw) -> Finding:
    return Finding(check, subject, "failed", flaw.sentence, flaw.code, flaw.hint)


def sentence(text: str) -> str:
    """A clause with a capital letter, unless it begins with a name, and a full stop."""
    begin = text[:1].upper() if text.partition(" ")[0].isalpha() else text[:1]
    return f"{begin}{text[1:]}" + ("" if text.endswith((".", "!", "?")) else ".")
