"""Access to the catalog's options by name."""

from __future__ import annotations

from epbuild.catalog.entries import EpEntry
from epbuild.catalog.normalize import find_option, normalize


def normalize_option(entry: EpEntry, name: str, value: object, *, strict: bool = True) -> str:
    """Return the canonical text of one provider option. Raises UnknownName or BadValue."""
    option = find_option(entry, name)
    return normalize(option, value, booleans=entry.booleans, names=entry.canonical_names(name), strict=strict)
