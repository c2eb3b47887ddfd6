"""XXH3 checksums of large blobs.

Restoring verifies blobs by checksum, at twenty times the speed of SHA-256. Blobs are still named by their SHA-256, which cannot be forged.
The checksum only detects that bytes have changed since they were stored, and 128 bits of XXH3 suffice for that. A user who can write a
wrong checksum could also write a wrong record. Each checksum is a separate file. If this file is missing, the blob is
verified by its SHA-256, and the checksum is written again.
"""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

from epbuild.cache.drafts import Drafts
from epbuild.core.digest import LARGE_BYTES, Count, Hasher, ignore_count
from epbuild.core.file_use import discard
from epbuild.core.safepath import read_regular

_CHECKSUM = re.compile(r"[0-9a-f]{32}")


class Checksums:
    """Checksums of blobs of at least LARGE_BYTES, in a folder on the file system of `drafts`."""

    def __init__(self, folder: Path, drafts: Drafts) -> None:
        self._folder = folder
        self._drafts = drafts

    def get(self, digest: str) -> str | None:
        """Return the checksum of a blob, or None if it is unknown."""
        try:
            text = read_regular(self._get_path(digest)).decode("ascii")
        except (OSError, UnicodeDecodeError):
            return None
        return text if _CHECKSUM.fullmatch(text) else None

    def put(self, digest: str, checksum: str | None) -> None:
        """Store the checksum of a blob. If `checksum` is None or the store is read-only, do nothing."""
        if checksum is None or self.get(digest) == checksum:
            return
        with suppress(OSError), self._drafts.new() as draft:
            draft.file.write(checksum.encode("ascii"))
            # Not synced: if a crash leaves the file empty, it counts as missing.
            draft.publish(self._get_path(digest), durable=False)

    def forget(self, digest: str) -> None:
        """Delete the checksum of a blob, if there is one."""
        with suppress(OSError):
            discard(self._get_path(digest))

    def _get_path(self, digest: str) -> Path:
        return self._folder / digest[:2] / digest


class Check:
    """Check of the bytes passed to `hasher` against a blob's checksum, or its SHA-256 if no checksum is stored."""

    def __init__(self, checksums: Checksums, digest: str, size: int, count: Count = ignore_count) -> None:
        self._checksums = checksums
        self._digest = digest
        self._known = checksums.get(digest) if size >= LARGE_BYTES else None
        self.hasher = Hasher(digest=self._known is None, checksum=size >= LARGE_BYTES, count=count)

    def passes(self) -> bool:
        """Return whether the hashed bytes match the blob. The blob must have been read to its end."""
        if self._known is not None:
            return self.hasher.checksum == self._known
        if self.hasher.digest != self._digest:
            return False
        self._checksums.put(self._digest, self.hasher.checksum)
        return True
