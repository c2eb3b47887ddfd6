"""Base classes of the JSON documents, and functions that write documents.

A document is a `msgspec.Struct` whose fields are the keys of its JSON, in order. The text is ASCII, so that file names and
EP logs cannot cause encoding errors on standard output.
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
    """JSON object whose keys are the fields of its class, in order. Unset fields are omitted."""


class Document(View, frozen=True):
    """JSON document with a format version."""

    format: int = FORMAT
    """Format version of the document."""


V = TypeVar("V", bound=View)


class ProblemView(View, frozen=True, kw_only=True):
    """Problem with its location: a position in a file, a path, an argument or a step."""

    code: str
    """Error code."""
    message: str
    """Description of the problem."""
    hint: str | None
    """Suggested fix."""
    lines: tuple[str, ...] | UnsetType = UNSET
    """Lines to add to `file`."""
    file: str | UnsetType = UNSET
    """Text file with the problem; `line` and `column` give the position."""
    line: int | UnsetType = UNSET
    """Line in `file`, from 1."""
    column: int | UnsetType = UNSET
    """Column in `file` in characters, from 1."""
    path: str | UnsetType = UNSET
    """File or folder with the problem, if the problem has no line."""
    argument: str | UnsetType = UNSET
    """Argument on the command line that has the problem."""
    step: str | UnsetType = UNSET
    """Id of the step that has the problem."""


def build_view(kind: type[V], source: object, **values: Any) -> V:
    """Return a view of `source`. The value of a field is in `values`, or else in the attribute of `source` with the same name."""
    found = {name: getattr(source, name) for name in kind.__struct_fields__ if hasattr(source, name)} | values
    known = {name: value for name, value in found.items() if value is not UNSET}
    return convert(SimpleNamespace(**known), kind, from_attributes=True)


def build_problem_view(problem: Problem) -> ProblemView:
    """Return the view of a problem."""
    return ProblemView(
        code=problem.code,
        message=problem.message,
        hint=problem.hint,
        lines=problem.lines or UNSET,
        **_build_location(problem.where),
    )


def build_problem_views(problems: Iterable[Problem]) -> tuple[ProblemView, ...]:
    """Return the view of each problem."""
    return tuple(map(build_problem_view, problems))


def build_report_document(report: Report) -> dict[str, Any]:
    """Return the document of `report --json`. HTML pages embed this document."""
    document: dict[str, Any] = msgspec.to_builtins(report)
    return document


def to_plain(document: View | Mapping[str, Any]) -> Any:
    """Convert a document to dicts, lists and scalars."""
    return msgspec.to_builtins(document)


def print_json(document: View | Mapping[str, Any]) -> None:
    """Write a document to standard output."""
    sys.stdout.write(format_json(document))


def format_json(document: View | Mapping[str, Any]) -> str:
    """Format a document as indented JSON text."""
    return f"{encode_indented(to_plain(document))}\n"


def _build_location(where: Location | None) -> dict[str, Any]:
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
