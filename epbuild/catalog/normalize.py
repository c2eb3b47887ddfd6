"""Conversion of option values to canonical strings.

ONNX Runtime accepts any string, and EPs silently replace an invalid string with their default. This module therefore rejects
invalid values.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import TypeVar

from epbuild.catalog.entries import EpEntry
from epbuild.catalog.facts import has_matching_options
from epbuild.catalog.options import Option
from epbuild.core.errors import BadText, find_closest, suggest_nearest

_Number = TypeVar("_Number", int, float)
_TRUE = {"true", "1", "yes", "on"}
_FALSE = {"false", "0", "no", "off"}
_MAX_INTEGER_LENGTH = 20
_MAX_QUOTE_LENGTH = 60
_MAX_LISTED_VALUES = 24
_CLOSEST_VALUES = 12
"""Number of closest values in a message if there are too many values to list."""
_UNITS = {"": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "b": 1}
_SIZE = re.compile(r"([0-9]{1,20}) ?([A-Za-z]{0,3})")
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,3})?")


class BadValue(BadText):
    """Error for an invalid value of an option. The message lists the valid values, and the hint names the closest one."""


class UnknownName(BadText):
    """Error for an option or session key that is unknown, or that a recipe may not set."""

    def __init__(self, message: str, hint: str | None = None, *, reserved: bool = False) -> None:
        super().__init__(message, hint)
        self.reserved = reserved


def normalize(option: Option, value: object, *, booleans: tuple[str, str], names: Mapping[str, str], strict: bool = True) -> str:
    """Return the canonical string of `value`.

    `booleans` are the EP's strings for false and true. `names` maps spellings to canonical values. Without `strict`, unknown
    names and choices are valid, because the EP may be newer than the catalog. Raises BadValue. The text of the error completes
    the sentence "option X: ...".
    """
    text = _format_scalar(value)
    if option.type == "boolean":
        return _normalize_boolean(option, text, booleans)
    if option.type == "name":
        return _normalize_names(option, text, names, strict=strict)
    if option.type == "choice" and not strict and text.lower() not in _index_by_lower_case(option.values):
        return text
    return _NORMALIZERS[option.type](option, text)


def find_option(entry: EpEntry, name: str) -> Option:
    """Return the EP's option `name`. Raises UnknownName, which suggests the closest name."""
    if name not in entry.options:
        raise UnknownName(f"{entry.ep} has no option '{name}'", suggest_nearest(name, entry.options))
    return entry.options[name]


def find_refusals(entry: EpEntry, options: Mapping[str, str]) -> list[tuple[tuple[str, ...], str]]:
    """Return the combinations of canonical `options` that the EP rejects or misinterprets.

    Each combination is returned as the names of its options and the reason.
    """
    rows = entry.list_refusals_for(frozenset(options))
    return [((*row.when, *row.needs), row.reason) for row in rows if has_matching_options(row.when, options)]


def check_metadata(entry: EpEntry, key: str, value: str) -> None:
    """Raise BadValue if the catalog lists the metadata of the EP's devices, but not this key with this value."""
    if not entry.metadata:
        return
    if key not in entry.metadata:
        message = f"unknown key '{key}' of {entry.ep}; known keys: {', '.join(entry.metadata)}"
        raise BadValue(message, suggest_nearest(key, entry.metadata))
    values = [row.value for row in entry.metadata[key]]
    if value not in values:
        raise _make_choice_error(value, values)


def format_plain(value: object) -> str:
    """Return the string of a YAML scalar for an option without a catalog row. Booleans become `1` and `0`."""
    if isinstance(value, bool):
        return "1" if value else "0"
    return _format_scalar(value)


def _format_scalar(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value).strip()


def _quote(text: str) -> str:
    return f"'{text[:_MAX_QUOTE_LENGTH]}…'" if len(text) > _MAX_QUOTE_LENGTH else f"'{text}'"


def _make_choice_error(text: str, known: Iterable[str], aliases: Mapping[str, str] = MappingProxyType({})) -> BadValue:
    values = list(known)
    shown = ", ".join(values)
    if len(values) > _MAX_LISTED_VALUES:
        near = find_closest(text[:_MAX_QUOTE_LENGTH].upper(), values, cutoff=0)[:_CLOSEST_VALUES]
        shown = f"{', '.join(near)} and {len(values) - len(near)} others"
    meant = aliases.get(text.lower())
    hint = f"Did you mean '{meant}'?" if meant is not None else _suggest(text, values)
    return BadValue(f"{_quote(text)} is not one of {shown}", hint)


def _suggest(text: str, values: Iterable[str]) -> str | None:
    """Return a hint with the closest value, ignoring case. Return None for a long text."""
    if len(text) > _MAX_QUOTE_LENGTH:
        return None
    spellings = _index_by_lower_case(values)
    hint = suggest_nearest(text.lower(), spellings)
    return re.sub(r"'(.*)'", lambda match: f"'{spellings[match[1]]}'", hint) if hint else None


def _index_by_lower_case(values: Iterable[str]) -> dict[str, str]:
    return {value.lower(): value for value in values}


def _normalize_boolean(option: Option, text: str, booleans: tuple[str, str]) -> str:
    word = text.lower()
    if word in _TRUE:
        return booleans[1]
    if word in _FALSE:
        return booleans[0]
    raise BadValue(f"{_quote(text)} is not a boolean; write true or false")


def _normalize_path(option: Option, text: str) -> str:
    if not text or "\0" in text or "\n" in text:
        raise BadValue(f"{_quote(text)} is not a path to a {option.type}")
    return text


def _normalize_choice(option: Option, text: str) -> str:
    spellings = _index_by_lower_case(option.values)
    if text.lower() not in spellings:
        raise _make_choice_error(text, option.values, option.aliases)
    return spellings[text.lower()]


def _normalize_integer(option: Option, text: str) -> str:
    if re.fullmatch(r"[+-]?[0-9]+(\.[0-9]*)?[eE][+-]?[0-9]{1,2}", text):
        text = _expand_exponent(text)
    if not re.fullmatch(r"[+-]?[0-9]+", text):
        raise BadValue(f"{_quote(text)} is not a whole number{_describe_range(option)}")
    if len(text) > _MAX_INTEGER_LENGTH:
        raise BadValue(f"'{text[:_MAX_INTEGER_LENGTH]}…' is too large")
    return str(_check_bounds(option, int(text)))


def _expand_exponent(text: str) -> str:
    """Return a whole number such as 1e9 without an exponent. Return other numbers unchanged."""
    from decimal import Decimal

    number = Decimal(text)
    return str(int(number)) if number == number.to_integral_value() else text


def _normalize_number(option: Option, text: str) -> str:
    if not _NUMBER.fullmatch(text):
        raise BadValue(f"{_quote(text)} is not a number{_describe_range(option)}")
    number = float(text)
    if not math.isfinite(number):
        raise BadValue(f"{_quote(text)} is too large")
    _check_bounds(option, number)
    return str(int(number)) if number.is_integer() and abs(number) < 1e15 else repr(number)


def _normalize_size(option: Option, text: str) -> str:
    match = _SIZE.fullmatch(text)
    unit = match[2].lower() if match else ""
    if match is None and re.fullmatch(r"[0-9.]+[eE][0-9]{1,2}", text):
        return _normalize_integer(option, text)
    if match is None or unit not in _UNITS:
        raise BadValue(f"{_quote(text)} is not a size; write a number of bytes, or a number with KiB, MiB or GiB")
    return str(_check_bounds(option, int(match[1]) * _UNITS[unit]))


def _check_bounds(option: Option, number: _Number) -> _Number:
    if option.minimum is not None and number < option.minimum:
        raise BadValue(f"{number} is less than {_format_bound(option.minimum)}")
    if option.maximum is not None and number > option.maximum:
        raise BadValue(f"{number} is more than {_format_bound(option.maximum)}")
    return number


def _describe_range(option: Option) -> str:
    low, high = option.minimum, option.maximum
    if low is not None and high is not None:
        return f" from {_format_bound(low)} to {_format_bound(high)}"
    if low is not None:
        return f" of at least {_format_bound(low)}"
    return f" of at most {_format_bound(high)}" if high is not None else ""


def _format_bound(number: float) -> str:
    return str(int(number)) if float(number).is_integer() else repr(number)


def _normalize_names(option: Option, text: str, names: Mapping[str, str], *, strict: bool) -> str:
    """Return the comma-separated names in `text`, each replaced by its canonical value."""
    parts = [part.strip() for part in text.split(",")]
    if not all(re.fullmatch(r"[A-Za-z0-9_]+", part) for part in parts):
        raise BadValue(f"{_quote(text)} is neither a name nor a number")
    canonical = [names.get(part, names.get(part.upper(), "")) for part in parts]
    if strict and names and not all(canonical):
        unknown = parts[canonical.index("")]
        raise _make_choice_error(unknown, [name for name in names if not name.isdigit()] or names)
    return ",".join(name or part.upper() for name, part in zip(canonical, parts, strict=True))


def _normalize_list(option: Option, text: str) -> str:
    parts = [part.strip() for part in text.split(",")]
    spellings = _index_by_lower_case(option.values)
    for part in parts:
        if option.values and part.lower() not in spellings:
            raise _make_choice_error(part, option.values, option.aliases)
        if option.pattern is not None and not re.fullmatch(option.pattern, part):
            raise BadValue(f"{_quote(part)} does not have the expected form: {option.example}")
        if not part:
            raise BadValue(f"{_quote(text)} contains an empty item")
    return ",".join(spellings.get(part.lower(), part) for part in parts)


def _normalize_pattern(option: Option, text: str) -> str:
    cased = {"upper": text.upper(), "lower": text.lower(), None: text}[option.case]
    if not re.fullmatch(option.pattern or "", cased):
        hint = _suggest(text, (option.example or "").split(", "))
        raise BadValue(f"{_quote(text)} does not have the expected form: {option.example}", hint)
    return cased


_NORMALIZERS: Mapping[str, Callable[[Option, str], str]] = {
    "text": lambda _, text: text,
    "choice": _normalize_choice,
    "integer": _normalize_integer,
    "number": _normalize_number,
    "size": _normalize_size,
    "list": _normalize_list,
    "pattern": _normalize_pattern,
    "file": _normalize_path,
    "folder": _normalize_path,
}
