"""Frozen structs and dataclasses from JSON and back. Other values are refused."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from msgspec import NODEFAULT, Struct
from msgspec.structs import fields

T = TypeVar("T")

_PLAIN = frozenset({str, int, float, bool, NoneType})


class MalformedJson(ValueError):
    """A JSON value is not what it is read as."""


class Forms(ABC):
    """How values of some types are written that mean nothing elsewhere as they are, such as paths."""

    types: tuple[type, ...]
    """The types that have a form of their own."""

    @abstractmethod
    def write(self, value: Any) -> Any:
        """A value of these types as JSON."""

    @abstractmethod
    def read(self, kind: type, value: object) -> Any:
        """What was written of a value of that type. Raises MalformedJson."""


def from_json(kind: type[T], value: object, forms: Forms | None = None) -> T:
    """A struct of a JSON object: keys that it does not know are ignored, and those with a default may be missing.

    Raises MalformedJson.
    """
    found: T = _reader(cast("Any", kind), forms)(value)
    return found


def to_json(value: object, forms: Forms | None = None) -> Any:
    """A struct as JSON: a field that has its default, other than an empty list, is left out. A named tuple is a list."""
    kind: Any = type(value)
    if kind in _PLAIN:
        return value
    if forms is not None and isinstance(value, forms.types):
        return forms.write(value)
    if isinstance(value, tuple):
        # Most of what is in lists and fields is plain: to ask that here is cheaper than a call for each.
        return [item if type(item) in _PLAIN else to_json(item, forms) for item in value]
    known = _defaults(kind)  # before the question whether it is a mapping, which takes longer
    if known is not None:
        found: dict[str, Any] = {}
        for name, default in known:
            item = getattr(value, name)
            if default is NODEFAULT or item == () or (item is not default and item != default):
                found[name] = item if type(item) in _PLAIN else to_json(item, forms)
        return found
    if isinstance(value, Mapping):
        return {name: item if type(item) in _PLAIN else to_json(item, forms) for name, item in value.items()}
    if isinstance(value, frozenset):
        return sorted(value)
    return value


@cache
def _defaults(kind: Any) -> list[tuple[str, object]] | None:
    """Return the fields of a struct or a dataclass with their defaults; None for another type."""
    if issubclass(kind, Struct):
        return [(field.name, _default(field, NODEFAULT)) for field in fields(kind)]
    if hasattr(kind, "__dataclass_fields__"):
        import dataclasses  # only actions with fields that are not compared need it

        return [(field.name, _default(field, dataclasses.MISSING)) for field in dataclasses.fields(kind)]
    return None


def _default(field: Any, missing: object) -> object:
    if field.default_factory is not missing:
        return field.default_factory()
    return field.default if field.default is not missing else NODEFAULT


@cache
def _reader(kind: Any, forms: Forms | None) -> Callable[[object], Any]:
    """What reads values of one type; made once for each, as a store has tens of thousands of them."""
    if forms is not None and kind in forms.types:
        return lambda value: forms.read(kind, value)
    if isinstance(kind, type) and _defaults(kind) is not None:
        return _object_reader(kind, forms)
    if hasattr(kind, "_fields"):
        return _list_reader(kind, forms)
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (UnionType, Union):
        return _union_reader([_reader(item, forms) for item in arguments if item is not NoneType], NoneType in arguments)
    if origin is tuple and arguments[-1] is not ...:
        readers = [_reader(item, forms) for item in arguments]
        return lambda value: tuple(read(item) for read, item in _paired(readers, value, kind))
    if origin in (tuple, frozenset):
        read_item = _reader(arguments[0], forms)
        return lambda value: origin([read_item(item) for item in _checked(value, list, kind)])
    if origin is Mapping:
        read_item, plain = _reader(arguments[1], forms), arguments[1]
        return lambda value: {
            name: item if type(item) is plain else read_item(item) for name, item in _checked(value, dict, kind).items()
        }
    if kind is Any:
        return lambda value: value
    if origin is Literal:
        return lambda value: _one_of(arguments, value, kind)
    # JSON's true is an int to Python, and no number is one.
    wanted, is_flag = ((int, float) if kind is float else kind), kind is bool

    def read(value: object) -> Any:
        if type(value) is kind:
            return value
        if origin is None and isinstance(value, wanted) and isinstance(value, bool) == is_flag:
            return value
        raise MalformedJson(str(kind))

    return read


def _union_reader(readers: list[Callable[[object], Any]], may_be_none: bool) -> Callable[[object], Any]:
    *others, last = readers

    if not others:
        return lambda value: None if value is None and may_be_none else last(value)

    def read(value: object) -> Any:
        if value is None and may_be_none:
            return None
        for read_one in others:
            try:
                return read_one(value)
            except MalformedJson:
                continue
        return last(value)

    return read


def _list_reader(kind: Any, forms: Forms | None) -> Callable[[object], Any]:
    """What reads a named tuple, which is a list of its fields."""
    readers: list[Callable[[object], Any]] = []

    def read(value: object) -> Any:
        found = _checked(value, list, kind)
        if not readers:  # not before, as a type may hold itself
            hints = get_type_hints(kind)
            readers.extend(_reader(hints[name], forms) for name in kind._fields)
        return kind(*(read_field(item) for read_field, item in _paired(readers, found, kind)))

    return read


def _paired(
    readers: list[Callable[[object], Any]], value: object, kind: object
) -> Iterator[tuple[Callable[[object], Any], object]]:
    found = _checked(value, list, kind)
    if len(found) != len(readers):
        raise MalformedJson(str(kind))
    return zip(readers, found, strict=True)


def _object_reader(kind: type, forms: Forms | None) -> Callable[[object], Any]:
    required: list[tuple[str, type | None, Callable[[object], Any]]] = []
    optional: list[tuple[str, type | None, Callable[[object], Any]]] = []
    read_fields = set[str]()

    def read(value: object) -> Any:
        found = _checked(value, dict, kind)
        if not read_fields:  # not before, as a type may hold itself
            hints = get_type_hints(kind)
            for name, default in _defaults(kind) or ():
                part = name, hints[name] if hints[name] in _PLAIN else None, _reader(hints[name], forms)
                (required if default is NODEFAULT else optional).append(part)
            read_fields.update(name for name, _, _ in (*required, *optional))
        values: dict[str, Any] = {}
        for name, plain, read_field in required:
            try:
                item = found[name]
            except KeyError:
                raise MalformedJson(str(kind)) from None
            # Most of what is in records is plain, and a call for each takes longer.
            values[name] = item if type(item) is plain else read_field(item)
        for name, plain, read_field in optional:
            if name in found:
                item = found[name]
                values[name] = item if type(item) is plain else read_field(item)
        return kind(**values)

    return read


def _one_of(values: tuple[object, ...], value: object, kind: object) -> object:
    if not any(value == one and type(value) is type(one) for one in values):
        raise MalformedJson(str(kind))
    return value


def _checked(value: object, wanted: type[T], kind: object) -> T:
    if not isinstance(value, wanted):
        raise MalformedJson(str(kind))
    return value
