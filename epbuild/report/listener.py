"""Listeners: what takes the events of a build, as a context manager around it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from epbuild.engine.events import TakesMany

if TYPE_CHECKING:
    from epbuild.engine.events import Event


class Listener(TakesMany):
    """A `Progress` that is open for as long as a build runs."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *ended: object) -> None:
        """The exception that ended the build, if one did, as context managers are given it."""

    def report(self, event: Event, /) -> None:
        """Take note of an event, or show it."""
        raise NotImplementedError
