"""Actions in the view of the engine, and the protocol of their executor."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from msgspec import Struct

from epbuild.core.errors import EpbuildError


class Cost(Struct, frozen=True):
    """Expected seconds of an action: `measured`, or a guess that can only order the work."""

    seconds: float
    measured: bool


class Runnable(Struct, frozen=True):
    """Action to execute. Its key may depend on the results of the actions that it `needs`: the executor computes it."""

    id: str
    needs: Collection[str] = ()
    """Ids of the actions to finish first. One that is not part of the build is finished already."""
    cost: Cost = Cost(0.0, measured=False)
    memory: int = 0
    """Bytes of memory that it uses while it runs."""


class Executor(Protocol):
    """Executor of actions. `execute` is called in several threads at once, the other methods in one."""

    def execute(self, action: str, /) -> None:
        """Execute an action. Raises EpbuildError if it fails."""

    def fail(self, action: str, error: EpbuildError, /) -> bool:
        """Record that an action failed. Return whether the failure is allowed, so that the build goes on."""

    def skip(self, action: str, /) -> None:
        """Record that an action was not started."""
