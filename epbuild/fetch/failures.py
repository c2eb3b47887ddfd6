"""Errors of a fetch: a file that cannot be fetched, and a full disk."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from epbuild.core.errors import Problem, StoreError


class FetchError(StoreError):
    """A remote file cannot be fetched, or has other content than its pin (EPB510 to EPB512, EPB320 to EPB322)."""


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Raise StoreError (EPB503) for an OSError while fetched files are written."""
    try:
        yield
    except OSError as error:
        hint = "Free some space there, or set EPBUILD_CACHE_DIR to a directory on another file system."
        raise StoreError(Problem("EPB503", f"cannot write {path}: {error.strerror or error}", hint=hint)) from error
