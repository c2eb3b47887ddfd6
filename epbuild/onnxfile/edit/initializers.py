"""One weights file for the initializers of several models.

Contents are the same when their bytes are: types and shapes stay in the graphs. The bytes are hashed and copied in pieces and the models
spliced, so memory does not grow with the weights. The same models in the same order give the same bytes.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO

from msgspec import Struct

from epbuild.core.safepath import open_regular
from epbuild.onnxfile.edit.splice import Splice, copy_bytes, splice
from epbuild.onnxfile.edit.staging import stage
from epbuild.onnxfile.read import proto
from epbuild.onnxfile.read.headers import parse_header, read_header, read_tensor
from epbuild.onnxfile.read.model_header import Initializer
from epbuild.onnxfile.read.weights import WeightBytes, digest, extent, tensors
from epbuild.onnxfile.read.wire import Field, MalformedModel, WireReader, encode_bytes, encode_integer

# A file can be mapped from a page's start, 4 KiB, and on Windows from a multiple of 64 KiB. ONNX Runtime's own writer (ModelSavingOptions)
# takes the same pains for tensors from 1 MiB on: for smaller ones the gaps would weigh more than the tensors.
_PAGE = 4 * 1024
_GRANULARITY = 64 * 1024
_LARGE = 1024 * 1024

# Field numbers, as onnx.proto gives them.
_TENSOR_PLACE = frozenset({proto.TENSOR_RAW_DATA, proto.TENSOR_EXTERNAL_DATA, proto.TENSOR_DATA_LOCATION})


def share_initializers(
    models: Mapping[Path, Path], file: str, threshold: int = 1024, data: Mapping[Path, Mapping[str, Path]] | None = None
) -> WeightBytes:
    """Write copies of one or more models (each key is the copy of its value), whose weights all lie in one `file` beside them.

    What goes there: every tensor that is external data already (at the location that a model gives, or in the files that `data`
    has for its locations, by the copy), and every initializer, in subgraphs too, that is written as raw bytes and has at least
    `threshold` of them; where nothing does, no file is written. Copies in several folders (which are made) each have the file. It
    is a hard link in some where the file system can: ONNX Runtime reads such data, and the onnx package refuses to. A copy that
    refers to it from a subgraph has a file of its own, as ONNX Runtime leaves the reading to the onnx package there.

    Raises FileExistsError where a copy or the file exists already; MalformedModel, whose text begins with the model's file name,
    for what is not a whole model, or has less external data than it declares; OSError. Then nothing that was written is left.
    """
    folders = list(dict.fromkeys(copy.parent for copy in models))
    places = [folder / file for folder in folders]
    for place in places:
        place.parent.mkdir(parents=True, exist_ok=True)
        if place.exists():
            raise FileExistsError(f"{place} exists already")
    with ExitStack() as written:
        with places[0].open("xb") as opened:
            written.callback(places[0].unlink)
            weights = _Weights(opened)
            for copy, source in models.items():
                try:
                    splice(source, copy, _Mover(source.parent, (data or {}).get(copy, {}), file, max(threshold, 1), weights))
                except MalformedModel as error:
                    raise MalformedModel(f"{source.name}: {error}") from error
                written.callback(copy.unlink)
            stored = opened.tell()
        apart = {copy.parent for copy in models if file in read_header(copy).subgraph_data}
        linkable = None if folders[0] in apart else places[0]
        for place in places[1:] if stored else ():
            written.callback(place.unlink, missing_ok=True)
            if place.parent in apart or linkable is None:
                stage(places[0], place, link=False)
                linkable = linkable if place.parent in apart else place
            else:
                stage(linkable, place, link=True)
        if not stored:
            places[0].unlink()
        written.pop_all()
    return WeightBytes(weights.total, stored)


class _Weights:
    """The weights file while it is written; `total` counts what was placed in it, equal contents too."""

    def __init__(self, file: BinaryIO) -> None:
        self.total = 0
        self._file = file
        self._offsets: dict[str, int] = {}

    def place(self, source: BinaryIO, start: int, size: int) -> int:
        """The offset of the content that `source` has there; it is written if it is new."""
        self.total += size
        content = digest(source, start, size)
        offset = self._offsets.get(content)
        if offset is None:
            alignment = _GRANULARITY if size >= _LARGE else _PAGE
            end = self._file.tell()
            offset = -(-end // alignment) * alignment
            self._file.write(bytes(offset - end))
            copy_bytes(source, self._file, start, start + size)
            self._offsets[content] = offset
        return offset


class _Mover(Struct, frozen=True):
    """Finds what changes in one model whose weights move: to be called with the opened model, as `splice` does."""

    folder: Path
    data: Mapping[str, Path]
    """The external data by location; what is not here lies in the folder."""
    file: str
    least: int
    weights: _Weights

    def __call__(self, model: BinaryIO) -> list[Splice]:
        parse_header(model)  # refuses what is no whole model, or nested without end
        wire = WireReader(model)
        splices: list[Splice] = []
        for path, is_initializer in tensors(wire):
            tensor = path[-1]
            found = read_tensor(wire, tensor)
            raw = list(wire.message(tensor, frozenset({proto.TENSOR_RAW_DATA})))
            if found.external is not None:
                # Closed at once: some exporters give each tensor a file of its own.
                location = found.external.location
                with open_regular(self.data.get(location, self.folder / location)) as data:
                    start, size = extent(found, found.external, os.fstat(data.fileno()).st_size, tensor.tag_at)
                    offset = self.weights.place(data, start, size)
            elif is_initializer and _is_raw(found, raw) and raw[0].size >= self.least:
                size = raw[0].size
                offset = self.weights.place(model, raw[0].start, size)
            else:
                continue
            splices += [Splice(path, field.tag_at, field.end, b"") for field in wire.message(tensor, _TENSOR_PLACE)]
            splices.append(Splice(path, tensor.end, tensor.end, self._reference(offset, size)))
        return splices

    def _reference(self, offset: int, size: int) -> bytes:
        """A tensor's reference to its bytes; what it had for the old place, such as a checksum, does not hold for the new one."""
        entries = {"location": self.file, "offset": str(offset), "length": str(size)}
        pairs = (
            encode_bytes(proto.PAIR_KEY, key.encode()) + encode_bytes(proto.PAIR_VALUE, value.encode())
            for key, value in entries.items()
        )
        location = encode_integer(proto.TENSOR_DATA_LOCATION, proto.EXTERNAL)
        return b"".join(encode_bytes(proto.TENSOR_EXTERNAL_DATA, pair) for pair in pairs) + location


def _is_raw(found: Initializer, raw: list[Field]) -> bool:
    """Whether all that a tensor holds is its raw data."""
    return len(raw) == 1 and raw[0].size == found.inline_bytes
