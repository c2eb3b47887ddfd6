"""Sizes of open dimensions in a first recipe: given, answered or suggested."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from msgspec import Struct

from epbuild.onnxfile.read.model_header import Dimension, ModelHeader, ValueInfo, get_symbol
from epbuild.onnxfile.read.sizes import apply_shapes, fit_sizes, format_shape, suggest_sizes

Sizes = tuple[int, ...]

_SIZES = re.compile(r"\s*[\[(]?\s*([0-9]+(?:\s*[,x\s]\s*[0-9]+)*)\s*[\])]?\s*")
_SEPARATOR = re.compile(r"\s*[,x]\s*|\s+")
# Exporters invent dimension names with digits. These names mean nothing in another model.
_INVENTED_NAME = re.compile(r"[0-9]")


class BadSizes(ValueError):
    """Error for sizes that an input cannot have. The message is a sentence."""


class Sized(Struct, frozen=True):
    """Sizes of an input, with its declared shape. `chosen` is True if the user chose the sizes for this model."""

    sizes: Sizes
    declared: str
    chosen: bool
    by_names: bool = False
    """True if the sizes come from dimensions of the same names in another model."""


class SizeQuestions(Protocol):
    """Interface that asks users for sizes."""

    def sizes(self, model: str, value: ValueInfo, suggested: Sizes | None, read: Callable[[str], Sizes]) -> Sizes:
        """Ask for the sizes of a model's input until the answer is valid, and return them. `suggested` is the default answer, if any.

        `read` parses an answer, and raises BadSizes if the input cannot have these sizes.
        """


@dataclass
class Sizing:
    """Sizes of inputs, determined for one model after another. If `questions` is None, suggested sizes are used."""

    given: Mapping[str, Sizes] = field(default_factory=dict)
    """Sizes by `input`, for every model with an input of this name, or by `model:input`."""
    questions: SizeQuestions | None = None
    used: set[str] = field(default_factory=set)
    """Keys of `given` that matched an input."""
    _symbols: dict[str, int] = field(default_factory=dict)
    """Sizes of named dimensions in earlier models."""

    def sizes_of(self, model: str, header: ModelHeader, *, static: bool) -> dict[str, Sized]:
        """Return the sizes of a model's inputs: all sizes if `static` is set, or else only the given sizes.

        Raises BadSizes for given sizes that an input cannot have, and for an input with an unknown number of dimensions.
        """
        found = {
            value.name: Sized(sizes, format_shape(value.shape), chosen=True) for value, sizes in self._list_given(model, header)
        }
        _check_sizes(model, header, found)
        while static and (values := _find_open_inputs(header, found)):
            value = values[0]
            if value.shape is None and self.questions is None:
                raise BadSizes(f"The model does not declare the number of dimensions of the input {value.name}: pass --size.")
            known = [each._replace(shape=self._fill_known(each.shape)) for each in values]
            suggested = suggest_sizes(known).get(value.name)
            answered = suggested is None and known[0].shape is not None
            sizes: Sizes | None = tuple(size for size in known[0].shape or () if isinstance(size, int)) if answered else suggested
            chosen = False
            if self.questions is not None and not answered:
                read = partial(_read_fitting_sizes, model, header, found, value.name)
                sizes, chosen = self.questions.sizes(model, known[0], suggested, read), True
            found[value.name] = Sized(sizes or (), format_shape(value.shape), chosen, by_names=answered)
            self._remember(value, sizes or ())
        return found

    def _list_given(self, model: str, header: ModelHeader) -> Iterator[tuple[ValueInfo, Sizes]]:
        for value in header.inputs:
            key = next((key for key in (f"{model}:{value.name}", value.name) if key in self.given), None)
            if key is not None:
                self.used.add(key)
                self._remember(value, self.given[key])
                yield value, self.given[key]

    def _fill_known(self, shape: tuple[Dimension, ...] | None) -> tuple[Dimension, ...] | None:
        """Return the shape with named dimensions replaced by their known sizes."""
        return None if shape is None else tuple(self._symbols.get(get_symbol(size) or "", size) for size in shape)

    def _remember(self, value: ValueInfo, sizes: Sequence[int]) -> None:
        for declared, size in zip(value.shape or (), sizes, strict=False):
            name = get_symbol(declared)
            if name is not None and not _INVENTED_NAME.search(name):
                self._symbols.setdefault(name, size)


def _read_fitting_sizes(model: str, header: ModelHeader, found: Mapping[str, Sized], name: str, text: str) -> Sizes:
    """Parse the sizes of the input `name`. Raises BadSizes unless they are consistent with the sizes in `found`."""
    sizes = read_sizes(text)
    _check_sizes(model, header, {**found, name: Sized(sizes, "", chosen=True)})
    return sizes


def _check_sizes(model: str, header: ModelHeader, found: Mapping[str, Sized]) -> None:
    for misfit in fit_sizes(header, {name: sized.sizes for name, sized in found.items()}).misfits:
        place = "" if misfit.dimension is None else f", dimension {misfit.dimension + 1}"
        raise BadSizes(f"The input {misfit.input} of {model}{place}: {misfit.reason}.")


def read_sizes(text: str) -> Sizes:
    """Parse sizes such as `1,3,224,224`, `[1, 3, 224, 224]` or `1x3x224x224`. Raises BadSizes."""
    found = _SIZES.fullmatch(text)
    sizes = tuple(int(number) for number in _SEPARATOR.split(found[1].strip())) if found else ()
    if not sizes or 0 in sizes:
        raise BadSizes(f"'{text}' is not a shape: write positive integers, such as 1,3,224,224.")
    return sizes


def _find_open_inputs(header: ModelHeader, found: Mapping[str, Sized]) -> list[ValueInfo]:
    """Return the inputs that still have an open dimension when the known sizes are applied."""
    shapes = fit_sizes(header, {name: sized.sizes for name, sized in found.items()}).shapes
    inputs = apply_shapes(header, shapes).inputs
    return [
        value for value in inputs if value.elem_type and (value.shape is None or any(not isinstance(s, int) for s in value.shape))
    ]
