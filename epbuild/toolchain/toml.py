"""TOML as epbuild writes it: one line for a key and its value."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


def toml_line(key: Iterable[str], value: object) -> str:
    return f"{'.'.join(part if _BARE_KEY.fullmatch(part) else toml_value(part) for part in key)} = {toml_value(value)}"


def toml_value(value: object) -> str:
    """A text, a number, a truth value or a list of these: as in JSON, whose escapes TOML has, but for one that only TOML needs."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
