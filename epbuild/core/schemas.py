"""Where the JSON Schemas are: inside the wheel, or at the top of a checkout."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

_PACKAGE = Path(__file__).parents[1]
_FORMATS = (
    "fqdn",
    "isoduration",
    "jsonpointer",
    "rfc3339_validator",
    "rfc3986_validator",
    "rfc3987",
    "rfc3987_syntax",
    "uri_template",
    "webcolors",
)
"""What jsonschema imports, where it is installed, to check formats with."""


def import_jsonschema() -> ModuleType:
    """The package jsonschema, without its checks of formats such as IRIs and durations, which nothing here asks for.

    Where what they need is installed, as Jupyter has it, jsonschema compiles 39 grammars when it is imported (2.6 s of processor time), and
    imports a library for dates (0.05 s).
    """
    if "jsonschema" in sys.modules:
        import jsonschema

        return jsonschema
    left_out = [name for name in _FORMATS if name not in sys.modules]
    sys.modules.update(dict.fromkeys(left_out))  # type: ignore[arg-type]  # each then counts as one that is not installed
    try:
        import jsonschema
    finally:
        for name in left_out:
            del sys.modules[name]
    return jsonschema


def schema_text(name: str) -> str:
    """The text of `<name>.schema.json`, such as `recipe`; raises FileNotFoundError for a schema that does not exist."""
    file = f"{name}.schema.json"
    shipped = _PACKAGE / "_schemas" / file
    path = shipped if shipped.is_file() else _PACKAGE.parent / "schemas" / file
    return path.read_text(encoding="utf-8")


def schema(name: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(schema_text(name))
    return document
