"""Store whose entries have the ages that a test chooses."""

from __future__ import annotations

import hashlib
import os
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from epbuild.cache.blobs import BlobStore
from epbuild.cache.collect import Collected, Limits, collect
from epbuild.cache.garbage import Needs
from epbuild.cache.records import ActionRecords
from epbuild.core.digest import Blob

DAY = 86400.0
MONTH = Limits(30 * DAY)
EVERYTHING = Limits(0)
NOTHING = Needs()


def key_of(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()


def blobs_of(record: Mapping[str, Any]) -> list[str]:
    return list(record["blobs"])


class Users:
    """Builds that use parts of the store. Each call returns the next of `needs`, and then the last again."""

    def __init__(self, *needs: Needs, read: Callable[[Mapping[str, Any]], object] = lambda record: None) -> None:
        self._needs = list(needs)
        self._read = read

    def needs(self) -> Needs:
        return self._needs.pop(0) if len(self._needs) > 1 else self._needs[0]

    def models(self) -> frozenset[str]:
        return self.needs().models

    def blobs_of(self, record: Mapping[str, Any]) -> list[str]:
        self._read(record)
        return blobs_of(record)


class AgedStore:
    """Store whose records list their blobs under `blobs`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.blobs = BlobStore(root)
        self.records = ActionRecords(root)

    def blob(self, content: str, days: float = 0.0) -> Blob:
        blob = self.add(content)
        self.age(self.blob_file(blob.digest), days)
        return blob

    def add(self, content: str) -> Blob:
        """Add a content to the store as a build does."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "content"
            path.write_text(content, encoding="utf-8", newline="")
            return self.blobs.put(path)

    def record(self, name: str, *contents: str, days: float = 0.0) -> str:
        """Record an action with blobs of the same age, and return its key."""
        blobs = [self.blob(content, days).digest for content in contents]
        self.records.put(key_of(name), {"blobs": blobs})
        self.age(self.record_file(key_of(name)), days)
        return key_of(name)

    def file(self, place: str, content: str, days: float) -> Path:
        path = self.root / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8", newline="")
        self.age(path, days)
        return path

    def collect(self, limits: Limits = MONTH, needs: Needs = NOTHING, **options: Any) -> Collected:
        return collect(self.root, limits, Users(needs), **{"now": time.time(), **options})

    def held(self) -> set[str]:
        """Return the contents of all blobs."""
        return {path.read_text(encoding="utf-8") for path in (self.root / "cas" / "sha256").rglob("*") if path.is_file()}

    def keys(self) -> set[str]:
        return {thing.name for thing in self.records.entries()}

    def blob_file(self, digest: str) -> Path:
        return self.root / "cas" / "sha256" / digest[:2] / digest

    def record_file(self, key: str) -> Path:
        return self.root / "actions" / key[:2] / f"{key}.json"

    @staticmethod
    def age(path: Path, days: float) -> None:
        then = time.time() - days * DAY
        os.utime(path, (then, then))
