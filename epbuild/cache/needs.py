"""Entries of the store that known builds need."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from msgspec import Struct


class Needs(Struct, frozen=True):
    """Entries that known builds need: keys of records, digests of blobs, and names of remote models in the store."""

    keys: frozenset[str] = frozenset()
    blobs: frozenset[str] = frozenset()
    models: frozenset[str] = frozenset()


class CacheUsers(Protocol):
    """Builds that use a store and can parse its records."""

    def needs(self) -> Needs:
        """Return what the builds need now. Raises StoreError."""

    def models(self) -> frozenset[str]:
        """Return only the remote models that the builds need. Called often, so it does not read results. Raises StoreError."""

    def blobs_of(self, record: Mapping[str, Any], /) -> Iterable[str]:
        """Return the digests of the blobs that a record refers to."""
