"""`Payload`: bytes of a context in a file or a model, read in chunks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

from epbuild.core.digest import Count, hash_part
from epbuild.core.safepath import open_regular
from epbuild.onnxfile.read.epcontext import EPContextNode, resolve

_CHUNK = 1 << 20
_MAX_MATCH_LENGTH = 4096


class Payload(Struct, frozen=True):
    """Part of a file: `size` bytes from offset `start`. Reading raises OSError."""

    path: Path
    start: int
    size: int

    @classmethod
    def whole(cls, path: Path) -> Payload:
        return cls(path, 0, path.stat().st_size)

    @classmethod
    def of(cls, model: Path, node: EPContextNode) -> Payload | None:
        """Return the context that a node contains or refers to, or None if the node has no context. Raises BadReference and OSError."""
        if node.reference is not None:
            return cls.whole(resolve(model, node))
        return cls(model, *node.payload) if node.payload is not None else None

    def read(self) -> bytes:
        return b"".join(self._read_chunks())

    def sha256(self, count: Count = lambda size: None) -> str:
        """Return the digest of the bytes. `count` is called with the size of each hashed chunk."""
        with open_regular(self.path) as file:
            return hash_part(file, self.start, self.size, count).digest

    def begins_with(self, magic: bytes) -> bool:
        with open_regular(self.path) as file:
            file.seek(self.start)
            return file.read(min(len(magic), self.size)) == magic

    def find_matches(self, pattern: bytes, *, chunk: int = _CHUNK, longest: int = _MAX_MATCH_LENGTH) -> Iterator[re.Match[bytes]]:
        """Yield the matches of a regular expression, in order. `chunk` bytes are read at a time.

        A match may have at most `longest` bytes.
        """
        # Read in chunks instead of mapping the file: a context can be larger than the available memory.
        compiled = re.compile(pattern)
        held = b""
        left = self.size
        for piece in self._read_chunks(chunk):
            held += piece
            left -= len(piece)
            # A match that begins near the end of a chunk can continue in the next chunk.
            sure = len(held) if left == 0 else max(0, len(held) - longest)
            for match in compiled.finditer(held):
                if match.start() >= sure:
                    break
                yield match
                sure = max(sure, match.end())
            held = held[sure:]

    def _read_chunks(self, size: int = _CHUNK) -> Iterator[bytes]:
        with open_regular(self.path) as file:
            file.seek(self.start)
            left = self.size
            while left and (chunk := file.read(min(size, left))):
                left -= len(chunk)
                yield chunk
