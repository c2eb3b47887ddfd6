"""Payloads: the bytes of a context, in a file of its own or embedded, as a stream."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

from epbuild.cache.digests import Count
from epbuild.core.digest import part_digest
from epbuild.core.safepath import open_regular
from epbuild.onnxfile.read.epcontext import EPContextNode, resolve

_CHUNK = 1 << 20
_LONGEST_MATCH = 4096


class Payload(Struct, frozen=True):
    """`size` bytes of the file `path` from `start` on. Reading them raises OSError."""

    path: Path
    start: int
    size: int

    @classmethod
    def whole(cls, path: Path) -> Payload:
        return cls(path, 0, path.stat().st_size)

    @classmethod
    def of(cls, model: Path, node: EPContextNode) -> Payload | None:
        """The context that a node of a model holds or refers to; None: it leaves that to another node. Raises BadReference, OSError."""
        if node.reference is not None:
            return cls.whole(resolve(model, node))
        return cls(model, *node.payload) if node.payload is not None else None

    def read(self) -> bytes:
        return b"".join(self._chunks())

    def sha256(self, count: Count = lambda size: None) -> str:
        """Return the digest of the bytes; `count` gets the size of each piece."""
        with open_regular(self.path) as file:
            return part_digest(file, self.start, self.size, count).digest

    def begins_with(self, magic: bytes) -> bool:
        with open_regular(self.path) as file:
            file.seek(self.start)
            return file.read(min(len(magic), self.size)) == magic

    def matches(self, pattern: bytes, *, chunk: int = _CHUNK, longest: int = _LONGEST_MATCH) -> Iterator[re.Match[bytes]]:
        """What matches a regular expression, in order; no match may be longer than so many bytes. `chunk` are read at a time."""
        # Not a memory map: a context may be larger than the memory that there is for it.
        compiled = re.compile(pattern)
        held = b""
        left = self.size
        for piece in self._chunks(chunk):
            held += piece
            left -= len(piece)
            # One that begins near the end may go on in the next one.
            sure = len(held) if left == 0 else max(0, len(held) - longest)
            for match in compiled.finditer(held):
                if match.start() >= sure:
                    break
                yield match
            held = held[sure:]

    def _chunks(self, size: int = _CHUNK) -> Iterator[bytes]:
        with open_regular(self.path) as file:
            file.seek(self.start)
            left = self.size
            while left and (chunk := file.read(min(size, left))):
                left -= len(chunk)
                yield chunk
