"""Sizes of open dimensions in a first recipe: given, asked for, or suggested."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from msgspec import Struct

from epbuild.onnxfile.read.model_header import Dimension, ModelHeader, ValueInfo, symbol
from epbuild.onnxfile.read.sizes import fit_sizes, shape_text, sized_header, suggest_sizes

Sizes = tuple[int, ...]

_SIZES = re.compile(r"\s*[\[(]?\s*([0-9]+(?:\s*[,x\s]\s*[0-9]+)*)\s*[\])]?\s*")
_SEPARATOR = re.compile(r"\s*[,x]\s*|\s+")
# Exporters that know no name make one up: it means nothing in another model.
_MADE_UP = re.compile(r"[0-9]")


class BadSizes(ValueError):
    """Sizes that an input cannot have; the text is a sentence."""


class Sized(Struct, frozen=True):
    """The sizes of an input, its shape in the model, and whether a person chose them for this model."""

    sizes: Sizes
    declared: str
    chosen: bool
    by_names: bool = False
    """Whether they are the sizes that dimensions of the same names have in another model."""


class SizeAnswer(Protocol):
    """What an answer may be."""

    def read(self, text: str) -> Sizes:
        """The sizes that an answer gives. Raises BadSizes where the input cannot have them."""


class SizeQuestions(Protocol):
    """Asks for sizes."""

    def sizes(self, model: str, value: ValueInfo, suggested: Sizes | None, answer: SizeAnswer) -> Sizes:
        """The sizes of a model's input, asked for until an answer passes; with a suggestion, where there is one."""


@dataclass
class Sizing:
    """Finds sizes for one model after another. `questions` is None where nobody can be asked: then what is suggested is taken."""

    given: Mapping[str, Sizes] = field(default_factory=dict)
    """Sizes by `input`, for every model that has such an input, or by `model:input`."""
    questions: SizeQuestions | None = None
    used: set[str] = field(default_factory=set)
    """Which of those given were the sizes of an input."""
    _symbols: dict[str, int] = field(default_factory=dict)
    """What the dimensions of a name came to, in the models before."""

    def sizes_of(self, model: str, header: ModelHeader, *, static: bool) -> dict[str, Sized]:
        """The sizes of a model's inputs; where not all have to be `static`, those that were given.

        Raises BadSizes for given ones that an input cannot have, and for an input of which not even the number of dimensions is known.
        """
        found = {value.name: Sized(sizes, shape_text(value.shape), chosen=True) for value, sizes in self._given(model, header)}
        _check(model, header, found)
        while static and (values := _open(header, found)):
            value = values[0]
            if value.shape is None and self.questions is None:
                raise BadSizes(f"The file does not hold how many dimensions the input {value.name} has: give --size.")
            known = [each._replace(shape=self._known(each.shape)) for each in values]
            suggested = suggest_sizes(known).get(value.name)
            answered = suggested is None and known[0].shape is not None
            sizes: Sizes | None = tuple(size for size in known[0].shape or () if isinstance(size, int)) if answered else suggested
            chosen = False
            if self.questions is not None and not answered:
                answer = _FittingSizes(model, header, found, value.name)
                sizes, chosen = self.questions.sizes(model, known[0], suggested, answer), True
            found[value.name] = Sized(sizes or (), shape_text(value.shape), chosen, by_names=answered)
            self._learn(value, sizes or ())
        return found

    def _given(self, model: str, header: ModelHeader) -> Iterator[tuple[ValueInfo, Sizes]]:
        for value in header.inputs:
            key = next((key for key in (f"{model}:{value.name}", value.name) if key in self.given), None)
            if key is not None:
                self.used.add(key)
                self._learn(value, self.given[key])
                yield value, self.given[key]

    def _known(self, shape: tuple[Dimension, ...] | None) -> tuple[Dimension, ...] | None:
        """A shape with the sizes that names have by now."""
        return None if shape is None else tuple(self._symbols.get(symbol(size) or "", size) for size in shape)

    def _learn(self, value: ValueInfo, sizes: Sequence[int]) -> None:
        for declared, size in zip(value.shape or (), sizes, strict=False):
            name = symbol(declared)
            if name is not None and not _MADE_UP.search(name):
                self._symbols.setdefault(name, size)


class _FittingSizes(Struct, frozen=True):
    """Sizes of one input that fit those which others have by now."""

    model: str
    header: ModelHeader
    found: Mapping[str, Sized]
    name: str

    def read(self, text: str) -> Sizes:
        sizes = read_sizes(text)
        _check(self.model, self.header, {**self.found, self.name: Sized(sizes, "", chosen=True)})
        return sizes


def _check(model: str, header: ModelHeader, found: Mapping[str, Sized]) -> None:
    for misfit in fit_sizes(header, {name: sized.sizes for name, sized in found.items()}).misfits:
        place = "" if misfit.dimension is None else f", dimension {misfit.dimension + 1}"
        raise BadSizes(f"The input {misfit.input} of {model}{place}: {misfit.reason}.")


def read_sizes(text: str) -> Sizes:
    """Sizes as people write them: `1,3,224,224`, `[1, 3, 224, 224]`, `1x3x224x224`. Raises BadSizes."""
    found = _SIZES.fullmatch(text)
    sizes = tuple(int(number) for number in _SEPARATOR.split(found[1].strip())) if found else ()
    if not sizes or 0 in sizes:
        raise BadSizes(f"'{text}' is no shape: write whole numbers from 1 on, such as 1,3,224,224.")
    return sizes


def _open(header: ModelHeader, found: Mapping[str, Sized]) -> list[ValueInfo]:
    """The inputs that have an open dimension, once others have their sizes."""
    shapes = fit_sizes(header, {name: sized.sizes for name, sized in found.items()}).shapes
    inputs = sized_header(header, shapes).inputs
    return [
        value for value in inputs if value.elem_type and (value.shape is None or any(not isinstance(s, int) for s in value.shape))
    ]
