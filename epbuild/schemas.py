"""Where the JSON Schemas are: inside the wheel, or at the top of a checkout."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

_PACKAGE = Path(__file__).parent
_GRAMMARS = "rfc3987_syntax"


def import_jsonschema() -> ModuleType:
    """The package jsonschema, without its check of IRIs, which no schema here asks for.

    Where that is installed, as Jupyter has it, jsonschema compiles 39 grammars when it is imported: 2.6 s of processor time.
    """
    if "jsonschema" not in sys.modules and _GRAMMARS not in sys.modules:
        sys.modules[_GRAMMARS] = None  # type: ignore[assignment]  # it then counts as one that is not installed
        try:
            import jsonschema
        finally:
            del sys.modules[_GRAMMARS]
    import jsonschema

    return jsonschema


def schema_text(name: str) -> str:
    """The text of `<name>.schema.json`, such as `recipe`; raises FileNotFoundError for a schema that does not exist."""
    file = f"{name}.schema.json"
    shipped = _PACKAGE / "_schemas" / file
    path = shipped if shipped.is_file() else _PACKAGE.parent / "schemas" / file
    return path.read_text(encoding="utf-8")


def schema(name: str) -> dict[str, Any]:
    """`<name>.schema.json`, parsed."""
    document: dict[str, Any] = json.loads(schema_text(name))
    return document
