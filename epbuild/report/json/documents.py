"""Base of the JSON documents: typed views of values, and their text.

A document is a `msgspec.Struct` whose fields are the keys of its JSON, in order. The text is ASCII: names of files and logs of EPs must not
fail on the encoding of standard output.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from epbuild.core.canonical import encode_indented
from epbuild.core.errors import Argument, Location, Position, Problem
from epbuild.core.records import convert

if TYPE_CHECKING:
    from epbuild.commands.reporting.values import Report

FORMAT = 1


class View(msgspec.Struct, frozen=True):
    """JSON object with the fields of a class in order; an unset field is left out."""


class Document(View, frozen=True):
    """JSON document with the number of its format."""

    format: int = FORMAT
    """Number of the document's format. It increases with a change that breaks readers."""


V = TypeVar("V", bound=View)


class ProblemView(View, frozen=True, kw_only=True):
    """Problem with its place: a position in a file, a path, an argument or a step."""

    code: str
    """Error code."""
    message: str
    """Description of the problem."""
    hint: str | None
    """Suggested fix."""
    lines: tuple[str, ...] | UnsetType = UNSET
    """Lines to write into `file`."""
    file: str | UnsetType = UNSET
    """Text file with the problem, with its `line` and `column`."""
    line: int | UnsetType = UNSET
    """Line in `file`, from 1."""
    column: int | UnsetType = UNSET
    """Column in `file`, from 1, in characters."""
    path: str | UnsetType = UNSET
    """File or folder with the problem, if the problem has no line."""
    argument: str | UnsetType = UNSET
    """Argument of the command line with the problem."""
    step: str | UnsetType = UNSET
    """Id of the step with the problem."""


def build_view(kind: type[V], source: object, **values: Any) -> V:
    """Return a view of `source`: each field is the value given for it, else the attribute of the same name."""
    found = {name: getattr(source, name) for name in kind.__struct_fields__ if hasattr(source, name)} | values
    known = {name: value for name, value in found.items() if value is not UNSET}
    return convert(SimpleNamespace(**known), kind, from_attributes=True)


def build_problem_view(problem: Problem) -> ProblemView:
    """Return the JSON of a problem."""
    return ProblemView(
        code=problem.code, message=problem.message, hint=problem.hint, lines=problem.lines or UNSET, **_location(problem.where)
    )


def build_problem_views(problems: Iterable[Problem]) -> tuple[ProblemView, ...]:
    """Return the JSON of each problem."""
    return tuple(map(build_problem_view, problems))


def report_document(report: Report) -> dict[str, Any]:
    """Return `report --json`, which a page embeds."""
    document: dict[str, Any] = msgspec.to_builtins(report)
    return document


def to_plain(document: View | Mapping[str, Any]) -> Any:
    """Return a document as dicts, lists and scalars."""
    return msgspec.to_builtins(document)


def print_json(document: View | Mapping[str, Any]) -> None:
    """Write a document to standard output."""
    sys.stdout.write(format_json(document))


def format_json(document: View | Mapping[str, Any]) -> str:
    """Return the indented text of a document."""
    return f"{encode_indented(to_plain(document))}\n"


def _location(where: Location | None) -> dict[str, Any]:
    match where:
        case None:
            return {}
        case Position():
            return {"file": where.file, "line": where.line, "column": where.column}
        case Path():
            return {"path": str(where)}
        case Argument():
            return {"argument": where.text}
        case step:
            return {"step": step}
