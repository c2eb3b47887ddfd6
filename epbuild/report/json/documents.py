"""JSON documents, each with the number of its format, and events as JSON lines.

Both are written in ASCII: what an EP logs, or a file is called, must not fail on the encoding of standard output.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from json.encoder import encode_basestring_ascii
from pathlib import Path
from typing import TYPE_CHECKING, Any

from epbuild.core.canonical import indented_json
from epbuild.core.errors import Argument, Location, Position, Problem
from epbuild.engine.events import StepFinished, StepsCurrent
from epbuild.plan.verification import needs_real_device
from epbuild.report.listener import Listener

if TYPE_CHECKING:
    from epbuild.engine.events import Event
    from epbuild.survey.jobs import RunnerJob
    from epbuild.survey.status import Survey

FORMAT = 1


def plan_document(recipe: str, found: Survey) -> dict[str, Any]:
    """`plan --json`: every step with its state, and why."""
    return {
        "format": FORMAT,
        "recipe": recipe,
        "steps": [
            {
                "id": status.step.id,
                "kind": status.step.kind,
                "state": status.state,
                "remote": status.remote,
                "reasons": list(status.reasons),
                "key": status.key,
                "needs": list(status.step.needs),
                "outputs": list(status.outputs),
                **({"device": "real"} if needs_real_device(found.plan, status.step) else {}),
            }
            for status in found.steps()
        ],
        "orphans": [{"step": orphan.step, "directory": orphan.directory.as_posix()} for orphan in found.orphans],
        "warnings": [problem_document(problem) for problem in found.plan.warnings],
    }


def print_matrix(jobs: Iterable[RunnerJob]) -> None:
    """`plan --matrix`: jobs as a matrix of GitHub Actions, in one line; the steps of each are lines of one text."""
    included = [{"runner": job.runner, "steps": "\n".join(job.steps), "seconds": round(job.seconds, 1)} for job in jobs]
    sys.stdout.write(json.dumps({"include": included}) + "\n")


def problem_document(problem: Problem) -> dict[str, Any]:
    """A problem as JSON, with the `lines` to write; where it is by `file`, `line` and `column`, or by `path`, `argument` or `step`."""
    lines = {"lines": list(problem.lines)} if problem.lines else {}
    return {"code": problem.code, "message": problem.message, "hint": problem.hint, **lines, **_location(problem.where)}


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


def print_json(document: Mapping[str, Any]) -> None:
    """A document on standard output."""
    sys.stdout.write(json_text(document))


def json_text(document: Mapping[str, Any]) -> str:
    """A document for machines and, since it is indented, for people."""
    return f"{indented_json(document)}\n"


class JsonLines(Listener):
    """A listener that writes each event as one line of JSON on standard output."""

    def report(self, event: Event, /) -> None:
        if isinstance(event, StepsCurrent):
            sys.stdout.write(_lines(event))  # it goes with what follows, as its lines are many
        else:
            sys.stdout.write(_line(event))
            sys.stdout.flush()


def _line(event: Event) -> str:
    kind: Any = type(event)
    document = {"event": _event_name(kind), "format": FORMAT, "time": round(time.time(), 3), **_plain(event)}
    return f"{json.dumps(document)}\n"


def _lines(event: StepsCurrent) -> str:
    """The lines of what it stands for: they differ in the step alone."""
    any_step = "\0"
    before, after = _line(StepFinished(any_step, "current", 0.0)).split(encode_basestring_ascii(any_step))
    return "".join([f"{before}{encode_basestring_ascii(step)}{after}" for step in event.steps])


@cache
def _event_name(kind: Any) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", kind.__name__).lower()


@cache
def _fields(kind: Any) -> tuple[tuple[str, str], ...] | None:
    """The fields of a dataclass, each with its name in JSON (`from_`: a word of Python's); None for any other type."""
    return tuple((field.name, field.name.rstrip("_")) for field in fields(kind)) if is_dataclass(kind) else None


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 3)
    if isinstance(value, Problem):
        return problem_document(value)
    kind: Any = type(value)
    names = _fields(kind)
    if names is not None:
        return {
            written: field if (field := getattr(value, name)) is None or isinstance(field, (str, int)) else _plain(field)
            for name, written in names
        }
    return [_plain(item) for item in value] if isinstance(value, tuple) else value
