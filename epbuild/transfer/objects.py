"""Objects on a server or in a folder: the protocol of stores, and their errors."""

from __future__ import annotations

import io
from abc import abstractmethod
from collections.abc import Callable, Iterator
from typing import Literal, Protocol

from msgspec import Struct

from epbuild.core.errors import Problem
from epbuild.transfer.limits import Speed, SpeedMeter

FailureKind = Literal["transient", "timeout", "denied", "object"]
"""Kind of a failure: it may pass; it may pass, but each attempt takes long; it lasts; it concerns one object only."""


class TransferError(Exception):
    """Failed transfer: the reason as a clause, and what to do. `pause`: seconds after which the server wants the next request."""

    def __init__(
        self,
        reason: str,
        hint: str = "Check the network, then run again.",
        kind: FailureKind = "transient",
        *,
        pause: float = 0.0,
    ) -> None:
        self.reason = reason
        self.hint = hint
        self.kind: FailureKind = kind
        self.pause = pause
        super().__init__(reason)

    @property
    def may_pass(self) -> bool:
        """Whether another attempt can succeed."""
        return self.kind in ("transient", "timeout")


class MissingObjectError(TransferError):
    """The server or folder has no such object."""

    def __init__(self, reason: str, hint: str = "Check the address.") -> None:
        super().__init__(reason, hint, "object")


class MissingPackageError(Exception):
    """An optional package, which the extra `extra` installs, is needed for this kind of address."""

    def __init__(self, package: str, extra: str) -> None:
        self.package = package
        self.extra = extra
        super().__init__(package)

    def problem(self, user: str) -> Problem:
        """Return the problem of a `user` that needs the package."""
        message = f"{user} needs the package {self.package}, which is not installed beside epbuild"
        return Problem("EPB512", message, hint=f"Install it: pip install 'epbuild[{self.extra}]'.")


class Content(Struct, frozen=True):
    """Content to write: its size in bytes, and a function that yields its pieces from the start."""

    size: int
    pieces: Callable[[], Iterator[bytes | memoryview]]

    @classmethod
    def of(cls, data: bytes) -> Content:
        """Return the content of `data`."""
        return cls(len(data), lambda: iter((data,) if data else ()))


class Download(io.RawIOBase):
    """Object that is being read, to its end. Reading raises TransferError, also if the object ends too early."""

    start = 0
    """Offset in the object of the first byte that is read."""
    size: int | None = None
    """Size of the whole object, if the server gives it."""
    version: str | None = None
    """ETag or date of this version of the object; None if reading cannot be resumed later."""
    sha256: str | None = None
    """Digest of the whole object, if the server gives it."""

    def readable(self) -> bool:
        return True

    @abstractmethod
    def readinto(self, buffer: memoryview, /) -> int:  # type: ignore[override]
        """Read the next bytes into a part of the buffer; 0 at the end. Raises TransferError."""


class ObjectStore(Protocol):
    """Objects by path. They appear whole or not at all. Any number of threads may use one store; each method raises TransferError."""

    def get(self, path: str, start: int = 0, version: str | None = None) -> Download:
        """Open an object for reading: from `start` if it is still of that version, else from its beginning.

        Raises MissingObjectError.
        """
        ...

    def has(self, path: str, size: int) -> bool:
        """Return whether there is an object of that size, as far as the server tells without sending it."""
        ...

    def put(self, path: str, content: Content) -> None:
        """Write an object, and replace an existing one. Raises what reading the content raises; then nothing was written."""
        ...

    def close(self) -> None:
        """Close idle connections."""


class TimedDownload(io.RawIOBase):
    """Download that counts its bytes. Reading raises TransferError if the server is slower than `least`."""

    def __init__(self, download: Download, least: Speed, count: Callable[[int], object] = lambda count: None) -> None:
        self._download = download
        self._meter = SpeedMeter(least)
        self._count = count

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview, /) -> int:  # type: ignore[override]
        with self._meter.waiting():
            count = self._download.readinto(buffer)
        self._count(count)
        if count and not self._meter.is_fast_enough(count):
            raise TransferError("it sends too slowly", kind="timeout")
        return count
