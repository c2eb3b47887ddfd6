"""Checksums of large blobs, found along with their SHA-256.

What leaves the store is checked by them, at twenty times the speed. A blob's name stays its SHA-256, which nobody can forge. A checksum
answers a smaller question: are these still the bytes that were named when they were stored? For that 128 bits of XXH3 are as good; a user
who could write a wrong one beside a blob could as well write a wrong record. It lies in a file of its own and may be missing: then the
SHA-256 decides, and the checksum is noted again.
"""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

from epbuild.cache.drafts import Drafts, discard
from epbuild.core.digest import LARGE_BYTES, Reading

_CHECKSUM = re.compile(r"[0-9a-f]{32}")


class Checksums:
    """The checksums of blobs of at least LARGE_BYTES, in a folder on the file system of the `drafts`."""

    def __init__(self, folder: Path, drafts: Drafts) -> None:
        self._folder = folder
        self._drafts = drafts

    def of(self, digest: str) -> str | None:
        try:
            text = self._place(digest).read_text(encoding="ascii")
        except (OSError, UnicodeDecodeError):
            return None
        return text if _CHECKSUM.fullmatch(text) else None

    def note(self, digest: str, checksum: str | None) -> None:
        """Keep the checksum of that blob, if there is one; in a store that this user may only read, nothing is kept."""
        if checksum is None or self.of(digest) == checksum:
            return
        with suppress(OSError), self._drafts.new() as draft:
            draft.file.write(checksum.encode("ascii"))
            # One that a crash leaves empty counts as none: it is not worth waiting for the disk.
            draft.publish(self._place(digest), durable=False)

    def forget(self, digest: str) -> None:
        with suppress(OSError):
            discard(self._place(digest))

    def _place(self, digest: str) -> Path:
        return self._folder / digest[:2] / digest


class Check:
    """Whether what its `reading` is given is the blob of that digest, of so many bytes: judged by the checksum, else by the SHA-256."""

    def __init__(self, checksums: Checksums, digest: str, size: int) -> None:
        self._checksums = checksums
        self._digest = digest
        self._known = checksums.of(digest) if size >= LARGE_BYTES else None
        self.reading = Reading(digest=self._known is None, checksum=size >= LARGE_BYTES)

    def passed(self) -> bool:
        """Whether all that was read is the blob; by then it has to be read to its end."""
        if self._known is not None:
            return self.reading.checksum == self._known
        if self.reading.digest != self._digest:
            return False
        self._checksums.note(self._digest, self.reading.checksum)
        return True
