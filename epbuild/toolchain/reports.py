"""Reports of a worker: one validated JSON document per line."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Annotated, Any

from msgspec import Meta, Struct, ValidationError, defstruct

from epbuild.core.errors import escape_controls
from epbuild.core.records import convert

_MAX_SHOWN = 200

Seconds = Annotated[float, Meta(ge=0, le=sys.float_info.max)]
Count = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]  # SQLite's integers have 64 bits


class BadReport(Exception):
    """Error for a report that lacks a required field or has a field of the wrong type. The error's text is the report."""


class _Report(Struct):
    """Fields that a report of any event may have."""

    peak_memory: Count | None = None
    mapped: Count = 0
    mappable: Count = 0


# The fields of `worker/compile.py` and `worker/load.py` that readers rely on, by event.
_FIELDS: Mapping[str, Mapping[str, Any]] = {
    "device": {"ep": str, "type": str, "vendor": str},
    "offered": {"ep": str, "type": str, "vendor": str, "metadata": dict[str, str]},
    "member_started": {"member": str},
    "member_finished": {"member": str, "seconds": Seconds},
    "compatibility": {"model": str, "ep": str, "answer": str | None, "reason": str | None},
    "opening": {"model": str},
    "opened": {"model": str, "seconds": Seconds},
    "running": {"model": str, "run": Count},
    "ran": {"model": str, "run": Count, "outputs": list[str], "seconds": Seconds},
    "closing": {"model": str},
    "failed": {"kind": str, "type": str, "message": str},
}
_EVENTS = {event: defstruct(event, fields.items(), bases=(_Report,), kw_only=True) for event, fields in _FIELDS.items()}


def read_report(line: bytes) -> dict[str, Any] | None:
    """Return the report in a line.

    Return None for other output, such as text that a package prints at Python startup. Raises BadReport.
    """
    try:
        report = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(report, dict) or not isinstance(report.get("event"), str):
        return None
    try:
        convert(report, _EVENTS.get(report["event"], _Report))
    except ValidationError as error:
        raise BadReport(shorten_line(line)) from error
    return report


def shorten_line(line: bytes) -> str:
    """Return a line of a worker for use in a message, shortened if it is long."""
    text = escape_controls(line[: 4 * _MAX_SHOWN + 4].decode("utf-8", "replace").strip())
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."
