"""Differences of outputs: metrics of an output, and its worst element.

The metrics, with `x` for the expected and `y` for the actual numbers, over all elements of all samples of an output:

- `cosine`: sum(x y) / sqrt(sum(x x) sum(y y)). Not defined for a single element, or if all of `x` or all of `y` is zero.
- `snr_db`: 10 log10(sum(x x) / sum((x - y)^2)), in dB. Not defined if all of `x` is zero, or if nothing differs.
- `max_abs`: the largest |x - y|.
- `max_rel`: `max_abs` divided by the largest |x|, as the element's own |x| can be near zero. Not defined if all of `x` is zero.
- `top1`: the fraction of rows (along the last axis) in which the largest `y` and the largest `x` have the same index. For wide integers,
  booleans and texts, which are indices or answers: the fraction of equal elements. Not defined for rows of one number.

Everything is summed as 64-bit floats, a block at a time, so that memory does not grow with an output.

A tolerance is `atol + rtol * (the largest expected magnitude of that output)`: errors of half precision and quantization grow with the
range of an output, also for elements near zero.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from epbuild.plan.result import Figures

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np

    Array = np.ndarray[Any, Any]

_BLOCK = 1 << 20


class DifferentOutput(ValueError):
    """Error for an output that cannot be compared, because its type or shape is unexpected. The text is a sentence."""


def get_figure_kind(dtype: np.dtype[Any]) -> str:
    """Return how outputs of this type are measured: as `float`, as `steps` (small integers) or as `exact` values."""
    if dtype.kind == "f":
        return "float"
    return "steps" if dtype.kind in "iu" and dtype.itemsize < 4 else "exact"


@dataclass
class Meter:
    """Accumulator for the figures of one output over all samples."""

    output: str
    _samples: int = 0
    _elements: int = 0
    _kind: str = "exact"
    _bits: int = 0
    _sums: dict[str, float] = field(default_factory=lambda: dict.fromkeys(("xx", "yy", "xy", "dd"), 0.0))
    _largest: dict[str, float] = field(default_factory=lambda: dict.fromkeys(("x", "y", "d"), 0.0))
    _range: tuple[float, float] = (math.inf, -math.inf)
    _undefined: int = 0
    _lost: int = 0
    _rows: int = 0
    _agreeing: int = 0

    def add(self, expected: Array, got: Array) -> None:
        """Add one sample. Raises DifferentOutput if the arrays cannot be compared."""
        check_alike(self.output, expected, got)
        self._samples += 1
        self._elements += expected.size
        self._kind, self._bits = get_figure_kind(expected.dtype), expected.dtype.itemsize * 8
        if expected.dtype.kind in "fiub":
            for x, y in _split_into_blocks(expected, got):
                self._add_block(x, y)
        self._compare_largest(expected, got)

    def _add_block(self, x: Array, y: Array) -> None:
        """Add a block of expected and actual numbers to the sums and maxima."""
        import numpy as np

        is_x_finite, is_y_finite = np.isfinite(x), np.isfinite(y)
        self._undefined += int(np.count_nonzero(~is_x_finite))
        self._lost += int(np.count_nonzero(is_x_finite & ~is_y_finite))
        for name, values in (("x", x[is_x_finite]), ("y", y[is_y_finite])):
            self._largest[name] = max(self._largest[name], float(np.abs(values).max(initial=0.0)))
        are_finite = is_x_finite & is_y_finite
        if not are_finite.all():
            x, y = x[are_finite], y[are_finite]
        if not x.size:
            return
        difference = x - y
        with np.errstate(over="ignore", invalid="ignore"):
            for name, left, right in (("xx", x, x), ("yy", y, y), ("xy", x, y), ("dd", difference, difference)):
                self._sums[name] += float(np.dot(left, right))
        self._largest["d"] = max(self._largest["d"], float(np.abs(difference).max()))
        self._range = (min(self._range[0], float(x.min())), max(self._range[1], float(x.max())))

    def _compare_largest(self, expected: Array, got: Array) -> None:
        """Count the rows whose largest numbers have the same index, or count the equal elements."""
        import numpy as np

        if get_figure_kind(expected.dtype) == "exact":
            self._rows += expected.size
            self._agreeing += int(np.count_nonzero(expected == got))
        elif expected.size and expected.ndim and expected.shape[-1] > 1:
            rows, got_rows = (array.reshape(-1, array.shape[-1]) for array in (expected, got))
            indices = np.argmax(got_rows, axis=1)[:, None]
            # If several expected numbers are the largest, any of their indices is right.
            chosen = np.take_along_axis(rows, indices, axis=1)[:, 0]
            is_finite = np.isfinite(np.take_along_axis(got_rows, indices, axis=1)[:, 0]) if got.dtype.kind == "f" else True
            self._rows += len(rows)
            self._agreeing += int(np.count_nonzero((chosen == rows.max(axis=1)) & is_finite))

    @property
    def figures(self) -> Figures:
        xx, yy, xy, dd = (self._sums[name] for name in ("xx", "yy", "xy", "dd"))
        numbers = self._kind != "exact" and not self._lost
        norm = math.sqrt(xx) * math.sqrt(yy)
        largest, difference = self._largest["x"], self._largest["d"]
        return Figures(
            output=self.output,
            kind=self._kind,
            bits=self._bits,
            samples=self._samples,
            elements=self._elements,
            cosine=_divide_cosine(xy, norm) if numbers and norm and self._elements > self._samples else None,
            snr_db=_drop_infinite(10 * math.log10(xx / dd)) if numbers and xx and dd else None,
            max_abs=_drop_infinite(difference) if not self._lost else None,
            max_rel=_drop_infinite(difference / largest) if numbers and largest else None,
            top1=self._agreeing / self._rows if self._rows else None,
            largest=largest,
            largest_got=self._largest["y"],
            constant=self._elements > self._samples and self._range[0] == self._range[1],
            undefined=self._undefined,
            lost=self._lost,
        )


def check_alike(output: str, expected: Array, got: Array) -> None:
    """Raise DifferentOutput if an output has an unexpected type or shape."""
    if expected.shape != got.shape:
        raise DifferentOutput(f"the shape of the output '{output}' is {got.shape}, but should be {expected.shape}")
    # Types of texts differ if their lengths differ.
    if expected.dtype != got.dtype and not expected.dtype.kind == got.dtype.kind == "U":
        raise DifferentOutput(f"the type of the output '{output}' is {got.dtype}, but should be {expected.dtype}")


def _split_into_blocks(expected: Array, got: Array) -> Iterator[tuple[Array, Array]]:
    """Yield two arrays as blocks of 64-bit floats."""
    import numpy as np

    left, right = expected.reshape(-1), got.reshape(-1)
    for begin in range(0, left.size, _BLOCK):
        part = slice(begin, begin + _BLOCK)
        yield left[part].astype(np.float64), right[part].astype(np.float64)


def _divide_cosine(product: float, norm: float) -> float | None:
    # Rounding can exceed 1. The bounds must not turn NaN into 1.
    return max(-1.0, min(1.0, product / norm)) if math.isfinite(product) and math.isfinite(norm) else None


def _drop_infinite(value: float) -> float | None:
    return value if math.isfinite(value) else None


class Tolerance(Struct, frozen=True):
    """Allowed difference of an output: an absolute part, and a part relative to the largest expected magnitude."""

    atol: float
    rtol: float


_EXACT = Tolerance(0, 0)
# An EP's emulator has an error of 0.0015 on the quickstart's classifier, and of 0.0025 times the largest logit on its
# decoder.
_FLOAT = Tolerance(0.005, 0.005)
# Eight layers with 8-bit activations have an error of 0.0084 on the same emulator. Most of their outputs are below
# 0.06.
_QUANTIZED = Tolerance(0.01, 0.05)
# Two steps of an 8-bit quantization, by the element's size in bytes. Quantized values can be stored with more bits.
_STEPS = {1: Tolerance(2, 0), 2: Tolerance(512, 0)}


def get_default_tolerance(dtype: np.dtype[Any], *, quantized: bool) -> Tolerance:
    """Return the tolerance of an output by its type. `quantized` means that the source model computes with quantized values.

    8-bit and 16-bit integers count as quantized values. Wider integers, booleans and texts must be equal.
    """
    if dtype.kind == "f":
        return _QUANTIZED if quantized else _FLOAT
    return _STEPS.get(dtype.itemsize, _EXACT) if dtype.kind in "iu" else _EXACT


class Worst(Struct, frozen=True):
    """Element of an output that has the largest difference relative to its tolerance."""

    output: str
    index: tuple[int, ...]
    expected: str
    got: str
    difference: float
    """Absolute difference. Infinite if only one value is NaN, or if the values are different strings."""
    allowed: float
    outside: int
    """Number of elements in the output that differ by more than their tolerance."""
    elements: int

    @property
    def severity(self) -> float:
        """Difference divided by the tolerance. A value above 1 exceeds the tolerance."""
        return self.difference / self.allowed if self.allowed else float("inf") if self.difference else 0.0

    @property
    def place(self) -> str:
        """Position of the element, with its expected and actual values."""
        place = f"{self.output}[{', '.join(map(str, self.index))}]" if self.index else self.output
        return f"{place}: expected {self.expected}, got {self.got}"

    def __str__(self) -> str:
        if self.difference in (0.0, float("inf")):
            return self.place
        return f"{self.place}; the difference is {self.difference:.3g}, and {self.allowed:.3g} is allowed"


def find_worst_element(
    output: str, expected: np.ndarray[Any, Any], got: np.ndarray[Any, Any], tolerance: Tolerance
) -> Worst | None:
    """Find the worst element of an output. Return None if the output has no elements. Raises DifferentOutput."""
    import numpy as np

    check_alike(output, expected, got)
    if expected.size == 0:
        return None
    same = expected == got
    if expected.dtype.kind in "fc":
        same |= np.isnan(expected) & np.isnan(got)
    if expected.dtype.kind == "U":
        difference, allowed = np.where(same, 0.0, np.inf), 0.0
    else:
        x, y = expected.astype(np.float64), got.astype(np.float64)
        with np.errstate(invalid="ignore"):
            difference = np.where(same, 0.0, np.abs(x - y))
        difference = np.where(np.isnan(difference), np.inf, difference)
        if expected.dtype.kind in "iu":
            difference = np.where(same, 0.0, np.maximum(difference, 1.0))  # too large for floats to distinguish
        magnitudes = np.abs(x[np.isfinite(x)])
        allowed = tolerance.atol + tolerance.rtol * float(magnitudes.max(initial=0.0))
    index = tuple(int(part) for part in np.unravel_index(int(np.argmax(difference)), difference.shape))
    return Worst(
        output=output,
        index=index,
        expected=_format_value(expected[index]),
        got=_format_value(got[index]),
        difference=float(difference[index]),
        allowed=allowed,
        # Elements whose difference is not a number are always outside, even if the tolerance is NaN.
        outside=int(np.count_nonzero(~(difference <= allowed) | np.isinf(difference))),
        elements=int(expected.size),
    )


def _format_value(value: Any) -> str:
    return f"{value:.6g}" if getattr(value, "dtype", None) is not None and value.dtype.kind == "f" else str(value)
