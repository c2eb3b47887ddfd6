"""Events of emission: sizes of an output before and after, savings of sharing."""

from __future__ import annotations

from msgspec import Struct

from epbuild.engine.events import Event


class ChangedFile(Struct, frozen=True):
    """Changed file of an output: its size before (None if it is new) and after (None if it is gone)."""

    path: str
    before: int | None
    after: int | None


class OutputCompared(Event, frozen=True):
    """An output was emitted: its bytes before (None if there was none) and after, without the manifest, and its changed files."""

    step: str
    directory: str
    before: int | None
    after: int
    files: tuple[ChangedFile, ...]


class SharingSaved(Event, frozen=True):
    """Bytes of a sharing group without sharing, and with it.

    If `measured`, these are the bytes of binaries and data, with each member compiled alone. Otherwise they are those of the sources'
    weights, in which equal contents count once.
    """

    step: str
    unshared: int
    shared: int
    measured: bool
