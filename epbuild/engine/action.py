"""Actions as the engine sees them, and the protocol of what executes them."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from msgspec import Struct

from epbuild.core.errors import EpbuildError


class Cost(Struct, frozen=True):
    """The seconds that an action is expected to take, and whether that was measured, or is a guess that can only order the work."""

    seconds: float
    measured: bool


class Runnable(Struct, frozen=True):
    """An action that is to be executed. Its key may depend on what comes of those that it `needs`: the executor works it out."""

    id: str
    needs: Collection[str] = ()
    """The ids of those that have to be done before it; one that is not in a build is there already."""
    cost: Cost = Cost(0.0, measured=False)
    memory: int = 0
    """The bytes that it takes while it runs."""


class Executor(Protocol):
    """Executes actions, in any thread, several at once; takes note, in one thread, of those that failed or were not started."""

    def execute(self, action: str, /) -> None:
        """Do one action. Raises EpbuildError when it fails."""

    def fail(self, action: str, error: EpbuildError, /) -> bool:
        """Take note that an action failed; returns whether that is allowed, so that others may go on."""

    def skip(self, action: str, /) -> None:
        """Take note that an action was not started."""
