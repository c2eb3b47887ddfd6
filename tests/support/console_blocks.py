"""The commands of a document, and a comparison of their output with the document.

HTML comments of a document define where its ```console blocks run:

    <!-- run in quickstart: echo x > y -->    run the next blocks in a copy of that project, after these lines of shell
    <!-- run: rm y -->                        run lines of shell before the next block
    <!-- not run: it needs a bucket -->       do not run the next block

A line `...` stands for any lines, and `[…]` for any text. Times and digests that depend on the release are not compared.
"""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

_PARTS = re.compile(
    r"^<!-- run in (?P<project>\w+)\s*(?::(?P<setup>.*?))?-->"
    r"|^<!-- run:(?P<hidden>.*?)-->"
    r"|^<!-- not run:(?P<reason>.*?)-->"
    r"|^(?P<indent> *)```console\n(?P<block>.*?)^ *```$",
    re.MULTILINE | re.DOTALL,
)
_ANYTHING = re.compile(r"^(?:\.\.\.|…)$|\[…\]")
_PROGRESS = re.compile(r"\[ *\d+/(\d+)\] +")
_VARIES = (
    (re.compile(r"\x1b\[[0-9;]*m"), ""),
    (re.compile(r"\b\d{4}-\d{2}-\d{2} \d{2}:\d{2}:\d{2}"), "DATE"),
    (re.compile(r"\b\d+(?:\.\d+)?(?= (?:ms|s|min|h)\b)"), "TIME"),
    (re.compile(r'"seconds": [\d.]+'), "SECONDS"),
    (re.compile(r"\b\d+(?= packages)"), "SOME"),
    (re.compile(r"\b(cpython-|==)3\.\d+\b"), r"\g<1>PYTHON"),
    (re.compile(r"https://cache\.example/epbuild|/\S*/shared-cache"), "CACHE"),
    (re.compile(r"\b(?=[a-f]*\d)[0-9a-f]{8,64}\b"), "DIGEST"),
)
"""Text that varies by machine, day or release: times, versions in an index, digests that depend on the release."""
_DROPPED = re.compile(r"^(?:ready +\d|locked +\d)")


@dataclass(frozen=True)
class Shell:
    """Lines of shell that set up a document. With a `project`, they run in a new copy of it."""

    lines: str
    project: str | None = None


@dataclass(frozen=True)
class Command:
    """One command of a document, and the output that the document shows."""

    line: int
    text: str
    shown: tuple[str, ...]


@dataclass(frozen=True)
class Unrun:
    """A block that is not run."""

    line: int
    reason: str


def parts(document: Path) -> Iterator[Shell | Command | Unrun]:
    """Yield the parts of a document that run, in order."""
    text = document.read_text(encoding="utf-8")
    reason = None
    for found in _PARTS.finditer(text):
        line = text.count("\n", 0, found.start()) + 1
        if found["project"]:
            yield Shell((found["setup"] or "").strip(), found["project"])
        elif found["hidden"] is not None:
            yield Shell(found["hidden"].strip())
        elif found["reason"] is not None:
            reason = found["reason"].strip()
        elif reason is not None:
            yield Unrun(line, reason)
            reason = None
        else:
            block = [one.removeprefix(found["indent"]) for one in found["block"].splitlines()]
            yield from _commands(block, line)


def _commands(block: Sequence[str], line: int) -> Iterator[Command]:
    """Yield the commands of a block. A command continues after a backslash or inside an open quotation."""
    text, shown, first = "", list[str](), 0
    for number, one in enumerate(block, line + 1):
        if text and (text.endswith("\\") or not _is_whole(text)):
            text = text.removesuffix("\\") + ("" if text.endswith("\\") else "\n") + one
        elif one.startswith("$ "):
            if text:
                yield Command(first, text, tuple(shown))
            text, shown, first = one[2:], [], number
        elif not text:
            raise AssertionError(f"line {number} is of a block that does not begin with a command")
        else:
            shown.append(one)
    if text:
        yield Command(first, text, tuple(shown))


def _is_whole(text: str) -> bool:
    try:
        shlex.split(text, comments=True)
    except ValueError:
        return False
    return True


def missing(shown: Sequence[str], real: str) -> list[str]:
    """Return differences between the shown and the real output.

    Shown lines must be printed. If the document omits nothing, printed lines must also be shown.
    """
    expected, printed = _comparable(shown), _comparable(real.splitlines())
    whole = not any(map(_ANYTHING.search, expected))
    steps, done = (Counter(filter(_PROGRESS.match, lines)) for lines in (expected, printed))
    wrong = [f"not printed: {one}" for one in (steps - done).elements()]
    if whole:
        wrong += [f"not shown: {one}" for one in (done - steps).elements()]
    text = " ".join(one for one in printed if not _PROGRESS.match(one))
    pieces = _pieces([one for one in expected if not _PROGRESS.match(one)])
    place = 0
    for piece in pieces:
        found = text.find(piece, place)
        if found < 0:
            wrong.append(f"not printed, or not there: {piece}")
        else:
            place = found + len(piece)
    if whole and not wrong and text != pieces[0]:
        wrong.append(f"not shown: {text.replace(pieces[0], '', 1)}")
    return wrong


def _pieces(lines: Sequence[str]) -> list[str]:
    """Return the text between omissions."""
    text = " ".join(_ANYTHING.sub("\0", one) for one in lines)
    return [piece.strip() for piece in text.split("\0")]


def _comparable(lines: Sequence[str]) -> list[str]:
    """Remove variable parts and line wraps from lines."""
    found = []
    in_times = False
    for one in lines:
        # The durations of steps and the steps in that list vary.
        in_times = bool(one.strip()) and (in_times or one.startswith("Time: "))
        if in_times or _DROPPED.match(one):
            continue
        line = _PROGRESS.sub(r"[ 1/\1] ", one)
        for pattern, instead in _VARIES:
            line = pattern.sub(instead, line)
        if line.strip():
            found.append(" ".join(line.split()))
    return found
