"""Action records: the result document of each action key.

This module does not interpret the document. A record file is one line of canonical JSON: its format, its key, the document, and the SHA-256
of the line without this digest. So every change to the line is detected, including a change of the format number. Later formats must keep
this rule.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from msgspec import Raw, Struct, json

from epbuild.cache.drafts import Drafts, touch
from epbuild.cache.entries import CacheEntry, list_files_below
from epbuild.cache.errors import NewerRecord, translate_os_errors
from epbuild.core.atomic import rename
from epbuild.core.canonical import encode_canonical, parse_json
from epbuild.core.digest import hash_bytes, hash_document
from epbuild.core.safepath import open_raw

RECORD_FORMAT = 2
"""Format number in every record file. It is incremented with every change that prevents older releases from reading new records."""

Shape = Callable[[Mapping[str, Any]], object]
"""Function that returns a false value for an invalid document."""

_T = TypeVar("_T")

_DIGEST = "sha256"

_KEY = re.compile(r"[0-9a-f]{64}")


class _Envelope(Struct, frozen=True):
    """Line of a record file. Only the format and the digest are the same in later formats."""

    format: int
    sha256: str
    key: str = ""
    record: Raw = Raw(b"")


_decoder = json.Decoder(_Envelope)


class ActionRecords:
    """Store of the records below `root`, one file per record. Any number of threads and processes may use the same root concurrently.

    A record counts as damaged if `shape` rejects its document. A use updates the mtime of the file, at most every `fresh` seconds.
    """

    def __init__(self, root: Path, shape: Shape = lambda document: True, *, fresh: float = 600.0) -> None:
        self._shape = shape
        self._fresh = fresh
        self._records = root / "actions"
        self._damaged = self._records / "damaged"
        self._drafts = Drafts(self._records / "tmp")

    def get(self, key: str) -> dict[str, Any] | None:
        """Return the latest document under `key`, or None if there is no record. A damaged record counts as missing, and is set aside.

        The call counts as a use of the record. Raises StoreError if the record exists but cannot be read.
        """
        return self.read(key, self._parse)

    def read(self, key: str, parse: Callable[[Raw], _T | None]) -> _T | None:
        """Return the result of `parse` for the JSON of the document, as `get` does. `parse` returns None for an invalid document."""
        found = self._read(key, parse)
        if found is None:
            return None
        value, used = found
        if time.time() - used > self._fresh:
            place = self.place(key)
            if not touch(place) and not place.exists():
                return None  # garbage collection has just removed it as unused
        return value

    def peek(self, key: str) -> dict[str, Any] | None:
        """Return the document, as `get` does, but do not count a use. Raises StoreError, and NewerRecord for a newer epbuild's record."""
        found = self._read(key, self._parse, refuse_newer=True)
        return None if found is None else found[0]

    def put(self, key: str, document: Mapping[str, Any]) -> None:
        """Store `document` under `key`. Raises StoreError, and ValueError or TypeError if the document is not JSON."""
        place = self.place(key)
        envelope = {"format": RECORD_FORMAT, "key": key, "record": document}
        data = f"{encode_canonical({**envelope, _DIGEST: hash_document(envelope)})}\n".encode()
        with translate_os_errors("write {}", place), self._drafts.new() as draft:
            draft.file.write(data)
            draft.publish(place)

    def entries(self) -> Iterator[CacheEntry]:
        """Yield every record, with the time of its last use. Raises StoreError."""
        with translate_os_errors("list {}", self._records):
            for path, status in list_files_below(self._records):
                if path.suffix == ".json" and _KEY.fullmatch(path.stem) and path.parent != self._damaged:
                    yield CacheEntry("record", path.stem, status.st_size, status.st_mtime_ns)

    def has(self, key: str) -> bool:
        """Return whether a record for the key exists, even if it is damaged."""
        return self.place(key).exists()

    def use(self, key: str) -> None:
        """Update the time of a record's last use, if the record exists."""
        touch(self.place(key))

    def remove(self, entry: CacheEntry) -> bool:
        """Remove a record that `entries` listed, and return whether it was removed. Raises StoreError.

        The record is kept if it was used or stored again after it was listed.
        """
        place = self.place(entry.name)
        with translate_os_errors("remove {}", place):
            return self._drafts.withdraw(place, entry.used_ns)

    def set_aside(self, key: str) -> None:
        """Move a damaged record to the folder of damaged records."""
        place = self.place(key)
        # The record counts as missing even if it cannot be moved.
        with suppress(OSError):
            self._damaged.mkdir(parents=True, exist_ok=True)
            rename(place, self._damaged / place.name)

    def sweep(self) -> None:
        """Remove the unfinished files of killed processes. Raises StoreError."""
        with translate_os_errors("clean up {}", self._records):
            self._drafts.sweep()

    def _parse(self, record: Raw) -> dict[str, Any] | None:
        document = parse_json(bytes(record))
        return document if isinstance(document, dict) and self._shape(document) else None

    def _read(self, key: str, parse: Callable[[Raw], _T | None], *, refuse_newer: bool = False) -> tuple[_T, float] | None:
        """Return the result of `parse`, and the time of the last use in Unix seconds. Return None if there is no undamaged record."""
        place = self.place(key)
        try:
            with open_raw(place) as file:
                data, used = file.readall(), os.fstat(file.fileno()).st_mtime
        except FileNotFoundError:
            return None
        except OSError:
            with translate_os_errors("read {}", place):
                raise
        with suppress(ValueError, RecursionError):  # a damaged record
            envelope = _decoder.decode(data)
            if envelope.format > RECORD_FORMAT and _is_whole(envelope, data):
                # The record is kept, as a newer epbuild can still read it.
                if refuse_newer:
                    raise NewerRecord(place, envelope.format)
                return None
            if (envelope.format, envelope.key) == (RECORD_FORMAT, key) and _is_whole(envelope, data):
                value = parse(envelope.record)
                if value is not None:
                    return value, used
        self.set_aside(key)
        return None

    def place(self, key: str) -> Path:
        """Return the path of a record, which need not exist."""
        if not _KEY.fullmatch(key):
            raise ValueError(f"invalid action key: {key!r}")
        return self._records.joinpath(key[:2], f"{key}.json")


def open_address_records(root: Path) -> ActionRecords:
    """Return the store's records of files that were downloaded without a pinned SHA-256.

    The key of a record is the digest of the file's address. The content at an address is assumed never to change.
    """
    return ActionRecords(root / "remote", lambda found: isinstance(found.get("sha256"), str))


def _is_whole(envelope: _Envelope, data: bytes) -> bool:
    """Return whether `data` is undamaged: its SHA-256 matches the digest in the envelope."""
    digest = envelope.sha256
    if not _KEY.fullmatch(digest):
        return False
    head, _, tail = data.partition(f',"{_DIGEST}":"{digest}"'.encode())
    return tail.endswith(b"}\n") and hash_bytes(head + tail[:-1]) == digest
