"""Generator of the JSON Schema of reports, from their structs and the docstrings of the fields."""

from __future__ import annotations

import ast
import inspect
import itertools
import json
import re
from collections.abc import Iterator, Mapping
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from msgspec import Struct

from epbuild.commands.reporting.values import FORMAT, Report

_PLAIN = {str: "string", int: "integer", float: "number", bool: "boolean"}


def report_schema() -> str:
    """Return the text of `schemas/report.schema.json`."""
    definitions: dict[str, Any] = {}
    root = _object(Report, definitions)
    root["properties"]["format"]["const"] = FORMAT
    head = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "https://epbuild.github.io/epbuild/schemas/report.schema.json",
        "title": "epbuild report",
    }
    return json.dumps({**head, **root, "$defs": dict(sorted(definitions.items()))}, indent=2) + "\n"


def _object(kind: type[Struct], definitions: dict[str, Any]) -> dict[str, Any]:
    hints, descriptions = get_type_hints(kind), _descriptions(kind)
    properties = {
        name: {"description": descriptions[name], **_value(hints[name], definitions)} for name in kind.__struct_fields__
    }
    return {
        "description": inspect.getdoc(kind),
        "type": "object",
        "additionalProperties": False,
        "required": list(properties),
        "properties": properties,
    }


def _value(kind: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        others = [one for one in arguments if one is not NoneType]
        if all(get_origin(one) is Literal for one in others):
            values = [value for one in others for value in get_args(one)]
            return {"enum": [*values, None] if NoneType in arguments else values}
        [one] = others
        found = _value(one, definitions)
        if "type" in found and isinstance(found["type"], str):
            return {**found, "type": [found["type"], "null"]}
        if "enum" in found:
            return {"enum": [*found["enum"], None]}
        return {"anyOf": [found, {"type": "null"}]}
    if origin is Literal:
        return {"enum": list(arguments)}
    if origin is tuple:
        return {"type": "array", "items": _value(arguments[0], definitions)}
    if origin is Mapping:
        return {"type": "object", "additionalProperties": _value(arguments[1], definitions)}
    if isinstance(kind, type) and issubclass(kind, Struct):
        name = re.sub(r"(?<!^)(?=[A-Z])", "_", kind.__name__.removeprefix("Reported")).lower()
        if name not in definitions:
            definitions[name] = None  # a type may contain itself
            definitions[name] = _object(kind, definitions)
        return {"$ref": f"#/$defs/{name}"}
    return {"type": _PLAIN[kind]}


def _descriptions(kind: type) -> dict[str, str]:
    """Return the docstring of each field."""
    [tree] = ast.parse(inspect.getsource(kind)).body
    return dict(_documented(tree.body)) if isinstance(tree, ast.ClassDef) else {}


def _documented(body: list[ast.stmt]) -> Iterator[tuple[str, str]]:
    for field, text in itertools.pairwise(body):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(text, ast.Expr):
            yield field.target.id, inspect.cleandoc(ast.literal_eval(text.value)).replace("\n", " ")
