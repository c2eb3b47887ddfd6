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


def build_report_schema() -> str:
    """Return the text of `schemas/report.schema.json`."""
    definitions: dict[str, Any] = {}
    root = _build_object(Report, definitions)
    root["properties"]["format"]["const"] = FORMAT
    head = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "https://epbuild.github.io/epbuild/schemas/report.schema.json",
        "title": "epbuild report",
    }
    return json.dumps({**head, **root, "$defs": dict(sorted(definitions.items()))}, indent=2) + "\n"


def _build_object(kind: type[Struct], definitions: dict[str, Any]) -> dict[str, Any]:
    hints, descriptions = get_type_hints(kind), read_descriptions(kind)
    properties = {
        name: {"description": descriptions[name], **_build_value(hints[name], definitions)} for name in kind.__struct_fields__
    }
    return {
        "description": inspect.getdoc(kind),
        "type": "object",
        "additionalProperties": False,
        "required": list(properties),
        "properties": properties,
    }


def _build_value(kind: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        others = [one for one in arguments if one is not NoneType]
        if all(get_origin(one) is Literal for one in others):
            values = [value for one in others for value in get_args(one)]
            return {"enum": [*values, None] if NoneType in arguments else values}
        [one] = others
        found = _build_value(one, definitions)
        if "type" in found and isinstance(found["type"], str):
            return {**found, "type": [found["type"], "null"]}
        if "enum" in found:
            return {"enum": [*found["enum"], None]}
        return {"anyOf": [found, {"type": "null"}]}
    if origin is Literal:
        return {"enum": list(arguments)}
    if origin is tuple:
        return {"type": "array", "items": _build_value(arguments[0], definitions)}
    if origin is Mapping:
        return {"type": "object", "additionalProperties": _build_value(arguments[1], definitions)}
    if isinstance(kind, type) and issubclass(kind, Struct):
        name = re.sub(r"(?<!^)(?=[A-Z])", "_", kind.__name__.removeprefix("Reported")).lower()
        if name not in definitions:
            definitions[name] = None  # a type may contain itself
            definitions[name] = _build_object(kind, definitions)
        return {"$ref": f"#/$defs/{name}"}
    return {"type": _PLAIN[kind]}


def read_descriptions(kind: type) -> dict[str, str]:
    """Return the docstring of each field."""
    [tree] = ast.parse(inspect.getsource(kind)).body
    return dict(_find_documented(tree.body)) if isinstance(tree, ast.ClassDef) else {}


def _find_documented(body: list[ast.stmt]) -> Iterator[tuple[str, str]]:
    for field, text in itertools.pairwise(body):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(text, ast.Expr):
            yield field.target.id, inspect.cleandoc(ast.literal_eval(text.value)).replace("\n", " ")
