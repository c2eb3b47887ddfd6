"""Reports of a worker: one checked JSON document a line."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import Any

from epbuild.core.errors import printable

_LONGEST_SHOWN = 200
_MOST_BYTES = (1 << 63) - 1  # what SQLite has room for


class BadReport(Exception):
    """A report of an event that workers report, without what belongs to it; the text is the report."""


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_time(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value >= 0


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MOST_BYTES


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_text, value))


def _is_text_by_text(value: Any) -> bool:
    return isinstance(value, dict) and all(map(_is_text, value.values()))


def _or_none(check: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: value is None or check(value)


# What is relied on of what `worker/compile.py` and `worker/load.py` send.
_NEEDED: Mapping[str, Mapping[str, Callable[[Any], bool]]] = {
    "device": {"ep": _is_text, "type": _is_text, "vendor": _is_text},
    "offered": {"ep": _is_text, "type": _is_text, "vendor": _is_text, "metadata": _is_text_by_text},
    "member_started": {"member": _is_text},
    "member_finished": {"member": _is_text, "seconds": _is_time},
    "compatibility": {"model": _is_text, "ep": _is_text, "answer": _or_none(_is_text), "reason": _or_none(_is_text)},
    "opening": {"model": _is_text},
    "opened": {"model": _is_text, "seconds": _is_time},
    "running": {"model": _is_text, "run": _is_count},
    "ran": {"model": _is_text, "run": _is_count, "outputs": _are_texts},
    "closing": {"model": _is_text},
    "failed": {"kind": _is_text, "type": _is_text, "message": _is_text},
}
_OPTIONAL = {"peak_memory": _or_none(_is_count), "mapped": _is_count, "mappable": _is_count}


def read_report(line: bytes) -> dict[str, Any] | None:
    """The report in a line of a worker's; None for what is no report, such as what a package prints when Python starts.

    Raises BadReport for a report that lacks what its event needs, or has something else in its place.
    """
    try:
        report = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(report, dict) or not isinstance(report.get("event"), str):
        return None
    needed = _NEEDED.get(report["event"], {})
    wrong = any(name not in report or not check(report[name]) for name, check in needed.items())
    if wrong or any(name in report and not check(report[name]) for name, check in _OPTIONAL.items()):
        raise BadReport(shown(line))
    return report


def shown(line: bytes) -> str:
    """A worker's line for a message, cut where it is long."""
    text = printable(line[: 4 * _LONGEST_SHOWN + 4].decode("utf-8", "replace").strip())
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}..."
