"""Fixtures for tests of downloads: a file server, and a store."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from epbuild.cache.blobs import BlobStore
from tests.support.file_server import FileServer, serving


@pytest.fixture
def server() -> Iterator[FileServer]:
    with serving() as running:
        yield running


@pytest.fixture
def store(tmp_path: Path) -> BlobStore:
    return BlobStore(tmp_path / "cache")
