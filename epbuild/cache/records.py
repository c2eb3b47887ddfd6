"""Action records: the result document of each action key.

What is in the document is not read here. A record file is one line of canonical JSON: its format, its key, the document, and the SHA-256
of the line without this digest. So no bit of it can change unseen, its format's number included; every format from 2 on keeps it so.
Records of format 1 had no digest: nothing proves that they are what was written, so they count as absent, and go when they are as old as
what nobody needs.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from epbuild.cache.drafts import Drafts, touch
from epbuild.cache.entries import CacheEntry, files_below
from epbuild.cache.errors import NewerRecord, explained
from epbuild.core.atomic import rename
from epbuild.core.canonical import canonical_json
from epbuild.core.digest import digest_of, document_digest

RECORD_FORMAT = 2
"""The number in every record file that changes when a reader must."""

Shape = Callable[[Mapping[str, Any]], object]
"""What a document means to its readers; nothing that is true, where it is not of the shape that they rely on."""

_WITHOUT_DIGEST = 1  # the last format that had none
_DIGEST = "sha256"

_KEY = re.compile(r"[0-9a-f]{64}")


class ActionRecords:
    """The records below `root`, one file each. Any number of threads and processes may use one root at once.

    A record whose document is not of the `shape` counts as damaged. A use is noted as the time of the file, but not before it has been
    `fresh` for so many seconds.
    """

    def __init__(self, root: Path, shape: Shape = lambda document: True, *, fresh: float = 600.0) -> None:
        self._shape = shape
        self._fresh = fresh
        self._records = root / "actions"
        self._damaged = self._records / "damaged"
        self._drafts = Drafts(self._records / "tmp")

    def get(self, key: str) -> dict[str, Any] | None:
        """The document that was last put under `key`, or None; a damaged record counts as none, and is set aside.

        This counts as a use of the record. Raises StoreError when it is there but may not be read.
        """
        found = self.read(key)
        return None if found is None else found[0]

    def read(self, key: str) -> tuple[dict[str, Any], Any] | None:
        """What `get` gives, and what that means by the `shape` of these records."""
        found = self._read(key)
        if found is None:
            return None
        document, meaning, used = found
        place = self.place(key)
        if time.time() - used > self._fresh and not touch(place) and not place.exists():
            return None  # removed as unused, at this very moment
        return document, meaning

    def look(self, key: str) -> dict[str, Any] | None:
        """What `get` gives, without using the record. Raises StoreError, and its NewerRecord where this epbuild cannot know."""
        found = self._read(key, refuse_newer=True)
        return None if found is None else found[0]

    def put(self, key: str, document: Mapping[str, Any]) -> None:
        """Record `document`, which must be JSON (else ValueError or TypeError), under `key`. Raises StoreError."""
        place = self.place(key)
        envelope = {"format": RECORD_FORMAT, "key": key, "record": document}
        data = f"{canonical_json({**envelope, _DIGEST: document_digest(envelope)})}\n".encode()
        with explained(f"write {place}"), self._drafts.new() as draft:
            draft.file.write(data)
            draft.publish(place)

    def entries(self) -> Iterator[CacheEntry]:
        """Every record, with the time of its last use. Raises StoreError."""
        with explained(f"list {self._records}"):
            for path, status in files_below(self._records):
                if path.suffix == ".json" and _KEY.fullmatch(path.stem) and path.parent != self._damaged:
                    yield CacheEntry("record", path.stem, status.st_size, status.st_mtime_ns)

    def has(self, key: str) -> bool:
        """Whether there is a record, sound or not, under the key."""
        return self.place(key).exists()

    def use(self, key: str) -> None:
        """Note that the record, if it is there, is in use now."""
        touch(self.place(key))

    def remove(self, entry: CacheEntry) -> bool:
        """Remove a record that was listed, unless it was used or put anew since, and return whether it is gone. Raises StoreError."""
        place = self.place(entry.name)
        with explained(f"remove {place}"):
            return self._drafts.withdraw(place, entry.used_ns)

    def set_aside(self, key: str) -> None:
        """Let the record count as absent from now on."""
        place = self.place(key)
        # It counts as absent whether or not it can be moved.
        with suppress(OSError):
            self._damaged.mkdir(parents=True, exist_ok=True)
            rename(place, self._damaged / place.name)

    def sweep(self) -> None:
        """Remove what killed processes left half-written, once it is a day old. Raises StoreError."""
        with explained(f"clean up {self._records}"):
            self._drafts.sweep()

    def _read(self, key: str, *, refuse_newer: bool = False) -> tuple[dict[str, Any], Any, float] | None:
        """The document, what it means, and when the record was last used, in Unix seconds."""
        place = self.place(key)
        try:
            with place.open("rb", buffering=0) as file:
                data, used = file.readall(), os.fstat(file.fileno()).st_mtime
        except FileNotFoundError:
            return None
        except OSError:
            with explained(f"read {place}"):
                raise
        try:
            envelope = json.loads(data)
        except (ValueError, RecursionError):
            envelope = None
        match envelope:
            # Another version of epbuild may still read either, so they stay where they are.
            case {"format": int(found), **others} if found == _WITHOUT_DIGEST and _DIGEST not in others:
                return None
            case {"format": int(found)} if found > RECORD_FORMAT and _is_whole(envelope, data):
                if refuse_newer:
                    raise NewerRecord(place, found)
                return None
            case {"format": found, "key": written, "record": dict(document)} if (found, written) == (RECORD_FORMAT, key):
                if _is_whole(envelope, data) and (meaning := self._shape(document)):
                    return document, meaning, used
        self.set_aside(key)
        return None

    def place(self, key: str) -> Path:
        """The file of a record, whether or not it is there."""
        if not _KEY.fullmatch(key):
            raise ValueError(f"not an action key: {key!r}")
        return self._records.joinpath(key[:2], f"{key}.json")


def address_records(root: Path) -> ActionRecords:
    """What addresses led to that nobody pinned, each the one content for ever: records in the store at `root`, by the address's digest."""
    return ActionRecords(root / "remote", lambda found: isinstance(found.get("sha256"), str))


def _is_whole(envelope: Mapping[str, Any], data: bytes) -> bool:
    """Whether the bytes that were read are an envelope as it was written."""
    digest = envelope.get(_DIGEST)
    if not isinstance(digest, str) or not _KEY.fullmatch(digest):
        return False
    head, _, tail = data.partition(f',"{_DIGEST}":"{digest}"'.encode())
    return tail.endswith(b"}\n") and digest_of(head + tail[:-1]) == digest
