"""Reader of epbuild's JSON Schemas, from the installed package or from a checkout."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

_PACKAGE = Path(__file__).parents[1]


def read_schema_text(name: str) -> str:
    """Return the text of `<name>.schema.json`, where `name` is, for example, `recipe`. Raises FileNotFoundError."""
    file = f"{name}.schema.json"
    shipped = _PACKAGE / "_schemas" / file
    path = shipped if shipped.is_file() else _PACKAGE.parent / "schemas" / file
    return path.read_text(encoding="utf-8")


def read_schema(name: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(read_schema_text(name))
    return document
