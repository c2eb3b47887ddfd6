"""JSON documents as bytes: equal documents are equal bytes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from json.encoder import encode_basestring, encode_basestring_ascii
from typing import Any

from msgspec import Struct

_CONSTANTS = {None: "null", True: "true", False: "false"}


def canonical_json(document: Mapping[str, Any]) -> str:
    """The document on one line: keys sorted, no spaces, text as it is. Raises ValueError or TypeError if it is not JSON."""
    return json.dumps(document, ensure_ascii=False, allow_nan=False, sort_keys=True, separators=(",", ":"))


def indented_json(document: Mapping[str, Any], *, sort_keys: bool = False, ascii_only: bool = True) -> str:
    """What `json.dumps` gives with `indent=2`, without a newline at its end, in a third of the time.

    Python's encoder in C knows no indents, and the one that does is a generator for each value. Raises TypeError for what is not JSON.
    """
    return _indented(document, "\n", encode_basestring_ascii if ascii_only else encode_basestring, sort_keys=sort_keys)


def _indented(value: Any, line: str, quoted: Callable[[str], str], *, sort_keys: bool) -> str:
    """A value whose lines begin with `line`, a newline and spaces."""
    if isinstance(value, dict):
        if not value:
            return "{}"
        deeper, items = f"{line}  ", []
        for name, item in sorted(value.items()) if sort_keys else value.items():
            kind = item.__class__  # what most are is written at once; a bool is an int of another class
            text = quoted(item) if kind is str else item if kind is int else _indented(item, deeper, quoted, sort_keys=sort_keys)
            items.append(f"{quoted(name)}: {text}")
        return f"{{{deeper}{f',{deeper}'.join(items)}{line}}}"
    if isinstance(value, (list, tuple)):
        if not value:
            return "[]"
        deeper = f"{line}  "
        items = [
            quoted(item) if item.__class__ is str else _indented(item, deeper, quoted, sort_keys=sort_keys) for item in value
        ]
        return f"[{deeper}{f',{deeper}'.join(items)}{line}]"
    if value is None or isinstance(value, bool):
        return _CONSTANTS[value]  # `json` takes twenty times as long for one
    return quoted(value) if isinstance(value, str) else json.dumps(value)


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
