"""`${name}` in texts: a closed set of names, `$${` for a literal `${`, and nothing that computes."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from epbuild.errors import Position, Problem, nearest
from epbuild.recipe.model import Scalar
from epbuild.recipe.problems import TEMPLATE, one_of, quoted

OUTPUT_NAMES = ("group", "target", "model", "first_model", "ep", "ep.short")
"""The names that only an emit step gives: an output's templates keep them until `substitute` is called with their values."""

MAX_TEXT = 8192
"""The length, in characters, of the longest text that a template may become."""


class TemplateError(ValueError):
    """A template that cannot be substituted: a sentence, a hint, and the unknown name where that is the reason."""

    def __init__(self, message: str, hint: str | None = None, name: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.name = name

    def problem(self, where: Position) -> Problem:
        """The error as the problem of the template that stands at `where`."""
        return Problem(TEMPLATE, self.message, where, self.hint)


def substitute(text: str, names: Mapping[str, Scalar]) -> Scalar:
    """`text` with every `${name}` replaced; a text that is one reference and nothing else becomes the value with its type.

    Raises TemplateError for a name that is not in `names`, a `${` without `}`, or a result longer than `MAX_TEXT`.
    """
    if "${" not in text:
        return text
    pieces = list(_pieces(text))
    for piece in pieces:
        if isinstance(piece, _Name):
            _check(piece.name, names)
    if len(pieces) == 1 and isinstance(pieces[0], _Name):
        return names[pieces[0].name]
    return _bounded("".join(render(names[p.name]) if isinstance(p, _Name) else p for p in pieces))


def substitute_known(text: str, names: Mapping[str, Scalar], later: Collection[str]) -> str:
    """`text` with the `names` replaced, and still a template: the references to `later` names stay, for `substitute`.

    Raises TemplateError for a name that is in neither, a `${` without `}`, or a result longer than `MAX_TEXT`.
    """
    if "${" not in text:
        return text
    done = ""
    literal = ""
    for piece in _pieces(text):
        if isinstance(piece, str):
            literal += piece
        elif piece.name not in later:
            _check(piece.name, [*names, *later])
            literal += render(names[piece.name])
        else:
            if literal.endswith("$"):
                # The two together would read as an escape when the rest is substituted.
                raise TemplateError(f"A '$' cannot stand before {quoted('${' + piece.name + '}')}.")
            done += f"{_escaped(literal)}${{{piece.name}}}"
            literal = ""
    return _bounded(done + _escaped(literal))


def render(value: Scalar) -> str:
    """A scalar as it reads inside a text: booleans as YAML writes them."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


@dataclass(frozen=True)
class _Name:
    name: str


_MARKER = re.compile(r"\$\$\{|\$\{([^}]*)\}|\$\{")


def _pieces(text: str) -> Iterator[str | _Name]:
    """The literal stretches of `text`, escapes undone, and the names it refers to, in order."""
    end = 0
    literal = ""
    for marker in _MARKER.finditer(text):
        literal += text[end : marker.start()]
        end = marker.end()
        if marker[0] == "$${":
            literal += "${"
        elif marker[1] is None:
            hint = "Close it, or write '$${' for a literal '${'."
            raise TemplateError(f"A '${{' in {quoted(text)} has no '}}'.", hint)
        else:
            if literal:
                yield literal
            literal = ""
            yield _Name(marker[1])
    literal += text[end:]
    if literal:
        yield literal


def _check(name: str, known: Collection[str]) -> None:
    if name not in known:
        allowed = f"Allowed here: {one_of(known)}."
        close = nearest(name, known)
        message = f"{quoted('${' + name + '}')} refers to an unknown name."
        raise TemplateError(message, f"{close} {allowed}" if close else allowed, name)


def _escaped(text: str) -> str:
    return text.replace("${", "$${")


def _bounded(text: str) -> str:
    if len(text) > MAX_TEXT:
        raise TemplateError(f"The text becomes longer than {MAX_TEXT:,} characters.")
    return text
