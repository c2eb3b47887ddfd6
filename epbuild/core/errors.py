"""Problems with their locations and hints, and the exceptions that carry them.

Codes: EPB1xx recipe, 2xx plan, 3xx toolchain, 4xx build, 5xx store, 6xx verify. `epbuild/error_codes.toml` lists them.
"""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Iterable
from pathlib import Path, PurePath
from typing import ClassVar, NewType

from msgspec import Struct
from msgspec.structs import force_setattr

from epbuild.core.redact import conceal_text


class Position(Struct, frozen=True, order=True, array_like=True):
    """Position in a text file. Lines and columns start at 1. Columns are counted in characters. Its JSON is an array."""

    file: str
    line: int
    column: int

    def __str__(self) -> str:
        return f"{format_location(Path(self.file))}:{self.line}:{self.column}"


class Argument(Struct, frozen=True):
    """Argument of the command line, as typed: `--set vars.quality=3`."""

    text: str

    def __str__(self) -> str:
        return self.text


StepId = NewType("StepId", str)
"""Id of a step, such as `compile:decoder/snapdragon-SM8750/prefill`. No other string is accepted as a `Location`."""

Location = Position | Path | Argument | StepId
"""Location of a problem: in a text file, a file or folder as a whole, the command line, or a step."""


def format_location(where: Location | PurePath) -> str:
    """Return a location as text. Relative paths have `/` on every system. `format_path` also shortens absolute paths."""
    return where.as_posix() if isinstance(where, PurePath) and not where.is_absolute() else str(where)


class Problem(Struct, frozen=True):
    """Problem with its message, its location, and a hint for the user."""

    code: str
    message: str
    where: Location | None = None
    hint: str | None = None
    reason: str | None = None
    """Reason for the problem, without the rest of the message. Problems with equal reasons can be shown as one problem."""
    lines: tuple[str, ...] = ()
    """Lines that the user should write into the file, without their common indentation."""

    def __post_init__(self) -> None:
        """Conceal values of environment variables, because logs and reports show problems to other people."""
        for name in ("message", "hint", "reason"):
            text = getattr(self, name)
            if text and (shown := conceal_text(text)) != text:
                force_setattr(self, name, shown)

    def __str__(self) -> str:
        place = f"{format_location(self.where)}: " if self.where is not None else ""
        return f"{place}{self.text} [{self.code}]"

    @property
    def text(self) -> str:
        """Message and hint as sentences, without the location."""
        message = self.message if self.message.endswith((".", "!", "?")) else f"{self.message}."
        return f"{message} {self.hint}" if self.hint else message


class ProblemRecord(Struct, frozen=True, omit_defaults=True):
    """JSON of a `Problem` in files and messages. At most one kind of location is set."""

    code: str
    message: str
    hint: str | None = None
    reason: str | None = None
    lines: tuple[str, ...] = ()
    position: Position | None = None
    path: str | None = None
    argument: str | None = None
    step: str | None = None

    @classmethod
    def of(cls, problem: Problem) -> ProblemRecord:
        """Return the record of a problem."""
        where = problem.where
        return cls(
            problem.code,
            problem.message,
            problem.hint,
            problem.reason,
            problem.lines,
            position=where if isinstance(where, Position) else None,
            path=str(where) if isinstance(where, Path) else None,
            argument=where.text if isinstance(where, Argument) else None,
            step=where if isinstance(where, str) else None,
        )

    @property
    def problem(self) -> Problem:
        """Problem that this record describes."""
        where: Location | None = self.position
        if self.path is not None:
            where = Path(self.path)
        elif self.argument is not None:
            where = Argument(self.argument)
        elif self.step is not None:
            where = StepId(self.step)
        return Problem(self.code, self.message, where, self.hint, self.reason, self.lines)


class EpbuildError(Exception):
    """Base class of errors for users. An error contains one or more distinct problems, sorted by position."""

    exit_code: ClassVar[int] = 1
    stops_others: ClassVar[bool] = True
    """True if a build without --keep-going starts no other steps after a step fails with this error."""

    def __init__(self, *problems: Problem) -> None:
        if not problems:
            raise ValueError("an error needs at least one problem")
        self.problems = tuple(sorted(dict.fromkeys(problems), key=get_sort_key))
        super().__init__("\n".join(str(problem) for problem in self.problems))


class RecipeError(EpbuildError):
    """Error for an invalid recipe (EPB1xx)."""

    exit_code = 2


class PlanError(EpbuildError):
    """Error for a valid recipe that cannot be built (EPB2xx)."""

    exit_code = 2


class ToolchainError(EpbuildError):
    """Error for an environment that could not be provisioned, probed or used (EPB3xx)."""

    exit_code = 3


class BuildError(EpbuildError):
    """Error for a failed step (EPB4xx)."""

    exit_code = 1


class EnvironmentFailure(BuildError):
    """Error for a step that failed because of this machine, such as a full disk or a missing permission (EPB4xx)."""

    exit_code = 3


class StoreError(EpbuildError):
    """Error for a store or a workspace's state that cannot be read or written (EPB5xx)."""

    exit_code = 3


class VerifyError(EpbuildError):
    """Error for an artifact that failed a check (EPB6xx)."""

    exit_code = 1


class ChangeRefused(EpbuildError):
    """Error for a change of a compiled model that is impossible or that the EP would reject (EPB62x). Nothing was written."""

    exit_code = 2


class NothingToVerify(VerifyError):
    """Error for a path on the command line that is missing, unreadable, or without artifacts (EPB600)."""

    exit_code = 2


class BadText(ValueError):
    """Error for invalid text, with the reason and a hint. The caller adds the location and raises a `Problem`."""

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(f"{message}. {hint}" if hint else message)
        self.message = message
        self.hint = hint


class Misuse(ValueError):
    """Error for an unsuitable command-line option. `option` is None if a required option is missing."""

    def __init__(self, message: str, option: str | None = None) -> None:
        super().__init__(message)
        self.option = option


def suggest_nearest(word: str, known: Iterable[str]) -> str | None:
    """Return a hint with the known word that is closest to `word`, or None if no known word is close."""
    close = find_closest(word, known)
    return f"Did you mean '{close[0]}'?" if close else None


def find_closest(word: str, known: Iterable[str], cutoff: float = 0.6) -> list[str]:
    """Return the known words that are close to `word`, starting with the closest. A longer common prefix breaks ties."""
    words = list(known)
    found = difflib.get_close_matches(word, words, n=len(words), cutoff=cutoff) if words else []
    matcher = difflib.SequenceMatcher(b=word)

    def rank(other: str) -> tuple[float, int]:
        matcher.set_seq1(other)
        common = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(word, other, strict=False))
        return -matcher.ratio(), -sum(1 for _ in common)

    return sorted(found, key=rank)


def get_sort_key(problem: Problem) -> tuple[str, int, int]:
    """Return the sort key of a problem: file, line and column."""
    where = problem.where
    if isinstance(where, Position):
        return (where.file, where.line, where.column)
    return ("", 0, 0)


def escape_controls(text: str) -> str:
    """Return `text` with all control characters escaped."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode("ascii") for one in text)


class Cancelled(Exception):
    """Exception for work that was stopped by setting its `cancelled` event. The work did not fail."""
