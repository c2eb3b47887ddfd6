"""Findings: outcomes of checks of an artifact."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Literal

from msgspec import Struct

from epbuild.core.summary import Summarized, Summary
from epbuild.core.units import format_count

Outcome = Literal["passed", "failed", "skipped"]
"""Outcome of a check. `skipped`: the check was not possible, which is not a failure. The message gives the reason."""
OUTCOMES: tuple[Outcome, ...] = ("failed", "skipped", "passed")
"""Outcomes, worst first."""
Fitness = Literal["best", "runs", "recompile", "cannot"]
"""Fitness of this machine for a compiled model, from best to worst."""
EMIT_AGAIN = "Emit or copy it again."


class Flaw(Struct, frozen=True):
    """Fault in a file, as a clause that follows the file's name."""

    code: str
    file: str
    text: str
    hint: str | None = None
    standalone: bool = False
    """True if the text has its own subject instead of following the file's name."""

    @property
    def sentence(self) -> str:
        """Text as a sentence, for output that already names the file."""
        return format_sentence(self.text if self.standalone else f"it {self.text}")


class Finding(Struct, frozen=True):
    """Outcome of one check of one subject."""

    check: str
    """Name of the check, such as `references`, `digests`, `target`, `load` or `numbers`."""
    subject: str
    """File, as a POSIX path below the artifact's directory, or the name of a group."""
    outcome: Outcome
    message: str = ""
    """Sentence about the fault, the reason for skipping the check, or the measured figures."""
    code: str | None = None
    """Code of the fault, such as EPB605."""
    hint: str | None = None
    figures: tuple[Mapping[str, Any], ...] = ()
    """Metrics of each output if the model was run, and whether its inputs were given or generated."""
    fitness: Fitness | None = None
    """Fitness of this machine for the model. None unless the check is `here`."""


class Findings(Summarized, tuple[Finding, ...]):
    """Findings of all checks of an artifact."""

    __slots__ = ()

    def summarize(self) -> Summary:
        """Return the findings, failed ones first."""
        counts = Counter(finding.outcome for finding in self)
        outcomes = ", ".join(f"{counts[outcome]} {outcome}" for outcome in OUTCOMES if counts[outcome])
        rows = [
            (finding.outcome, finding.check, finding.subject, finding.message)
            for finding in sorted(self, key=lambda finding: OUTCOMES.index(finding.outcome))
        ]
        return Summary(f"{format_count(len(self), 'finding')}: {outcomes}", ("outcome", "check", "subject", "message"), rows)


def make_failed(check: str, subject: str, flaw: Flaw) -> Finding:
    return Finding(check, subject, "failed", flaw.sentence, flaw.code, flaw.hint)


def format_sentence(text: str) -> str:
    """Turn a clause into a sentence. Add a full stop, and capitalize the first word unless it is a name."""
    begin = text[:1].upper() if text.partition(" ")[0].isalpha() else text[:1]
    return f"{begin}{text[1:]}" + ("" if text.endswith((".", "!", "?")) else ".")
