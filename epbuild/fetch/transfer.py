"""The protocol of remote files: opened at an offset, read in chunks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

from epbuild.core.values import dataclass


class MissingPackage(Exception):
    """An optional package of epbuild's, in the extra `extra`, is needed for this kind of address and is not installed."""

    def __init__(self, package: str, extra: str) -> None:
        self.package = package
        self.extra = extra
        super().__init__(package)


@dataclass(frozen=True)
class Reply:
    """An opened transfer. `chunks` are the bytes from the offset `start` on, to the end of the file; they may raise Unreachable."""

    start: int
    total: int | None
    """The size of the whole file, where the server gives it."""
    validator: str | None
    """What distinguishes this version of the file from others, such as an ETag; None: a transfer cannot be resumed later."""
    chunks: Iterator[bytes]
    sha256: str | None = None
    """The digest of the whole file, where the server gives it."""
    close: Callable[[], object] = lambda: None


class Source(Protocol):
    """A remote file."""

    def open(self, start: int, validator: str | None) -> Reply:
        """Begin to read at the offset `start` if the file is still the version of `validator`, else at the beginning.

        Raises Unreachable and MissingPackage.
        """
        ...
