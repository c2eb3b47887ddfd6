"""Splicing: copying a model with some of its bytes replaced.

The model is never decoded and never held in memory. Therefore, all other bytes stay as they were written, even in huge
models.
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
    """Change to a file: `content` replaces the bytes from `start` to `end`. `path` has the enclosing fields, outermost first."""

    path: tuple[Field, ...]
    start: int
    end: int
    content: bytes | Path


def splice(source: Path, destination: Path, splices: Callable[[BinaryIO], Sequence[Splice]]) -> None:
    """Copy the model `source` to `destination` with the changes that `splices` returns, and correct all lengths.

    Raises FileExistsError if `destination` exists, and keeps that file. Raises MalformedModel and OSError. No partial copy
    is left.
    """
    with open_regular(source) as model:
        changes = _add_lengths(splices(model))
        copy = destination.open("xb")
        try:
            # Close the file inside `try`: a full disk may be detected only when the last bytes are flushed.
            with copy:
                _write(model, copy, changes)
        except BaseException:
            destination.unlink()
            raise


def copy_bytes(model: BinaryIO, copy: BinaryIO, start: int, end: int) -> None:
    """Copy the bytes of `model` between two offsets to `copy`. Raises MalformedModel if the file is too short."""
    model.seek(start)
    while start < end:
        chunk = model.read(min(_CHUNK, end - start))
        if not chunk:
            raise MalformedModel("the file was truncated while it was being read", start)
        copy.write(chunk)
        start += len(chunk)


def _add_lengths(splices: Iterable[Splice]) -> list[Splice]:
    """Add changes that correct the lengths of enclosing fields, and sort all changes in file order."""
    changes = list(splices)
    levels: defaultdict[int, dict[Field, Field | None]] = defaultdict(dict)
    growth: defaultdict[Field, int] = defaultdict(int)
    for change in changes:
        size = len(change.content) if isinstance(change.content, bytes) else change.content.stat().st_size
        growth[change.path[-1]] += size - (change.end - change.start)
        parent: Field | None = None
        for level, field in enumerate(change.path):
            levels[level][field] = parent
            parent = field

    # Innermost first: a length whose varint grows or shrinks also changes the size of the enclosing field.
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
            raise OSError(f"{path.name} changed while it was being read")
