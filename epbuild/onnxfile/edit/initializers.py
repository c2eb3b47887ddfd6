"""Shared weights file for the initializers of several models.

Two tensors share content if their bytes are equal: types and shapes stay in the graphs. Memory does not grow with the
weights, because bytes are hashed and copied in chunks and models are spliced. The same models in the same order produce the
same bytes.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import BinaryIO

from epbuild.core.digest import Count, ignore_count
from epbuild.core.safepath import open_regular
from epbuild.onnxfile.edit.splice import Splice, copy_bytes, splice
from epbuild.onnxfile.edit.staging import stage
from epbuild.onnxfile.read import proto
from epbuild.onnxfile.read.headers import parse_header, read_header, read_tensor
from epbuild.onnxfile.read.weights import WeightBytes, hash_extent, locate_external
from epbuild.onnxfile.read.wire import Field, MalformedModel, WireReader, encode_bytes, encode_integer

# A file can be mapped from the start of a page, 4 KiB, and on Windows from a multiple of 64 KiB. ONNX Runtime's own
# writer (ModelSavingOptions) aligns tensors of 1 MiB or more: for smaller tensors, the gaps would be larger than the
# tensors.
_PAGE = 4 * 1024
_GRANULARITY = 64 * 1024
_LARGE = 1024 * 1024

_TENSOR_PLACE = frozenset({proto.TENSOR_RAW_DATA, proto.TENSOR_EXTERNAL_DATA, proto.TENSOR_DATA_LOCATION})
_GRAPH_FIELDS = frozenset({proto.GRAPH_NODE, proto.GRAPH_INITIALIZER, proto.GRAPH_SPARSE_INITIALIZER})
_ATTRIBUTE_FIELDS = proto.ATTRIBUTE_TENSORS | proto.ATTRIBUTE_GRAPHS | proto.ATTRIBUTE_SPARSE_TENSORS

_TensorPath = tuple[tuple[Field, ...], bool]
"""Fields that enclose a tensor, outermost first and ending with the tensor, and whether the tensor is an initializer."""


def share_initializers(
    models: Mapping[Path, Path],
    file: str,
    threshold: int = 1024,
    data: Mapping[Path, Mapping[str, Path]] | None = None,
    count: Count = ignore_count,
) -> WeightBytes:
    """Write copies of models that share one weights `file` beside them. `models` maps each copy to its source.

    Two kinds of tensors move to the file: all external data, and every initializer of at least `threshold` raw bytes, even
    in subgraphs. External data is read from its location in the model, or from the file that `data` has for the copy and
    the location. If no tensor moves, no weights file is written. `count` receives the sizes of the tensors that have been read.

    If the copies are in several folders, each folder has the file, as a hard link where the file system supports it. ONNX
    Runtime reads files with several hard links, although the onnx package refuses to. If a subgraph of a copy refers to the
    file, the copy's folder has a separate file, because ONNX Runtime leaves the reading of such data to the onnx package.

    Raises FileExistsError if a copy or the file exists. Raises MalformedModel if a model is incomplete or has less external
    data than it declares; the error's text begins with the model's file name. Raises OSError. After an error, no written file is
    left.
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
            weights = _WeightsFile(opened, file, count)
            for copy, source in models.items():
                files = (data or {}).get(copy, {})
                try:
                    splice(source, copy, partial(_move, weights, folder=source.parent, data=files, threshold=max(threshold, 1)))
                except MalformedModel as error:
                    raise MalformedModel(f"{source.name}: {error}") from error
                written.callback(copy.unlink)
            stored = opened.tell()
        unlinkable = {copy.parent for copy in models if file in read_header(copy).subgraph_data}
        linkable = None if folders[0] in unlinkable else places[0]
        for place in places[1:] if stored else ():
            written.callback(place.unlink, missing_ok=True)
            if place.parent in unlinkable or linkable is None:
                stage(places[0], place, link=False)
                linkable = linkable if place.parent in unlinkable else place
            else:
                stage(linkable, place, link=True)
        if not stored:
            places[0].unlink()
        written.pop_all()
    return WeightBytes(weights.total, stored)


class _WeightsFile:
    """Weights file that is being written. `total` counts the bytes of all tensors, including duplicates."""

    def __init__(self, file: BinaryIO, name: str, count: Count) -> None:
        self.total = 0
        self._count = count
        self._file = file
        self._name = name
        self._offsets: dict[str, int] = {}

    def place(self, source: BinaryIO, start: int, size: int) -> bytes:
        """Write a part of `source`, unless the file already has this content. Return tensor fields that refer to the content."""
        self.total += size
        content = hash_extent(source, start, size, self._count)
        offset = self._offsets.get(content)
        if offset is None:
            alignment = _GRANULARITY if size >= _LARGE else _PAGE
            end = self._file.tell()
            offset = -(-end // alignment) * alignment
            self._file.write(bytes(offset - end))
            copy_bytes(source, self._file, start, start + size)
            self._offsets[content] = offset
        pairs = (
            encode_bytes(proto.PAIR_KEY, key) + encode_bytes(proto.PAIR_VALUE, value.encode())
            for key, value in ((b"location", self._name), (b"offset", str(offset)), (b"length", str(size)))
        )
        location = encode_integer(proto.TENSOR_DATA_LOCATION, proto.EXTERNAL)
        return b"".join(encode_bytes(proto.TENSOR_EXTERNAL_DATA, pair) for pair in pairs) + location


def _move(weights: _WeightsFile, model: BinaryIO, *, folder: Path, data: Mapping[str, Path], threshold: int) -> list[Splice]:
    """Move the tensors of one model to the weights file. Return the changes to the model.

    A tensor's old reference is replaced completely, because its other entries, such as a checksum, are invalid for the
    new location.
    """
    parse_header(model)  # This call rejects incomplete models and excessive nesting.
    wire = WireReader(model)
    splices: list[Splice] = []
    for path, is_initializer in _find_tensors(wire):
        field = path[-1]
        tensor = read_tensor(wire, field).tensor
        raw = list(wire.message(field, frozenset({proto.TENSOR_RAW_DATA})))
        if tensor.external is not None:
            # Open the file for each tensor: some exporters write a separate file for each.
            location = tensor.external.location
            with open_regular(data.get(location, folder / location)) as file:
                reference = weights.place(file, *locate_external(tensor, os.fstat(file.fileno()).st_size, field.tag_at))
        elif is_initializer and len(raw) == 1 and threshold <= raw[0].size == tensor.inline_bytes:
            reference = weights.place(model, raw[0].start, raw[0].size)
        else:
            continue
        splices += [Splice(path, part.tag_at, part.end, b"") for part in wire.message(field, _TENSOR_PLACE)]
        splices.append(Splice(path, field.end, field.end, reference))
    return splices


def _find_tensors(wire: WireReader) -> Iterator[_TensorPath]:
    """Yield the path of each tensor in a model. Headers do not store them, because a malicious file could exhaust memory."""
    for field in wire.fields(0, wire.size, frozenset({proto.MODEL_GRAPH, proto.MODEL_FUNCTIONS})):
        if field.number == proto.MODEL_GRAPH:
            yield from _find_tensors_in_graph(wire, (field,))
        else:
            for node in wire.message(field, frozenset({proto.FUNCTION_NODE})):
                yield from _find_tensors_in_node(wire, (field, node))


def _find_tensors_in_graph(wire: WireReader, path: tuple[Field, ...]) -> Iterator[_TensorPath]:
    for field in wire.message(path[-1], _GRAPH_FIELDS):
        if field.number == proto.GRAPH_NODE:
            yield from _find_tensors_in_node(wire, (*path, field))
        elif field.number == proto.GRAPH_INITIALIZER:
            yield (*path, field), True
        else:
            yield from _find_sparse_parts(wire, (*path, field))


def _find_tensors_in_node(wire: WireReader, path: tuple[Field, ...]) -> Iterator[_TensorPath]:
    for attribute in wire.message(path[-1], frozenset({proto.NODE_ATTRIBUTE})):
        for value in wire.message(attribute, _ATTRIBUTE_FIELDS):
            inner = (*path, attribute, value)
            if value.number in proto.ATTRIBUTE_TENSORS:
                yield inner, False
            elif value.number in proto.ATTRIBUTE_GRAPHS:
                yield from _find_tensors_in_graph(wire, inner)
            else:
                yield from _find_sparse_parts(wire, inner)


def _find_sparse_parts(wire: WireReader, path: tuple[Field, ...]) -> Iterator[_TensorPath]:
    """Yield the paths of the values and the indices of a sparse tensor."""
    for part in wire.message(path[-1], proto.SPARSE_TENSOR_PARTS):
        yield (*path, part), False
