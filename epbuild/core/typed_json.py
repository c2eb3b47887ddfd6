"""Frozen dataclasses from JSON and back, refused where a value does not fit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

T = TypeVar("T")


class MalformedJson(ValueError):
    """A JSON value is not what it is read as."""


def from_json(kind: type[T], value: object) -> T:
    """A dataclass of a JSON object: keys that it does not know are ignored, and those with a default may be missing.

    Raises MalformedJson.
    """
    found: T = _read(kind, value)
    return found


def to_json(value: object) -> Any:
    """A dataclass as JSON: a field that has its default, other than an empty list, is left out."""
    if is_dataclass(value) and not isinstance(value, type):
        known = ((field, getattr(value, field.name)) for field in fields(value))
        return {field.name: to_json(item) for field, item in known if item == () or item != _default(field)}
    if isinstance(value, Mapping):
        return {name: to_json(item) for name, item in value.items()}
    return [to_json(item) for item in value] if isinstance(value, tuple) else value


def _default(field: Any) -> object:
    return field.default_factory() if field.default_factory is not MISSING else field.default


@cache
def _hints(kind: type) -> Mapping[str, tuple[Any, bool]]:
    """The type of each field, and whether it must be there."""
    hints = get_type_hints(kind)
    return {
        field.name: (hints[field.name], field.default is MISSING and field.default_factory is MISSING) for field in fields(kind)
    }


def _read(kind: Any, value: object) -> Any:
    if is_dataclass(kind) and isinstance(value, dict):
        hints = _hints(kind)  # type: ignore[arg-type]
        if any(required and name not in value for name, (_, required) in hints.items()):
            raise MalformedJson(str(kind))
        return kind(**{name: _read(hint, value[name]) for name, (hint, _) in hints.items() if name in value})  # type: ignore[operator]
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is UnionType:
        return None if value is None and NoneType in arguments else _read(arguments[0], value)
    if origin is tuple and isinstance(value, list):
        return tuple(_read(arguments[0], item) for item in value)
    if origin is Mapping and isinstance(value, dict):
        return {name: _read(arguments[1], item) for name, item in value.items()}
    if kind is Any:
        return value
    # JSON's true is an int to Python, and no number is one.
    wanted = (int, float) if kind is float else kind
    if origin is None and not is_dataclass(kind) and isinstance(value, wanted) and isinstance(value, bool) == (kind is bool):
        return value
    raise MalformedJson(str(kind))
