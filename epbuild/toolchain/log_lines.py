"""Lines of a worker's log, shortened and ranked for people."""

from __future__ import annotations

import re
from collections.abc import Sequence

_QUOTED = 3
_LONGEST_REASON = 400
_LONGEST_QUOTE = 300
_LEFT_OUT = " [...] "
_ERROR, _WARNING, _OTHER = range(3)  # the ranks of log lines
_LOG_PREFIX = re.compile(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+ \[([VIWEF]):[^\]]*\]\s*")
_SEVERITY_PREFIX = re.compile(r"^\s*\d+(?:\.\d+)?(?:ms)?\s*\[\s*(ERROR|WARN|WARNING)\s*\]\s*", re.IGNORECASE)
_ERROR_WORDS = re.compile(r"<E>|error\b|\bfail(ed|ure)?\b|terminate called|what\(\):", re.IGNORECASE)
_BOILERPLATE = re.compile(
    r"\[ONNXRuntimeError\] : \d+ : ([A-Z_ ]+?) : "
    # A place in the source, a signature and a condition, where words follow.
    r"|(?:Exception during initialization: |(?<!\S))\S*/onnxruntime/\S+\.(?:cc|h):\d+ .*? was false\. (?=\S)"
)
_PROGRESS = re.compile(r"\d ?%|(?<![\w/.-])\d+ ?(?:/|of) ?\d+(?![\w/.-])")
# Logged on every Linux host, about nothing that went wrong.
_NOISE = re.compile(
    r"File mapped weights feature|EPContext encryption config unavailable|LIBNATIVE"
    r"|Unable to get producer node for OrtValueInfo|Removing initializer '.*'\. It is not used by any node"
)


def told_once(raised: str | None, lines: Sequence[str]) -> tuple[str | None, str]:
    """What ONNX Runtime raised, shortened, and what the EP logged beside it as a sentence to add, or empty if that is the same.

    ONNX Runtime logs and raises what an EP reports to it, each time with other words around it: each reason is given once.
    """
    quotes = _said(lines)
    if raised is not None:
        quotes = [text for text in quotes if _core(text) not in _core(raised)]
        longer = [text for text in quotes if _core(raised) in _core(text)]
        if longer:
            raised, quotes = longer[-1], [text for text in quotes if text not in longer]
        raised = shortened(raised, _LONGEST_REASON)
    words = _joined(quotes)
    return raised, f" The EP logged: {words}" if words else ""


def last_words(lines: Sequence[str]) -> str:
    """What an EP logged last that bears on a failure: errors if any, else warnings, else anything; a few lines as one text."""
    return _joined(_said(lines))


def _joined(quotes: Sequence[str]) -> str:
    return " | ".join(shortened(text, _LONGEST_QUOTE) for text in quotes)


def _said(lines: Sequence[str]) -> list[str]:
    ranks: dict[int, list[str]] = {_ERROR: [], _WARNING: [], _OTHER: []}
    for line in lines:
        if _NOISE.search(line):
            continue
        text, rank = _severity(line)
        if text:
            ranks[rank].append(without_boilerplate(text))
    chosen = next((found for found in ranks.values() if found), [])
    distinct: list[str] = []
    for text in dict.fromkeys(chosen):
        # What has only more words around it was logged before, or is logged now in fewer.
        if not any(_core(other) in _core(text) for other in distinct):
            distinct = [other for other in distinct if _core(text) not in _core(other)] + [text]
    return distinct[-_QUOTED:]


def _core(text: str) -> str:
    return text.rstrip(". ").casefold()


def shortened(text: str, most: int) -> str:
    """`text` if it has at most so many characters, else its beginning and its end, which often has the reason."""
    if len(text) <= most:
        return text
    end = most // 3
    return text[: most - end - len(_LEFT_OUT)].rstrip() + _LEFT_OUT + text[-end:].lstrip()


def readable(line: str) -> str:
    """A line of a worker's log as a person wants it: without time stamps, source places and what is always logged."""
    match = _LOG_PREFIX.match(line) or _SEVERITY_PREFIX.match(line)
    return "" if _NOISE.search(line) else line[match.end() :] if match else line


def tells_progress(line: str) -> bool:
    """Whether a line of a worker's log shows how far the EP is: most of what EPs write is on other matters, such as weights."""
    return _severity(line)[1] == _OTHER and _PROGRESS.search(readable(line)) is not None


def _severity(line: str) -> tuple[str, int]:
    """A log line without its time stamp, and its rank; no text for mere information."""
    match = _LOG_PREFIX.match(line)
    if match:
        rank = {"E": _ERROR, "F": _ERROR, "W": _WARNING}.get(match[1])
        return ("", _OTHER) if rank is None else (line[match.end() :], rank)
    match = _SEVERITY_PREFIX.match(line)
    if match:
        return line[match.end() :], _ERROR if match[1].upper() == "ERROR" else _WARNING
    return line, _ERROR if _ERROR_WORDS.search(line) else _OTHER


def without_boilerplate(message: str) -> str:
    """An ORT message on one line, without its boilerplate and without a full stop at the end."""
    return _BOILERPLATE.sub("", " ".join(message.split())).rstrip(". ")
