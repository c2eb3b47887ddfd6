"""Types of records, made known to msgspec before threads use them."""

from __future__ import annotations

import threading
from typing import TypeVar

from msgspec import msgpack

_Kind = TypeVar("_Kind")

_known: set[object] = set()
_lock = threading.Lock()


def ready(kind: _Kind) -> _Kind:
    """Return a type of records once msgspec knows all of it. Every type that values are converted to passes through here.

    msgspec 0.22 collects the fields of a type when a value is first converted to it. A second thread that meets the type meanwhile, also
    inside of another type, reads what is not there yet, and the process ends with a segmentation fault.
    """
    if kind not in _known:
        with _lock:
            msgpack.Decoder(kind)  # collects the fields of the type and of all types inside
            _known.add(kind)
    return kind
