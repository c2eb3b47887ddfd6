"""JSON documents as bytes: equal documents are equal bytes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct


def canonical_json(document: Mapping[str, Any]) -> str:
    """The document on one line: keys sorted, no spaces, text as it is. Raises ValueError or TypeError if it is not JSON."""
    return json.dumps(document, ensure_ascii=False, allow_nan=False, sort_keys=True, separators=(",", ":"))


def indented_json(document: Mapping[str, Any], *, sort_keys: bool = False, ascii_only: bool = True) -> str:
    """Return the document as `json.dumps` writes it with `indent=2`, without a newline at its end.

    Raises TypeError or ValueError if it is not JSON.
    """
    # `json.dumps` is several times slower with an indent. Formatting changes nothing but spaces.
    return msgspec.json.format(json.dumps(document, sort_keys=sort_keys, ensure_ascii=ascii_only), indent=2)


class JsonFile(Struct, frozen=True):
    """A document as every file that epbuild emits has it: indented UTF-8 JSON, ending in a newline."""

    document: Mapping[str, Any]
    sort_keys: bool = True
    """Whether its keys are sorted; otherwise their order is the document's, and means something to readers."""

    @property
    def data(self) -> bytes:
        return f"{indented_json(self.document, sort_keys=self.sort_keys, ascii_only=False)}\n".encode()

    @property
    def identity(self) -> str:
        """The SHA-256 of the document without its spaces, in hexadecimal: two files have one exactly when they have the same bytes.

        It takes less time than `data`, since Python's encoder in C does it.
        """
        text = json.dumps(self.document, sort_keys=self.sort_keys, ensure_ascii=False, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()
