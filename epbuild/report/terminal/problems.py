"""Writer of problems with their location, their hint, and the line in the file.

epbuild.yaml:14:7: error: QNNExecutionProvider has no option 'soc_modell'. Did you mean 'soc_model'? [EPB211]
   14 |       soc_modell: SM8750
      |       ^^^^^^^^^^
"""

from __future__ import annotations

import os
import re
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Literal

from epbuild.core.errors import Position, Problem, escape_controls, format_location, get_sort_key
from epbuild.core.redact import redact
from epbuild.core.safepath import resolve_links
from epbuild.core.shown import shorten_name
from epbuild.core.units import format_count
from epbuild.report.terminal.screen import DIM, get_text_width, has_colors, is_github_actions, is_screen, paint, print_line, wrap

Kind = Literal["error", "warning", "note"]

_COLORS: dict[Kind, str] = {"error": "31", "warning": "33", "note": "36"}
_MIN_GUTTER = 5
_TAB = "    "
_MAX_BYTES = 4 << 20
_MAX_EXAMPLES = 3
_MAX_TITLE = 80
"""Maximum length of the title of an annotation."""
_LINE_BREAK = re.compile("\r\n|[\n\r\x85\u2028\u2029]")  # Line breaks in YAML, which determine the line numbers of positions.
_QUOTED = re.compile(r""""(?:[^"\\]|\\.)*"?|'(?:[^']|'')*'?""")
_SUBSTITUTION = re.compile(r"\$\{[^}]*\}?")
_SPECIFIC = re.compile(r"'[^']*'|[0-9]+")
"""Names and numbers, in which warnings about the same mistake differ."""
_OPEN, _CLOSE = "[{", "]}"


class ProblemWriter:
    """Writer of problems to standard error, with location, message, hint and the underlined line.

    Under GitHub Actions, each problem is written as an annotation. Control characters and line breaks in names from models
    are escaped. Each file is read only once.
    """

    def __init__(self, *, all_warnings: bool = True) -> None:
        self._all_warnings = all_warnings
        self._lines_of = cache(_read_lines)
        self._counts: Counter[tuple[Kind, str, str]] = Counter()
        """Number of warnings by kind, code, and text without names and numbers."""

    def write(self, problems: Iterable[Problem], kind: Kind = "error", definition: Position | None = None) -> None:
        """Write the problems, sorted by location. If a step failed, its annotations point to its `definition` in the recipe."""
        color = has_colors(sys.stderr)
        for problem in sorted(problems, key=get_sort_key):
            self._write(problem, kind, color, definition)

    def warn(self, problems: Iterable[Problem], kind: Kind = "warning") -> None:
        """Write the problems, sorted by location. Unless all warnings are enabled, write only three with the same text."""
        shown = []
        for problem in sorted(problems, key=get_sort_key):
            key = kind, problem.code, _SPECIFIC.sub("", problem.message)
            self._counts[key] += 1
            if self._all_warnings or self._counts[key] <= _MAX_EXAMPLES:
                shown.append(problem)
        self.write(shown, kind)

    def write_hidden(self) -> None:
        """Write the number of problems that `warn` has hidden since the last call of this method."""
        totals, hidden = Counter[tuple[Kind, str]](), Counter[tuple[Kind, str]]()
        for (kind, code, _), count in self._counts.items():
            totals[kind, code] += count
            hidden[kind, code] += max(0, count - _MAX_EXAMPLES)
        for (kind, code), count in hidden.items():
            if count and not self._all_warnings:
                more = format_count(count, f"more {kind}")
                sys.stderr.write(f"epbuild: {more} like these [{code}]; --all-warnings shows all {totals[kind, code]}\n")
        self._counts.clear()

    def _write(self, problem: Problem, kind: Kind, color: bool, definition: Position | None) -> None:
        stream = sys.stderr
        if is_github_actions():
            stream.write(f"{_format_annotation(problem, kind, definition)}\n")
        else:
            place = f"{escape_controls(format_location(problem.where))}: " if problem.where is not None else "epbuild: "
            text = f"{place}{kind}: {escape_controls(problem.text)} [{problem.code}]"
            # Outside of a terminal, a problem is one line, so that users can search for it.
            first, *others = wrap(text, others="  ") if is_screen(stream) else [text]
            if first.startswith(f"{place}{kind}:"):
                first = f"{place}{paint(f'{kind}:', _COLORS[kind], color)}{first.removeprefix(f'{place}{kind}:')}"
            for part in (first, *others):
                print_line(part, stream)
        if isinstance(problem.where, Position):
            line = _find_line(problem.where, self._lines_of(problem.where.file))
            if line is None:
                return
            gutter, shown, carets = format_excerpt(line, problem.where, getattr(stream, "encoding", None))
            bar, below, added = (paint(f"{sign:>{len(gutter)}} |", DIM, color) for sign in (gutter, "", "+"))
            print_line(f"{bar} {shown}".rstrip(), stream)
            print_line(f"{below} {paint(carets, _COLORS[kind], color)}", stream)
            for addition in problem.lines:
                print_line(f"{added} {'':{problem.where.column + 1}}{addition}", stream)


def print_problems(problems: Iterable[Problem], kind: Kind = "error") -> None:
    """Write all problems to standard error, sorted by location."""
    ProblemWriter().write(problems, kind)


def print_warnings(problems: Iterable[Problem], kind: Kind = "warning", *, all_warnings: bool) -> None:
    """Write warnings or notes to standard error. Without `all_warnings`, write three with the same text, and count the others."""
    writer = ProblemWriter(all_warnings=all_warnings)
    writer.warn(problems, kind)
    writer.write_hidden()


def print_errors(problems: Sequence[Problem]) -> None:
    """Write all errors to standard error. If an error has a position in a file, also write the number of errors."""
    print_problems(problems)
    if any(isinstance(problem.where, Position) for problem in problems):
        sys.stderr.write(f"{len(problems)} error{'' if len(problems) == 1 else 's'}\n")


def format_excerpt(line: str, where: Position, encoding: str | None = None) -> tuple[str, str, str]:
    """Return the line number, the part of the line that fits on a terminal, and carets below the word at the position.

    Characters that `encoding` cannot represent are escaped.
    """
    start = min(where.column - 1, len(line))
    end = max(_find_word_end(line, start), start + 1)
    gutter = f"{where.line:>{_MIN_GUTTER}}"
    width = get_text_width()
    room = width - len(gutter) - len(" | ")
    # Process only the part that can be shown, because lines can be very long.
    first, last = max(0, start - width), min(len(line), start + width)
    cells = [_format_character(character, encoding) for character in line[first:last]]
    start, end = start - first, min(end, last + 1) - first
    before, after = _choose_ellipsis(encoding, first > 0), _choose_ellipsis(encoding, last < len(line))
    # A position after the last character needs space for its caret.
    needed = max(_measure_width(cells[:end]), _measure_width(cells[:start]) + 1)
    if len(before) + needed + len(_choose_ellipsis(encoding, end < len(cells))) > room:
        # Leave a third of the space to the text before the position.
        while start > 0 and _measure_width(cells[:start]) > room // 3:
            cells, start, end = cells[1:], start - 1, end - 1
            before = _choose_ellipsis(encoding, True)
    while cells and len(before) + _measure_width(cells) + len(after) > room:
        cells = cells[:-1]
        after = _choose_ellipsis(encoding, True)
    offset = len(before) + _measure_width(cells[:start])
    carets = min(max(_measure_width(cells[start:end]), 1), room - offset)
    return gutter, before + "".join(shown for shown, _ in cells) + after, " " * offset + "^" * carets


def _find_line(where: Position, lines: Sequence[str]) -> str | None:
    """Return the line at a position, or None if the line can no longer be read."""
    return redact(lines[where.line - 1]) if 0 < where.line <= len(lines) and where.column > 0 else None


def _read_lines(file_name: str) -> list[str]:
    path = Path(file_name)
    try:
        if not path.is_file():  # Reading a pipe would block.
            return []
        if path.is_symlink() and not resolve_links(path).is_relative_to(resolve_links(path.parent)):
            return []  # A link in an untrusted checkout can point to a user's secrets.
        with path.open("rb") as file:
            text = file.read(_MAX_BYTES).decode("utf-8-sig", errors="replace")
    except (OSError, ValueError):
        return []
    return _LINE_BREAK.split(text)


def _find_word_end(line: str, start: int) -> int:
    """Return the end, within this line, of the YAML key, scalar or collection that begins at `start`."""
    before = line[start - 1 : start]
    if (inside := _SUBSTITUTION.match(line, start)) and before and not before.isspace() and before not in _OPEN + ",\"'":
        return inside.end()
    if quoted := _QUOTED.match(line, start):
        return quoted.end()
    if line[start : start + 1] and line[start] in _OPEN:
        return _find_collection_end(line, start)
    in_flow = _count_open_brackets(line[:start]) > 0
    at = start
    while at < len(line):
        if substitution := _SUBSTITUTION.match(line, at):
            at = substitution.end()
            continue
        character, following = line[at], line[at + 1 : at + 2]
        ends = following == "" or following.isspace()
        if (
            (character == ":" and (ends or (in_flow and following in _CLOSE + ",")))
            or (character == "," and (ends or in_flow))
            or (character == "#" and line[at - 1 : at].isspace())
            or character in _CLOSE
        ):
            break
        at += 1
    return start + len(line[start:at].rstrip())


def _find_collection_end(line: str, start: int) -> int:
    at, depth = start, 0
    while at < len(line):
        if skipped := _SUBSTITUTION.match(line, at) or _QUOTED.match(line, at):
            at = skipped.end()
            continue
        depth += (line[at] in _OPEN) - (line[at] in _CLOSE)
        at += 1
        if depth == 0:
            return at
    return len(line.rstrip())


def _count_open_brackets(text: str) -> int:
    """Return the number of brackets that are still open at the end of `text`."""
    bare = _QUOTED.sub("", _SUBSTITUTION.sub("", text))
    return sum(bare.count(character) for character in _OPEN) - sum(bare.count(character) for character in _CLOSE)


def _format_character(character: str, encoding: str | None) -> tuple[str, int]:
    """Return the printable form of a character, and its width. Control characters are escaped."""
    if character == "\t":
        return _TAB, len(_TAB)
    if not character.isprintable() or not _is_encodable(character, encoding):
        spelled = character.encode("unicode_escape").decode("ascii")
        return spelled, len(spelled)
    if character.isascii():
        return character, 1
    import unicodedata  # Import late, because most messages are ASCII.

    if unicodedata.category(character) in {"Mn", "Me"}:
        return character, 0
    return character, 2 if unicodedata.east_asian_width(character) in "WF" else 1


def _is_encodable(character: str, encoding: str | None) -> bool:
    try:
        character.encode(encoding or "utf-8")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def _measure_width(cells: Sequence[tuple[str, int]]) -> int:
    return sum(width for _, width in cells)


def _choose_ellipsis(encoding: str | None, needed: bool) -> str:
    if not needed:
        return ""
    return "…" if _is_encodable("…", encoding) else "..."


def _format_annotation(problem: Problem, kind: Kind, definition: Position | None) -> str:
    # https://docs.github.com/actions/reference/workflow-commands-for-github-actions
    where = problem.where
    properties: dict[str, object] = {}
    if isinstance(where, Position):
        properties = {"file": _make_relative_to_repository(where.file), "line": where.line, "col": where.column}
    elif isinstance(where, Path):
        properties = {"file": _make_relative_to_repository(str(where))}
    elif where is not None:
        if definition is not None:
            properties = {"file": _make_relative_to_repository(definition.file), "line": definition.line}
        properties["title"] = shorten_name(str(where), _MAX_TITLE)
    escaped = {name: _escape(str(value)).replace(":", "%3A").replace(",", "%2C") for name, value in properties.items()}
    listed = ",".join(f"{name}={value}" for name, value in escaped.items())
    command = "notice" if kind == "note" else kind
    return f"::{command}{f' {listed}' if listed else ''}::{_escape(problem.text)} [{problem.code}]"


def _make_relative_to_repository(file: str) -> str:
    """Return a path relative to the repository root, as annotations require."""
    root = os.environ.get("GITHUB_WORKSPACE")
    if root:
        with suppress(ValueError, OSError):
            path = Path(file)
            return (path.parent.resolve() / path.name).relative_to(Path(root).resolve()).as_posix()
    return file.replace(os.sep, "/")


def _escape(text: str) -> str:
    return escape_controls(text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A"))
