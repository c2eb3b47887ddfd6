"""Events of publishing: sizes of an output before and after, savings of sharing."""

from __future__ import annotations

from msgspec import Struct

from epbuild.engine.events import Event


class ChangedFile(Struct, frozen=True):
    """A file of an output that has other bytes than before: its size then (None: it is new) and now (None: it is gone)."""

    path: str
    before: int | None
    after: int | None


class OutputCompared(Event, frozen=True):
    """An output was published: its bytes before (None: it is the first) and now, less its manifest, and which of its files changed."""

    step: str
    directory: str
    before: int | None
    after: int
    files: tuple[ChangedFile, ...]


class SharingSaved(Event, frozen=True):
    """What a sharing group's bytes come to without sharing, and with it.

    `measured`: those of its binaries and data, each member compiled alone. Otherwise those of its sources' weights, equal contents once.
    """

    step: str
    unshared: int
    shared: int
    measured: bool
