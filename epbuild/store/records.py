"""Action records: for each action key, the document that says what the action came to. What it says is not read here."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from epbuild.canonical import canonical_json
from epbuild.store.drafts import Drafts, touch
from epbuild.store.failures import NewerRecord, explained
from epbuild.store.things import Thing, files_below

RECORD_FORMAT = 1
"""The number in every record file that changes when a reader must."""

_FRESH_SECONDS = 600  # a use is noted as the time of the file, but not more often than this

_KEY = re.compile(r"[0-9a-f]{64}")


class ActionRecords:
    """The records below `root`, one file each. Any number of threads and processes may use one root at once."""

    def __init__(self, root: Path) -> None:
        self._records = root / "actions"
        self._damaged = self._records / "damaged"
        self._drafts = Drafts(self._records / "tmp")

    def get(self, key: str) -> dict[str, Any] | None:
        """The document that was last put under `key`, or None; a broken record counts as none, and is set aside.

        This counts as a use of the record. Raises StoreError when it is there but may not be read.
        """
        found = self._read(key)
        if found is None:
            return None
        document, used = found
        place = self._place(key)
        if time.time() - used > _FRESH_SECONDS and not touch(place) and not place.exists():
            return None  # removed as unused, at this very moment
        return document

    def look(self, key: str) -> dict[str, Any] | None:
        """What `get` gives, without using the record. Raises StoreError, and its NewerRecord where this epbuild cannot tell."""
        found = self._read(key, refuse_newer=True)
        return None if found is None else found[0]

    def put(self, key: str, document: Mapping[str, Any]) -> None:
        """Record `document`, which must be JSON (else ValueError or TypeError), under `key`. Raises StoreError."""
        place = self._place(key)
        envelope = {"format": RECORD_FORMAT, "key": key, "record": document}
        data = f"{canonical_json(envelope)}\n".encode()
        with explained(f"write {place}"), self._drafts.new() as draft:
            draft.file.write(data)
            draft.publish(place)

    def things(self) -> Iterator[Thing]:
        """Every record, with the time of its last use. Raises StoreError."""
        with explained(f"list {self._records}"):
            for path, status in files_below(self._records):
                if path.suffix == ".json" and _KEY.fullmatch(path.stem) and path.parent != self._damaged:
                    yield Thing("record", path.stem, status.st_size, status.st_mtime_ns)

    def has(self, key: str) -> bool:
        """Whether there is a record, sound or not, under the key."""
        return self._place(key).exists()

    def use(self, key: str) -> None:
        """Note that the record, if it is there, is in use now."""
        touch(self._place(key))

    def remove(self, thing: Thing) -> bool:
        """Remove a record that was listed, unless it was used or put anew since; says whether it is gone. Raises StoreError."""
        place = self._place(thing.name)
        with explained(f"remove {place}"):
            return self._drafts.withdraw(place, thing.used_ns)

    def set_aside(self, key: str) -> None:
        """Let the record count as absent from now on."""
        self._set_aside(self._place(key))

    def sweep(self) -> None:
        """Remove what killed processes left half-written, once it is a day old. Raises StoreError."""
        with explained(f"clean up {self._records}"):
            self._drafts.sweep()

    def _read(self, key: str, *, refuse_newer: bool = False) -> tuple[dict[str, Any], float] | None:
        """The document and when the record was last used, in Unix seconds."""
        place = self._place(key)
        with explained(f"read {place}"):
            try:
                with place.open("rb") as file:
                    data, used = file.read(), os.fstat(file.fileno()).st_mtime
            except FileNotFoundError:
                return None
        try:
            envelope = json.loads(data)
        except ValueError:
            envelope = None
        match envelope:
            case {"format": found} if found != RECORD_FORMAT:
                if refuse_newer and isinstance(found, int) and found > RECORD_FORMAT:
                    raise NewerRecord(place, found)
                # Another version of epbuild may still read it, so it stays where it is.
                return None
            case {"format": _, "key": written, "record": dict(document)} if written == key:
                return document, used
        self._set_aside(place)
        return None

    def _place(self, key: str) -> Path:
        if not _KEY.fullmatch(key):
            raise ValueError(f"not an action key: {key!r}")
        return self._records / key[:2] / f"{key}.json"

    def _set_aside(self, place: Path) -> None:
        # It counts as absent whether or not it can be moved.
        with suppress(OSError):
            self._damaged.mkdir(parents=True, exist_ok=True)
            place.replace(self._damaged / place.name)
