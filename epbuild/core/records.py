"""Thread-safe conversion of values to records with msgspec."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
from msgspec import ValidationError, msgpack

_Kind = TypeVar("_Kind")
_T = TypeVar("_T")

_decoders: dict[object, msgpack.Decoder[Any]] = {}
"""Decoders of all types whose fields msgspec has collected."""
_lock = threading.Lock()


def prepare_type(kind: _Kind) -> _Kind:
    """Let msgspec collect the fields of a type, and return the type. Call this before values are converted to the type.

    msgspec 0.22 collects the fields of a type at the first conversion. If a second thread uses the type at that time, even inside
    another type, it reads fields that are not collected yet. The process then ends with a segmentation fault.
    """
    if kind not in _decoders:
        with _lock:
            _decoders[kind] = msgpack.Decoder(kind)  # collects the fields of the type and of all nested types
    return kind


def get_decoder(kind: type[_T]) -> msgpack.Decoder[_T]:
    """Return the MessagePack decoder of a type. Making a decoder takes longer than decoding a small value."""
    return _decoders[prepare_type(kind)]


def convert(
    value: object, kind: type[_T], *, from_attributes: bool = False, dec_hook: Callable[[type, Any], Any] | None = None
) -> _T:
    """Convert a value, such as a JSON document, to a record type. Raises msgspec.ValidationError."""
    try:
        return msgspec.convert(value, prepare_type(kind), from_attributes=from_attributes, dec_hook=dec_hook)
    except UnicodeEncodeError as error:  # JSON keys may be invalid Unicode, but msgspec compares them as UTF-8
        raise ValidationError(f"{error.object!a} is not valid Unicode") from error
