"""What a check of artifacts found: each check has a name, a subject, and an outcome that is told, whatever it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Outcome = Literal["passed", "failed", "skipped"]
"""`skipped`: it could not be checked here, for the reason in the message; that is no failure."""


@dataclass(frozen=True)
class Finding:
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
