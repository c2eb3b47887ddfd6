"""`Transport`: objects by name, on a server or in a directory."""

from __future__ import annotations

import io
from abc import abstractmethod
from collections.abc import Callable, Iterator
from typing import Literal, Protocol

from epbuild.core.pace import Pace
from epbuild.core.values import dataclass

Space = Literal["ac", "cas"]
"""The records, by their keys, and the blobs, by their SHA-256."""

Trouble = Literal["passing", "hung", "refused", "object"]
"""What is wrong: what may pass and is tried again; what took long, and would again; what will stay; what is about one object only."""


class RemoteError(Exception):
    """A server did not do what it was asked. `pause`: the seconds after which it wants to be asked again."""

    def __init__(self, reason: str, hint: str, trouble: Trouble, *, pause: float = 0.0) -> None:
        self.reason = reason
        self.hint = hint
        self.trouble = trouble
        self.pause = pause
        super().__init__(reason)


@dataclass(frozen=True)
class Patience:
    """Limits for a server, in seconds: to be reached, for a whole answer, and for the next piece of a blob (a record: `answer`)."""

    connect: float = 3.0
    answer: float = 5.0
    idle: float = 20.0
    uploaded: float = 9.0
    """For a whole answer to a blob, which the server may copy to its place first."""
    pace: Pace = Pace(60.0, 10e3)
    """The least progress of a blob."""


@dataclass(frozen=True)
class Content:
    """What is put: its size in bytes, and its pieces, from the start each time."""

    size: int
    pieces: Callable[[], Iterator[bytes | memoryview]]

    @classmethod
    def of(cls, data: bytes) -> Content:
        return cls(len(data), lambda: iter((data,) if data else ()))


class Download(io.RawIOBase):
    """An object that is being read; `size` where the server gives it. Reading raises RemoteError, also where it ends too early."""

    size: int | None = None

    def readable(self) -> bool:
        return True

    @abstractmethod
    def readinto(self, buffer: memoryview, /) -> int:  # type: ignore[override]
        """Read what comes next into a part of the buffer; 0 at the end. Raises RemoteError."""


class Transport(Protocol):
    """Objects in two spaces, which appear whole or not at all. Any number of threads may use one; each method raises RemoteError."""

    def get(self, space: Space, name: str) -> Download | None:
        """Begin to read an object; None where there is none."""

    def has(self, space: Space, name: str, size: int) -> bool:
        """Whether there is an object of that size, as far as can be known without reading it."""

    def put(self, space: Space, name: str, content: Content) -> None:
        """Write an object, in place of any of that name. Raises what reading the content raises as well; then nothing was written."""

    def close(self) -> None:
        """Let connections go."""
