"""Relinking: a copy of a model whose EPContext nodes refer to their context binaries by other names.

The copy is spliced from the source's bytes and never decoded, so all that is not a reference stays as the EP wrote it.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO, NamedTuple

from epbuild.onnxfile.epcontext import EPContextNode
from epbuild.onnxfile.headers import parse_header
from epbuild.onnxfile.wire import Field, MalformedModel, encode_varint

_CHUNK = 1024 * 1024


class _Splice(NamedTuple):
    """Bytes of the source from `start` to `end` that become `replacement`."""

    start: int
    end: int
    replacement: bytes


def relink(source: Path, destination: Path, names: Mapping[str, str]) -> None:
    """Writes to `destination` a copy of the model `source` in which each reference that is a key of `names` becomes its value.

    Names are written as given: `check_reference` tells whether one can be followed. Other references, and every other byte, stay.
    Raises FileExistsError where `destination` exists, and leaves it; MalformedModel and OSError, and leaves no partial copy.
    """
    with source.open("rb") as model:
        splices = _splices(parse_header(model).ep_context_nodes, names)
        copy = destination.open("xb")
        try:
            # Closed inside the try: a full disk may show only when the last bytes are flushed.
            with copy:
                _write(model, copy, splices)
        except BaseException:
            destination.unlink()
            raise


def _splices(nodes: tuple[EPContextNode, ...], names: Mapping[str, str]) -> list[_Splice]:
    """The changes to the source's bytes, in file order: the references, and the lengths of all that encloses one."""
    splices: list[_Splice] = []
    levels: defaultdict[int, dict[Field, Field | None]] = defaultdict(dict)
    growth: defaultdict[Field, int] = defaultdict(int)
    for node in nodes:
        if node.reference is None or names.get(node.reference, node.reference) == node.reference:
            continue
        name = names[node.reference].encode()
        text = node.reference_path[-1]
        splices.append(_Splice(text.start, text.end, name))
        growth[text] = len(name) - text.size
        parent: Field | None = None
        for level, field in enumerate(node.reference_path):
            levels[level][field] = parent
            parent = field

    # Innermost first, as a length that takes more or fewer bytes changes the size of what encloses it too.
    for level in sorted(levels, reverse=True):
        for field, parent in levels[level].items():
            if growth[field] == 0:
                continue
            length = encode_varint(field.size + growth[field])
            splices.append(_Splice(field.length_at, field.start, length))
            if parent is not None:
                growth[parent] += growth[field] + len(length) - (field.start - field.length_at)
    return sorted(splices)


def _write(model: BinaryIO, copy: BinaryIO, splices: list[_Splice]) -> None:
    position = 0
    for splice in splices:
        _copy_bytes(model, copy, position, splice.start)
        copy.write(splice.replacement)
        position = splice.end
    _copy_bytes(model, copy, position, model.seek(0, os.SEEK_END))


def _copy_bytes(model: BinaryIO, copy: BinaryIO, start: int, end: int) -> None:
    model.seek(start)
    while start < end:
        chunk = model.read(min(_CHUNK, end - start))
        if not chunk:
            raise MalformedModel("the file became shorter while it was read", start)
        copy.write(chunk)
        start += len(chunk)
