"""Encrypted files for tests."""

from __future__ import annotations

import hashlib
import importlib.util
import io
from pathlib import Path

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


def link_cryptography(folder: Path) -> Path:
    """Create links to the package cryptography in a folder, for an interpreter that lacks the package. Return the folder."""
    for name in ("cryptography", "cffi", "_cffi_backend"):
        spec = importlib.util.find_spec(name)
        assert spec is not None
        assert spec.origin is not None
        place = Path(spec.origin).parent if spec.submodule_search_locations else Path(spec.origin)
        (folder / place.name).symlink_to(place)
    return folder
