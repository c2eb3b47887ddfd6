"""Objects on a server or in a folder: protocol of stores, errors and limits."""

from __future__ import annotations

import io
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal, Protocol

from msgspec import Struct

from epbuild.core.errors import Problem

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
        message = f"{user} requires the package {self.package}, which is not installed in epbuild's environment"
        return Problem("EPB512", message, hint=f"Install it: pip install 'epbuild[{self.extra}]'.")


class Speed(Struct, frozen=True):
    """Least speed, measured over periods of `seconds`."""

    seconds: float
    bytes_per_second: float


class Timeouts(Struct, frozen=True):
    """Limits for a server, in seconds."""

    connect: float = 30.0
    answer: float = 30.0
    """Timeout for a whole response: its header, and its body unless the caller reads the body in pieces."""
    idle: float = 30.0
    """Timeout for the next piece of a request or response body."""
    uploaded: float = 300.0
    """Timeout for a whole response to an upload. Some servers copy the upload before they respond."""
    speed: Speed = Speed(60.0, 10e3)
    """Minimum speed of a large request or response body."""


class SpeedMeter:
    """Progress of one transfer. Only time spent in `waiting` counts: the other side is not to blame for the rest."""

    def __init__(self, least: Speed) -> None:
        self._least = least
        self._seconds = 0.0
        self._bytes = 0

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Count the time of the block."""
        begin = time.monotonic()
        yield
        self._seconds += time.monotonic() - begin

    def is_fast_enough(self, count: int) -> bool:
        """Count transferred bytes, and return whether the transfer keeps the least speed."""
        self._bytes += count
        if self._seconds < self._least.seconds:
            return True
        is_fast = self._bytes >= self._seconds * self._least.bytes_per_second
        self._seconds, self._bytes = 0.0, 0
        return is_fast


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
        """Open an object at `start` if its version is still `version`, otherwise at its beginning.

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
            raise TransferError("it sends data too slowly", kind="timeout")
        return count
