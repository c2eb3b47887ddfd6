"""The protocol of remote files: opened at an offset, read in chunks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol


class Interrupted(Exception):
    """The transfer failed in a way that may pass: the line was cut, the server is overloaded. Trying again makes sense."""

    def __init__(self, reason: str, hint: str = "Check the network, then run again.") -> None:
        self.hint = hint
        super().__init__(reason)


class TransferRefused(Exception):
    """The transfer failed for good: there is no such file, or this user may not read it. `hint` is what to do about it."""

    def __init__(self, reason: str, hint: str) -> None:
        self.hint = hint
        super().__init__(reason)


class MissingPackage(Exception):
    """An optional package of epbuild's, in the extra `extra`, is needed for this kind of address and is not installed."""

    def __init__(self, package: str, extra: str) -> None:
        self.package = package
        self.extra = extra
        super().__init__(package)


@dataclass(frozen=True)
class Reply:
    """An opened transfer. `chunks` are the bytes from the offset `start` on, to the end of the file; they may raise Interrupted."""

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

        Raises Interrupted, Refused and MissingPackage.
        """
        ...
