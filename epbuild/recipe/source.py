"""Reader of a recipe's YAML text."""

from __future__ import annotations

import codecs
import re
from typing import TYPE_CHECKING, Any

from epbuild.core.errors import Position, Problem, RecipeError
from epbuild.recipe.problems import SYNTAX, TOO_LARGE, format_code_point

if TYPE_CHECKING:
    import yaml

    from epbuild.recipe.events import ReadText

MAX_BYTES = 1 << 20
"""Maximum size of a recipe file."""


def read(content: bytes, file: str) -> ReadText:
    """Parse a recipe into nodes. `file` is the file name in the positions of the nodes.

    Raises RecipeError if the text is not a single YAML mapping, or if it is too large.
    """
    if len(content) > MAX_BYTES:
        problem = Problem(TOO_LARGE, f"the recipe is too large: at most {MAX_BYTES:,} bytes are allowed", Position(file, 1, 1))
        raise RecipeError(problem)
    return _parse(_decode(content, file), file)


def _decode(content: bytes, file: str) -> str:
    body = content.removeprefix(codecs.BOM_UTF8)
    hint = "Save the file as UTF-8."
    if body.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        problem = Problem(SYNTAX, "the recipe is encoded as UTF-16", Position(file, 1, 1), hint)
        raise RecipeError(problem)
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        where = _find_end(body[: error.start].decode("utf-8"), file)
        problem = Problem(SYNTAX, f"the byte 0x{body[error.start]:02X} is not valid UTF-8", where, hint)
        raise RecipeError(problem) from None
    from yaml.reader import Reader  # imported here because yaml is slow to import

    if control := Reader.NON_PRINTABLE.search(text):
        where = _find_end(text[: control.start()], file)
        problem = Problem(SYNTAX, f"the control character {format_code_point(control[0])} is not allowed in YAML", where)
        raise RecipeError(problem)
    return text


LINE_BREAK = re.compile("\r\n|[\n\r\x85\u2028\u2029]")
"""Line breaks of YAML 1.1."""


def _find_end(text: str, file: str) -> Position:
    lines = LINE_BREAK.split(text)
    return Position(file, len(lines), len(lines[-1]) + 1)


def _parse(text: str, file: str) -> ReadText:
    import yaml

    from epbuild.recipe.events import EventReader  # imported here because it imports yaml

    loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        return EventReader(yaml.parse(text, Loader=loader), file).read_text()
    except yaml.MarkedYAMLError as error:
        raise RecipeError(_convert_error(error, text, file)) from None
    except (yaml.YAMLError, ValueError, OverflowError) as error:
        # PyYAML raises some errors without a mark. An example is the escape "\UFFFFFFFF" in its pure Python scanner.
        problem = Problem(SYNTAX, f"invalid YAML: {error}", Position(file, 1, 1))
        raise RecipeError(problem) from None


def _convert_error(error: yaml.MarkedYAMLError, text: str, file: str) -> Problem:
    """Convert an error of PyYAML to a one-sentence problem at the likely position of the mistake."""
    mark, start = error.problem_mark, error.context_mark
    what = error.problem or "it cannot be parsed"
    if mark is None:
        return Problem(SYNTAX, f"invalid YAML: {what}", Position(file, 1, 1))
    where = Position(file, mark.line + 1, mark.column + 1)
    found = text[mark.index : mark.index + 1]
    if found == "\t":
        return Problem(SYNTAX, "YAML cannot be indented with tabs", where, "Use spaces.")
    if found == "{" and text[: mark.index].endswith("$"):
        hint = 'Put "${...}" in quotes inside [...] or {...}.'
        return Problem(SYNTAX, "'{' is not allowed after an unquoted '$' here", where, hint)
    if "cannot start any token" in what:
        return Problem(SYNTAX, f"unquoted text cannot start with '{found}'", where, "Put it in quotes.")
    if what.startswith("mapping values are not allowed"):
        hint = "Check the indentation and the line above, or put text that contains ': ' in quotes."
        return Problem(SYNTAX, "':' is not allowed here", where, hint)
    if start is not None and what.startswith("could not find expected ':'"):
        where = Position(file, start.line + 1, start.column + 1)
        return Problem(SYNTAX, "missing ':' after this key", where)
    end = len(text.rstrip())
    if start is not None and start.index < end <= mark.index:
        where = Position(file, start.line + 1, start.column + 1)
        return Problem(SYNTAX, "unclosed bracket or quote", where, "Close the bracket or the quote.")
    if end <= mark.index:
        return Problem(SYNTAX, "unexpected end of the recipe", _find_end(text[:end], file), "Close the bracket or the quote.")
    context = f" {error.context}" if error.context else ""
    since = f" (from line {start.line + 1})" if start is not None and start.line != mark.line else ""
    return Problem(SYNTAX, f"invalid YAML: {what}{context}{since}", where)
