"""Errors as values: a `Problem` with its place and hint, and `EpbuildError`.

Codes: EPB1xx recipe, 2xx plan, 3xx toolchain, 4xx build, 5xx store, 6xx verify. `epbuild/error_codes.toml` lists them.
"""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, NewType

from epbuild.core.redact import concealed
from epbuild.core.values import dataclass


class Position(NamedTuple):
    """A place in a text file; line and column count from 1, the column in characters."""

    file: str
    line: int
    column: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"


@dataclass(frozen=True)
class Argument:
    """An argument of the command line, as a user types it: `--set vars.quality=3`."""

    text: str

    def __str__(self) -> str:
        return self.text


StepId = NewType("StepId", str)
"""A step of the plan, as in `compile:decoder/snapdragon-SM8750/prefill`. No other text has the place of a problem."""

Location = Position | Path | Argument | StepId
"""Where a problem is: in a text file, in a file or folder as a whole, on the command line, or in a step."""


_PLACES: Mapping[str, Callable[..., Location]] = {"position": Position, "path": Path, "argument": Argument, "step": StepId}


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong: a sentence, where it is, and what to do about it."""

    code: str
    message: str
    where: Location | None = None
    hint: str | None = None
    reason: str | None = None
    """The part of the message with the reason, and not to what it happened: problems with one reason can be shown as one."""
    lines: tuple[str, ...] = ()
    """What to write into the file, as lines of it: without the indentation that they have in common."""

    def __post_init__(self) -> None:
        """Conceal values of the environment: what is wrong is shown to others, in logs and reports."""
        for name in ("message", "hint", "reason"):
            text = getattr(self, name)
            if text and (shown := concealed(text)) != text:
                object.__setattr__(self, name, shown)

    def __str__(self) -> str:
        place = f"{self.where}: " if self.where is not None else ""
        return f"{place}{self.text} [{self.code}]"

    @classmethod
    def from_plain(cls, plain: tuple[Any, ...]) -> Problem:
        code, message, where, hint, reason, lines = plain
        return cls(code, message, _PLACES[where[0]](*where[1:]) if where else None, hint, reason, tuple(lines))

    @property
    def plain(self) -> tuple[Any, ...]:
        """The problem as tuples, strings and numbers, which need no class to be read."""
        where: tuple[Any, ...] | None
        match self.where:
            case None:
                where = None
            case Position(file, line, column):
                where = ("position", file, line, column)
            case Path() as path:
                where = ("path", str(path))
            case Argument(text):
                where = ("argument", text)
            case step:
                where = ("step", step)
        return self.code, self.message, where, self.hint, self.reason, self.lines

    @property
    def text(self) -> str:
        """What is wrong and what to do, as whole sentences, without the place."""
        message = self.message if self.message.endswith((".", "!", "?")) else f"{self.message}."
        return f"{message} {self.hint}" if self.hint else message


class EpbuildError(Exception):
    """The base of every error that a user is meant to read; it holds one or more problems, each once, in the order of their positions."""

    exit_code: ClassVar[int] = 1
    stops_others: ClassVar[bool] = True
    """Whether a build that is not to keep going begins no other step once one fails with it."""

    def __init__(self, *problems: Problem) -> None:
        if not problems:
            raise ValueError("an error needs at least one problem")
        self.problems = tuple(sorted(dict.fromkeys(problems), key=reading_order))
        super().__init__("\n".join(str(problem) for problem in self.problems))


class RecipeError(EpbuildError):
    """The recipe's text, or what it asks for, is wrong (EPB1xx)."""

    exit_code = 2


class PlanError(EpbuildError):
    """The recipe can be read, but what it asks for cannot be built (EPB2xx)."""

    exit_code = 2


class ToolchainError(EpbuildError):
    """An environment could not be provisioned, probed or used (EPB3xx)."""

    exit_code = 3


class BuildError(EpbuildError):
    """A step failed (EPB4xx)."""

    exit_code = 1


class EnvironmentFailure(BuildError):
    """A step failed because of this machine: a full disk, a missing permission, too little memory (EPB4xx)."""

    exit_code = 3


class StoreError(EpbuildError):
    """The store or the workspace's state cannot be read or written (EPB5xx)."""

    exit_code = 3


class VerifyError(EpbuildError):
    """An artifact is not what it should be (EPB6xx)."""

    exit_code = 1


class ChangeRefused(EpbuildError):
    """A change of a compiled model cannot be made, or would give one that its EP does not load (EPB62x); nothing was written."""

    exit_code = 2


class NothingToVerify(VerifyError):
    """The path does not exist, cannot be read, or holds nothing that can be verified (EPB600): a mistake on the command line."""

    exit_code = 2


class BadText(ValueError):
    """A text is not what it should be: why, and what to write instead. The caller knows the place, and makes a `Problem` of it."""

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(f"{message}. {hint}" if hint else message)
        self.message = message
        self.hint = hint


def nearest(word: str, known: Iterable[str]) -> str | None:
    """A hint that names the known word closest to `word`, or None when nothing is close."""
    close = closest(word, known)
    return f"Did you mean '{close[0]}'?" if close else None


def closest(word: str, known: Iterable[str], cutoff: float = 0.6) -> list[str]:
    """Return the known words that are close to `word`, the closest first; of equally close ones, that with the longest common prefix."""
    words = list(known)
    found = difflib.get_close_matches(word, words, n=len(words), cutoff=cutoff) if words else []
    matcher = difflib.SequenceMatcher(b=word)

    def rank(other: str) -> tuple[float, int]:
        matcher.set_seq1(other)
        common = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(word, other, strict=False))
        return -matcher.ratio(), -sum(1 for _ in common)

    return sorted(found, key=rank)


def reading_order(problem: Problem) -> tuple[str, int, int]:
    """The place of a problem among others: by file, line and column."""
    where = problem.where
    if isinstance(where, Position):
        return (where.file, where.line, where.column)
    return ("", 0, 0)


def printable(text: str) -> str:
    """`text` with everything spelled out that a terminal would obey instead of showing it."""
    return (
        text
        if text.isprintable()
        else "".join(
            character if character.isprintable() else character.encode("unicode_escape").decode("ascii") for character in text
        )
    )


class HttpCancelled(Exception):
    """What an HTTP client raises when its `cancelled` event was set; nothing failed. It is here so that catching it imports no client."""
