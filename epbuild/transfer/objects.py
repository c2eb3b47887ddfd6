"""Protocol of object stores (servers and folders), their errors and limits."""

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
"""Kind of a failure.

`transient`: a retry may succeed. `timeout`: a retry may succeed, but each attempt takes long. `denied`: no retry can succeed.
`object`: only one object is affected.
"""


class TransferError(Exception):
    """Failed transfer, with a hint, and with the reason as a clause.

    `pause` is the number of seconds that the server asks clients to wait.
    """

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
        """True if a retry may succeed."""
        return self.kind in ("transient", "timeout")


class MissingObjectError(TransferError):
    """Object that is missing on the server or in the folder."""

    def __init__(self, reason: str, hint: str = "Check the address.") -> None:
        super().__init__(reason, hint, "object")


class MissingPackageError(Exception):
    """Lack of an optional package that addresses of this kind need. Users install the package with epbuild's extra `extra`."""

    def __init__(self, package: str, extra: str) -> None:
        self.package = package
        self.extra = extra
        super().__init__(package)

    def make_problem(self, user: str) -> Problem:
        """Return the problem to report. `user` is the feature that needs the package, as the subject of the message."""
        message = f"{user} requires the package {self.package}, which is not installed in epbuild's environment"
        return Problem("EPB512", message, hint=f"Install it: pip install 'epbuild[{self.extra}]'.")


class Speed(Struct, frozen=True):
    """Minimum speed, measured over periods of `seconds`."""

    seconds: float
    bytes_per_second: float


class Timeouts(Struct, frozen=True):
    """Time limits for a server, in seconds, and the minimum speed."""

    connect: float = 30.0
    answer: float = 30.0
    """Timeout for a whole response: its header, and also its body unless the caller reads the body in pieces."""
    idle: float = 30.0
    """Timeout for the next piece of a request or response body."""
    uploaded: float = 300.0
    """Timeout for a whole response to an upload. Some servers copy the upload before they respond."""
    speed: Speed = Speed(60.0, 10e3)
    """Minimum speed of a large request or response body."""


class SpeedMeter:
    """Meter of a transfer's speed. Only the time in `waiting` blocks counts, because the server causes no other delay."""

    def __init__(self, minimum: Speed) -> None:
        self._minimum = minimum
        self._seconds = 0.0
        self._bytes = 0

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Count the time in the `with` block as time spent waiting for the server."""
        begin = time.monotonic()
        yield
        self._seconds += time.monotonic() - begin

    def is_fast_enough(self, count: int) -> bool:
        """Add `count` transferred bytes, and return whether the transfer reaches the minimum speed."""
        self._bytes += count
        if self._seconds < self._minimum.seconds:
            return True
        is_fast = self._bytes >= self._seconds * self._minimum.bytes_per_second
        self._seconds, self._bytes = 0.0, 0
        return is_fast


class Content(Struct, frozen=True):
    """Content to write: its size in bytes, and a function that yields its pieces from the start."""

    size: int
    pieces: Callable[[], Iterator[bytes | memoryview]]

    @classmethod
    def of(cls, data: bytes) -> Content:
        """Return a `Content` that consists of `data`."""
        return cls(len(data), lambda: iter((data,) if data else ()))


class Download(io.RawIOBase):
    """Object of a store, opened for reading. Reading raises TransferError, also if the object ends too early."""

    start = 0
    """Offset in the object at which reading starts."""
    size: int | None = None
    """Size of the whole object, or None if it is unknown."""
    version: str | None = None
    """ETag or date of this version of the object, or None if reading cannot be resumed later."""
    sha256: str | None = None
    """SHA-256 of the whole object, or None if it is unknown."""

    def readable(self) -> bool:
        return True

    @abstractmethod
    def readinto(self, buffer: memoryview, /) -> int:  # type: ignore[override]
        """Read the next bytes into the buffer, and return their number: 0 at the end. Raises TransferError."""


class ObjectStore(Protocol):
    """Store of objects by path. Objects are written atomically. Stores are thread-safe. All methods raise TransferError."""

    def get(self, path: str, start: int = 0, version: str | None = None) -> Download:
        """Open an object at offset `start` if its version is still `version`, or else at its beginning.

        Raises MissingObjectError.
        """
        ...

    def has(self, path: str, size: int) -> bool:
        """Return whether the object at `path` exists and has this size, according to the server. The object is not downloaded."""
        ...

    def put(self, path: str, content: Content) -> None:
        """Write an object, replacing an existing one. If reading the content fails, raise that error and write nothing."""
        ...

    def close(self) -> None:
        """Close idle connections."""


class TimedDownload(io.RawIOBase):
    """Download that limits how slow the server may be.

    Reading calls `count` with the number of bytes, and raises TransferError if the server is slower than the speed `minimum`.
    """

    def __init__(self, download: Download, minimum: Speed, count: Callable[[int], object] = lambda count: None) -> None:
        self._download = download
        self._meter = SpeedMeter(minimum)
        self._count = count

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview, /) -> int:  # type: ignore[override]
        with self._meter.waiting():
            count = self._download.readinto(buffer)
        self._count(count)
        if count and not self._meter.is_fast_enough(count):
            raise TransferError("the server sends data too slowly", kind="timeout")
        return count
