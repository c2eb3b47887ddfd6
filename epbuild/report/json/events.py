"""Events of a build as JSON lines."""

from __future__ import annotations

import json
import re
import sys
import time
from functools import cache
from json.encoder import encode_basestring_ascii
from typing import Any

from msgspec import Struct

from epbuild.core.errors import Problem
from epbuild.engine.events import Event, StepFinished, StepsCurrent
from epbuild.report.json.documents import FORMAT, problem_view, to_plain
from epbuild.report.listeners import Listener


class JsonLines(Listener):
    """Listener that writes each event as a line of JSON to standard output."""

    def report(self, event: Event, /) -> None:
        if isinstance(event, StepsCurrent):
            sys.stdout.write(_lines(event))  # flushed with the next event, since there are many lines
        else:
            sys.stdout.write(_line(event))
            sys.stdout.flush()


def _line(event: Event) -> str:
    kind: Any = type(event)
    document = {"event": _event_name(kind), "format": FORMAT, "time": round(time.time(), 3), **_plain(event)}
    return f"{json.dumps(document)}\n"


def _lines(event: StepsCurrent) -> str:
    """Return a line for each current step. The lines differ only in the step."""
    any_step = "\0"
    before, after = _line(StepFinished(any_step, "current", 0.0)).split(encode_basestring_ascii(any_step))
    return "".join([f"{before}{encode_basestring_ascii(step)}{after}" for step in event.steps])


@cache
def _event_name(kind: Any) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", kind.__name__).lower()


def _plain(value: Any) -> Any:
    """Return a value as JSON. Floats are rounded, and names of fields lose the underscore of `from_`."""
    match value:
        case float():
            return round(value, 3)
        case Problem():
            return to_plain(problem_view(value))
        case Struct():
            return {name.rstrip("_"): _plain(getattr(value, name)) for name in value.__struct_fields__}
        case tuple():
            return [_plain(item) for item in value]
    return value
