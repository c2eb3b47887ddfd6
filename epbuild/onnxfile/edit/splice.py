"""Splicing: a copy of a file in which some bytes are replaced.

The model is never decoded and never held in memory, so all that is not replaced stays as its writer left it, at any size.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple

from epbuild.core.safepath import open_regular
from epbuild.onnxfile.read.wire import Field, MalformedModel, encode_varint

_CHUNK = 1024 * 1024


class Splice(NamedTuple):
    """Bytes of the source from `start` to `end` that become `content`; `path` has the fields that enclose them, outermost first."""

    path: tuple[Field, ...]
    start: int
    end: int
    content: bytes | Path


def splice(source: Path, destination: Path, splices: Callable[[BinaryIO], Sequence[Splice]]) -> None:
    """Writes to `destination` a copy of the model `source` with the changes that `splices` finds in it; lengths are corrected.

    Raises FileExistsError where `destination` exists, and leaves it; MalformedModel and OSError, and leaves no partial copy.
    """
    with open_regular(source) as model:
        changes = _with_lengths(splices(model))
        copy = destination.open("xb")
        try:
            # Closed inside the try: a full disk may show only when the last bytes are flushed.
            with copy:
                _write(model, copy, changes)
        except BaseException:
            destination.unlink()
            raise


def copy_bytes(model: BinaryIO, copy: BinaryIO, start: int, end: int) -> None:
    """Copies the bytes of `model` between two offsets; raises MalformedModel where it ends before."""
    model.seek(start)
    while start < end:
        chunk = model.read(min(_CHUNK, end - start))
        if not chunk:
            raise MalformedModel("the file became shorter while it was read", start)
        copy.write(chunk)
        start += len(chunk)


def _content_size(content: bytes | Path) -> int:
    return len(content) if isinstance(content, bytes) else content.stat().st_size


def _with_lengths(splices: Iterable[Splice]) -> list[Splice]:
    """The changes in file order, with those of the lengths of all that encloses one."""
    changes = list(splices)
    levels: defaultdict[int, dict[Field, Field | None]] = defaultdict(dict)
    growth: defaultdict[Field, int] = defaultdict(int)
    for change in changes:
        growth[change.path[-1]] += _content_size(change.content) - (change.end - change.start)
        parent: Field | None = None
        for level, field in enumerate(change.path):
            levels[level][field] = parent
            parent = field

    # Innermost first, as a length that takes more or fewer bytes changes the size of what encloses it too.
    for level in sorted(levels, reverse=True):
        for field, parent in levels[level].items():
            if growth[field] == 0:
                continue
            length = encode_varint(field.size + growth[field])
            changes.append(Splice((), field.length_at, field.start, length))
            if parent is not None:
                growth[parent] += growth[field] + len(length) - (field.start - field.length_at)
    return sorted(changes, key=lambda change: (change.start, change.end))


def _write(model: BinaryIO, copy: BinaryIO, changes: Iterable[Splice]) -> None:
    position = 0
    for change in changes:
        copy_bytes(model, copy, position, change.start)
        if isinstance(change.content, bytes):
            copy.write(change.content)
        else:
            _write_file(change.content, copy)
        position = change.end
    copy_bytes(model, copy, position, model.seek(0, os.SEEK_END))


def _write_file(path: Path, copy: BinaryIO) -> None:
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        start = copy.tell()
        copy_bytes(file, copy, 0, size)
        if copy.tell() - start != size or file.read(1):
            raise OSError(f"{path.name} changed while it was read")
