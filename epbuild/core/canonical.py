"""One way to write a JSON document, so that equal documents are equal bytes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def canonical_json(document: Mapping[str, Any]) -> str:
    """The document on one line: keys sorted, no spaces, text as it is. Raises ValueError or TypeError if it is not JSON."""
    return json.dumps(document, ensure_ascii=False, allow_nan=False, sort_keys=True, separators=(",", ":"))
