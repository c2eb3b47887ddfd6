"""JSON documents as text: equal documents have equal text, and numbers are finite."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct


def encode_canonical(document: Mapping[str, Any]) -> str:
    """Return the document on one line with sorted keys and no spaces, not escaped. Raises ValueError or TypeError if it is not JSON."""
    return json.dumps(document, ensure_ascii=False, allow_nan=False, sort_keys=True, separators=(",", ":"))


def encode_indented(document: Mapping[str, Any], *, sort_keys: bool = False, ascii_only: bool = True) -> str:
    """Return the document as `json.dumps` writes it with `indent=2`, without a newline at its end.

    Raises TypeError or ValueError if it is not JSON.
    """
    # Not by msgspec: it refuses file names that are not valid Unicode.
    return json.dumps(document, indent=2, sort_keys=sort_keys, ensure_ascii=ascii_only, allow_nan=False)


def parse_json(text: str | bytes) -> Any:
    """Return the document in a JSON text. Raises ValueError, also for `NaN` and numbers such as `1e999`, and RecursionError."""
    try:
        return msgspec.json.decode(text)  # five times as fast: it saves 0.25 s when 10,000 steps are looked up
    except ValueError:  # it also refuses file names that are not valid Unicode
        return json.loads(text, parse_float=_finite, parse_constant=_finite)


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"the number {text} is not finite")
    return number


class JsonFile(Struct, frozen=True):
    """Emitted JSON file: indented UTF-8, ending with a newline."""

    document: Mapping[str, Any]
    sort_keys: bool = True
    """True if keys are sorted. Otherwise their order is significant to readers."""

    @property
    def data(self) -> bytes:
        return f"{encode_indented(self.document, sort_keys=self.sort_keys, ascii_only=False)}\n".encode()

    @property
    def identity(self) -> str:
        """SHA-256, in hex, of the document without spaces. It is equal for files with equal bytes, and faster than a digest of `data`."""
        text = json.dumps(self.document, sort_keys=self.sort_keys, ensure_ascii=False, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()
