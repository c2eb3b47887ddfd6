"""Weights that several models have in common, by content.

Equal bytes are equal weights, whatever they are called. No more is read than is needed to distinguish contents: two tensors of
other sizes differ, as do those that begin with other bytes, and one place in one file is one content.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple

from msgspec import Struct

from epbuild.core.safepath import open_regular
from epbuild.onnxfile.headers import read_header
from epbuild.onnxfile.model_header import ModelHeader
from epbuild.onnxfile.tensors import digest, extent
from epbuild.onnxfile.wire import MalformedModel

_SAMPLE = 4096


class Weight(NamedTuple):
    """Where a tensor's bytes lie; `plain`: as raw data has them, so that other bytes are another content."""

    file: Path
    start: int
    size: int
    plain: bool


class WeightBytes(Struct, frozen=True):
    """The weights of several models: `total_bytes` counts a content once for each model that has it, `stored_bytes` once in all."""

    total_bytes: int
    stored_bytes: int


def read_weights(model: Path, data: Mapping[str, Path]) -> tuple[Weight, ...]:
    """The weights of the model file at `model`; otherwise as `weights_of`."""
    return weights_of(read_header(model), model, data)


def weights_of(header: ModelHeader, model: Path, data: Mapping[str, Path]) -> tuple[Weight, ...]:
    """The tensors of a model that have any bytes; `data` has the files of its external data by the location that the model names.

    Raises MalformedModel where a file is not whole, OSError where one cannot be looked at.
    """
    return tuple(weight for weight in _weights_of(header, model, data) if weight.size)


def _weights_of(header: ModelHeader, model: Path, data: Mapping[str, Path]) -> Iterator[Weight]:
    for tensor, tag_at, start, end, plain in header.tensors:
        if tensor.external is None:
            yield Weight(model, start, end - start, plain)
            continue
        place = data.get(tensor.external.location)
        if place is None:
            raise MalformedModel(f"the external data {tensor.external.location} is not known", tag_at)
        begin, size = extent(tensor, tensor.external, place.stat().st_size, tag_at)
        yield Weight(place, begin, size, plain=True)


def count_weights(models: Sequence[Iterable[Weight]]) -> WeightBytes:
    """What the weights of models come to, each content once by model, and once in all.

    Reads what may be equal, in pieces. Raises MalformedModel where a file became shorter, OSError where one cannot be read.
    """
    weights = [frozenset(model) for model in models]
    samples = _marks(dict.fromkeys(weight for model in weights for weight in model), _sample)
    contents = _marks(samples, lambda file, weight: digest(file, weight.start, weight.size))
    by_model = [{contents[weight]: weight.size for weight in model} for model in weights]
    stored = {content: size for model in by_model for content, size in model.items()}
    return WeightBytes(sum(sum(model.values()) for model in by_model), sum(stored.values()))


def most_in_common(models: Mapping[str, Iterable[Weight]]) -> dict[str, tuple[int, int]]:
    """How many bytes of each model's weights another model may have too, at most, and how many there are.

    Less than that may be in common, and never more: of two contents, the sizes and the first bytes are compared. Raises MalformedModel
    where a file became shorter, OSError where one cannot be read.
    """
    weights = {name: tuple(model) for name, model in models.items()}
    samples = _marks(dict.fromkeys(weight for model in weights.values() for weight in model), _sample)
    users = Counter(sample for model in weights.values() for sample in {samples[weight] for weight in model})
    return {
        name: (
            sum(weight.size for weight in model if not weight.plain or users[samples[weight]] > 1),
            sum(weight.size for weight in model),
        )
        for name, model in weights.items()
    }


def _sample(file: BinaryIO, weight: Weight) -> bytes:
    file.seek(weight.start)
    wanted = min(weight.size, _SAMPLE)
    sample = file.read(wanted)
    if len(sample) < wanted:
        raise MalformedModel("the file became shorter while it was read", weight.start)
    return sample


def _marks(
    alike: Mapping[Weight, Hashable], read: Callable[[BinaryIO, Weight], Hashable]
) -> dict[Weight, tuple[Hashable, int, Hashable]]:
    """A mark for each weight, by what was alike so far: two have the same one where what is read of them is equal, and their sizes are.

    What no other is alike is not read.
    """
    classes = defaultdict[tuple[Hashable, int], list[Weight]](list)
    for weight, mark in alike.items():
        classes[mark, weight.size].append(weight)
    marks: dict[Weight, tuple[Hashable, int, Hashable]] = {}
    to_read = defaultdict[Path, list[tuple[Weight, Hashable]]](list)
    for (mark, size), members in classes.items():
        if len(members) == 1:
            marks[members[0]] = (mark, size, b"")
        for weight in members if len(members) > 1 else ():
            to_read[weight.file].append((weight, mark))
    for path, wanted in to_read.items():
        with open_regular(path) as file:
            for weight, mark in sorted(wanted, key=lambda item: item[0].start):
                marks[weight] = (mark, weight.size, read(file, weight))
    return marks
