"""Action records: for each action key, the document that says what the action came to. What it says is not read here."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from epbuild.canonical import canonical_json
from epbuild.store.drafts import Drafts
from epbuild.store.failures import explained

RECORD_FORMAT = 1
"""The number in every record file that changes when a reader must."""

_KEY = re.compile(r"[0-9a-f]{64}")


class ActionRecords:
    """The records below `root`, one file each. Any number of threads and processes may use one root at once."""

    def __init__(self, root: Path) -> None:
        self._records = root / "actions"
        self._damaged = self._records / "damaged"
        self._drafts = Drafts(self._records / "tmp")

    def get(self, key: str) -> dict[str, Any] | None:
        """The document that was last put under `key`, or None; a broken record counts as none, and is set aside.

        Raises StoreError when the record is there but may not be read.
        """
        place = self._place(key)
        with explained(f"read {place}"):
            try:
                data = place.read_bytes()
            except FileNotFoundError:
                return None
        try:
            envelope = json.loads(data)
        except ValueError:
            envelope = None
        if isinstance(envelope, dict) and envelope.get("format", RECORD_FORMAT) != RECORD_FORMAT:
            # Another version of epbuild may still read it, so it stays where it is.
            return None
        match envelope:
            case {"format": _, "key": written, "record": dict(document)} if written == key:
                return document
        self._set_aside(place)
        return None

    def put(self, key: str, document: Mapping[str, Any]) -> None:
        """Record `document`, which must be JSON (else ValueError or TypeError), under `key`. Raises StoreError."""
        place = self._place(key)
        envelope = {"format": RECORD_FORMAT, "key": key, "record": document}
        data = f"{canonical_json(envelope)}\n".encode()
        with explained(f"write {place}"), self._drafts.new() as draft:
            draft.file.write(data)
            draft.publish(place)

    def sweep(self) -> None:
        """Remove what killed processes left half-written, once it is a day old. Raises StoreError."""
        with explained(f"clean up {self._records}"):
            self._drafts.sweep()

    def _place(self, key: str) -> Path:
        if not _KEY.fullmatch(key):
            raise ValueError(f"not an action key: {key!r}")
        return self._records / key[:2] / f"{key}.json"

    def _set_aside(self, place: Path) -> None:
        # It counts as absent whether or not it can be moved.
        with suppress(OSError):
            self._damaged.mkdir(parents=True, exist_ok=True)
            place.replace(self._damaged / place.name)
