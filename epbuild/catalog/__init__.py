"""What is known of EPs and of session keys, as data; nothing here runs anything."""

from epbuild.catalog.entries import Entry, Option, SessionKeys, entry, known_eps, session_keys
from epbuild.catalog.normalize import BadValue, normalize, plain_text

__all__ = ["BadValue", "Entry", "Option", "SessionKeys", "entry", "known_eps", "normalize", "plain_text", "session_keys"]
