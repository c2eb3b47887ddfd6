"""What the builds that are known need of the store."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from msgspec import Struct


class Needs(Struct, frozen=True):
    """What the builds that are known need: the keys of records, the digests of blobs, and remote models by their names in the store."""

    keys: frozenset[str] = frozenset()
    blobs: frozenset[str] = frozenset()
    models: frozenset[str] = frozenset()


class CacheUsers(Protocol):
    """The builds that use a store, and know what its records mean."""

    def needs(self) -> Needs:
        """What they need at this moment. Raises StoreError."""

    def models(self) -> frozenset[str]:
        """The remote models of that alone, which is asked often: it takes no look at what was built. Raises StoreError."""

    def blobs_of(self, record: Mapping[str, Any], /) -> Iterable[str]:
        """The digests of the blobs that a record names."""
