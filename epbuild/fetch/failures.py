"""Failures of a fetch: what cannot be had, and a disk that does not take it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from epbuild.core.errors import Problem, StoreError


class FetchError(StoreError):
    """A remote file cannot be had, or is not the one that was meant (EPB510 to EPB512, EPB320 to EPB322)."""


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Raise StoreError (EPB503) where the disk does not take what has been fetched."""
    try:
        yield
    except OSError as error:
        hint = "Free some space there, or set EPBUILD_CACHE_DIR to a directory on another file system."
        raise StoreError(Problem("EPB503", f"cannot write {path}: {error.strerror or error}", hint=hint)) from error
