"""Meaning of each error code, and what to do about it."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import msgspec

_FILE = Path(__file__).parents[2] / "error_codes.toml"


class ErrorCode(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Help for an error code in Markdown. Links lead from `docs/`."""

    meaning: str
    action: str


@cache
def error_codes() -> dict[str, ErrorCode]:
    """Return the help for each code."""
    return msgspec.toml.decode(_FILE.read_bytes(), type=dict[str, ErrorCode])
