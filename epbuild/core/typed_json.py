"""Frozen dataclasses from JSON and back, refused where a value does not fit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, TypeVar, cast, get_args, get_origin, get_type_hints

T = TypeVar("T")

_PLAIN = frozenset({str, int, float, bool, NoneType})


class MalformedJson(ValueError):
    """A JSON value is not what it is read as."""


def from_json(kind: type[T], value: object) -> T:
    """A dataclass of a JSON object: keys that it does not know are ignored, and those with a default may be missing.

    Raises MalformedJson.
    """
    found: T = _reader(cast("Any", kind))(value)
    return found


def to_json(value: object) -> Any:
    """A dataclass as JSON: a field that has its default, other than an empty list, is left out."""
    kind: Any = type(value)
    if kind in _PLAIN:
        return value
    if isinstance(value, tuple):
        return [to_json(item) for item in value]
    if isinstance(value, Mapping):
        return {name: to_json(item) for name, item in value.items()}
    known = _defaults(kind)
    if known is None:
        return value
    return {name: to_json(item) for name, default in known if (item := getattr(value, name)) == () or item != default}


@cache
def _defaults(kind: Any) -> list[tuple[str, object]] | None:
    """The fields of a dataclass with their defaults; None for another type."""
    return [(field.name, _default(field)) for field in fields(kind)] if is_dataclass(kind) else None


def _default(field: Any) -> object:
    return field.default_factory() if field.default_factory is not MISSING else field.default


@cache
def _reader(kind: Any) -> Callable[[object], Any]:
    """What reads values of one type; made once for each, as a store has tens of thousands of them."""
    if is_dataclass(kind):
        return _object_reader(kind)  # type: ignore[arg-type]
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is UnionType:
        read_one, may_be_none = _reader(arguments[0]), NoneType in arguments
        return lambda value: None if value is None and may_be_none else read_one(value)
    if origin is tuple:
        read_item = _reader(arguments[0])
        return lambda value: tuple(map(read_item, _checked(value, list, kind)))
    if origin is Mapping:
        read_item = _reader(arguments[1])
        return lambda value: {name: read_item(item) for name, item in _checked(value, dict, kind).items()}
    if kind is Any:
        return lambda value: value
    # JSON's true is an int to Python, and no number is one.
    wanted, is_flag = ((int, float) if kind is float else kind), kind is bool

    def read(value: object) -> Any:
        if type(value) is kind:
            return value
        if origin is None and isinstance(value, wanted) and isinstance(value, bool) == is_flag:
            return value
        raise MalformedJson(str(kind))

    return read


def _object_reader(kind: type) -> Callable[[object], Any]:
    hints, readers, required = get_type_hints(kind), dict[str, Callable[[object], Any]](), set[str]()

    def read(value: object) -> Any:
        found = _checked(value, dict, kind)
        if not readers:  # not before, as a type may hold itself
            readers.update({field.name: _reader(hints[field.name]) for field in fields(kind)})
            required.update(field.name for field in fields(kind) if _default(field) is MISSING)
        if not found.keys() >= required:
            raise MalformedJson(str(kind))
        return kind(**{name: read_field(found[name]) for name, read_field in readers.items() if name in found})

    return read


def _checked(value: object, wanted: type[T], kind: object) -> T:
    if not isinstance(value, wanted):
        raise MalformedJson(str(kind))
    return value
