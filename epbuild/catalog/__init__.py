"""What is known of EPs and of session keys, as data; nothing here runs anything."""

from epbuild.catalog.catalog import (
    BUILT_IN,
    Catalog,
    entries_for,
    entry,
    find_session_key,
    known_eps,
    session_keys,
)
from epbuild.catalog.entries import (
    Entry,
    Known,
    KnownDifference,
    Limitation,
    Metadata,
    Option,
    Refusal,
    Reproducibility,
    SessionKeys,
    Sharing,
)
from epbuild.catalog.normalize import (
    BadValue,
    UnknownName,
    check_metadata,
    find_option,
    normalize,
    normalize_option,
    plain_text,
    refusals,
)
from epbuild.catalog.userfile import BadCatalog, load_catalog

__all__ = [
    "BUILT_IN",
    "BadCatalog",
    "BadValue",
    "Catalog",
    "Entry",
    "Known",
    "KnownDifference",
    "Limitation",
    "Metadata",
    "Option",
    "Refusal",
    "Reproducibility",
    "SessionKeys",
    "Sharing",
    "UnknownName",
    "check_metadata",
    "entries_for",
    "entry",
    "find_option",
    "find_session_key",
    "known_eps",
    "load_catalog",
    "normalize",
    "normalize_option",
    "plain_text",
    "refusals",
    "session_keys",
]
