"""Rows of a catalog file as structs: one reader for every class."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from msgspec import Struct

_Row = TypeVar("_Row", bound=Struct)


def read_row(kind: type[_Row], row: Mapping[str, Any], origin: str = "", /, **given: Any) -> _Row:
    """Make a `kind` of what a row has under the names of its fields, lists as tuples; what the row lacks has the field's default.

    `origin` is that of a row which has none of its own; `given` are fields that are not in the row as they are.
    """
    values = {"origin": origin, **row, **given}
    found = {name: values[name] for name in kind.__struct_fields__ if name in values}
    return kind(**{name: tuple(value) if isinstance(value, list) else value for name, value in found.items()})
