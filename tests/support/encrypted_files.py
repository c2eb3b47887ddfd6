"""Encrypted files for tests."""

from __future__ import annotations

import hashlib
import io

from epbuild.runtime.encryption import Encryptor, make_header

KEY = bytes(range(32))


def encrypted(content: bytes, name: str, key: bytes = KEY, piece: int = 1 << 20) -> bytes:
    """Return the encrypted form of a file. The content is passed in pieces."""
    header, out = make_header(key, name, len(content), hashlib.sha256(content).hexdigest()), io.BytesIO()
    encryptor = Encryptor(header, key, out.write)
    for start in range(0, len(content), piece):
        encryptor.add(memoryview(content)[start : start + piece])
    encryptor.finish()
    assert out.tell() == header.file_size
    return out.getvalue()
