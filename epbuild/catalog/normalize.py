"""One canonical string per option value, so that `60`, `"60"` and `sc8380xp` are one target and one key; anything else is refused.

ONNX Runtime takes strings only, and EPs read a string that they do not understand as their default, in silence: this is where it stops.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from epbuild.catalog.entries import Option

_TRUE = {"true", "1", "yes", "on"}
_FALSE = {"false", "0", "no", "off"}
_LONGEST_INTEGER = 20


class BadValue(ValueError):
    """An option's value is none that the EP understands; the text says which are."""


def normalize(option: Option, value: object, *, booleans: tuple[str, str], names: Mapping[str, str]) -> str:
    """The one string that stands for `value`.

    `booleans` are the EP's words for false and true; `names` maps other spellings of this option's values to the canonical one.
    Raises BadValue, whose text completes the sentence "option X: ...".
    """
    text = _plain(value)
    if option.type == "boolean":
        return _boolean(option, text, booleans)
    return _RULES[option.type](option, text, names)


def plain_text(value: object) -> str:
    """A YAML scalar as ONNX Runtime's option strings have it, for options that no catalog describes: booleans are `1` and `0`."""
    if isinstance(value, bool):
        return "1" if value else "0"
    return _plain(value)


def _plain(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value).strip()


def _boolean(option: Option, text: str, booleans: tuple[str, str]) -> str:
    word = text.lower()
    if word in _TRUE:
        return booleans[1]
    if word in _FALSE:
        return booleans[0]
    raise BadValue(f"'{text}' is not a switch; write true or false")


def _text(option: Option, text: str, names: Mapping[str, str]) -> str:
    return text


def _choice(option: Option, text: str, names: Mapping[str, str]) -> str:
    spellings = {value.lower(): value for value in option.values}
    if text.lower() not in spellings:
        raise BadValue(f"'{text}' is not one of {', '.join(option.values)}")
    return spellings[text.lower()]


def _integer(option: Option, text: str, names: Mapping[str, str]) -> str:
    if not re.fullmatch(r"[+-]?[0-9]+", text):
        raise BadValue(f"'{text}' is not a whole number")
    if len(text) > _LONGEST_INTEGER:
        raise BadValue(f"'{text[:_LONGEST_INTEGER]}…' is too large a number")
    number = int(text)
    if option.minimum is not None and number < option.minimum:
        raise BadValue(f"{number} is less than {option.minimum}")
    if option.maximum is not None and number > option.maximum:
        raise BadValue(f"{number} is more than {option.maximum}")
    return str(number)


def _name(option: Option, text: str, names: Mapping[str, str]) -> str:
    """Numbers become names where the table knows them, and a list stays a list; a name that the table lacks is left to the EP."""
    parts = [part.strip() for part in text.split(",")]
    if not all(re.fullmatch(r"[A-Za-z0-9_]+", part) for part in parts):
        raise BadValue(f"'{text}' is neither a name nor a number")
    return ",".join(names.get(part, part.upper()) for part in parts)


def _pattern(option: Option, text: str, names: Mapping[str, str]) -> str:
    if not re.fullmatch(option.pattern or "", text):
        raise BadValue(f"'{text}' is not of the form that it takes: {option.example}")
    return text


_RULES: Mapping[str, Callable[[Option, str, Mapping[str, str]], str]] = {
    "text": _text,
    "choice": _choice,
    "integer": _integer,
    "name": _name,
    "pattern": _pattern,
}
