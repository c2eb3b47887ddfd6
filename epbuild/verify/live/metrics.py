"""Metrics of an output: cosine, SNR, largest difference, top-1 agreement.

With `x` for what is expected and `y` for what came out, over all elements of all samples of an output:

- `cosine`: sum(x y) / sqrt(sum(x x) sum(y y)). Not defined where there is one element only, or where `x` or `y` is zero throughout.
- `snr_db`: 10 log10(sum(x x) / sum((x - y)^2)), in dB. Not defined where `x` is zero throughout, or where nothing differs.
- `max_abs`: the largest |x - y|.
- `max_rel`: `max_abs` as a part of the largest |x|; not of the element's own, which may be near zero. Not defined where `x` is zero.
- `top1`: the part of the rows (along the last axis) in which the largest `y` is where the largest `x` is. Of what a model answers with
  an index, which are wide integers, booleans and texts, the part of the elements that are equal. Not defined for rows of one number.

Everything is summed as 64-bit floats, a block at a time, so that memory does not grow with an output.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from epbuild.plan.result import Figures

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np

    Array = np.ndarray[Any, Any]

_BLOCK = 1 << 20


class DifferentOutput(ValueError):
    """An output is not even of the type or the shape that it should have; the text is a sentence."""


def kind_of(dtype: np.dtype[Any]) -> str:
    """How outputs of a type are compared: the `kind` of their figures."""
    if dtype.kind == "f":
        return "float"
    return "steps" if dtype.kind in "iu" and dtype.itemsize < 4 else "exact"


@dataclass
class Meter:
    """The figures of one output, a sample at a time."""

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
        """Count one sample; raises DifferentOutput where the two cannot be compared."""
        check_alike(self.output, expected, got)
        self._samples += 1
        self._elements += expected.size
        self._kind, self._bits = kind_of(expected.dtype), expected.dtype.itemsize * 8
        if expected.dtype.kind in "fiub":
            for exact, found in _blocks(expected, got):
                self._count(exact, found)
        self._compare_largest(expected, got)

    def _count(self, exact: Array, found: Array) -> None:
        import numpy as np

        known, here = np.isfinite(exact), np.isfinite(found)
        self._undefined += int(np.count_nonzero(~known))
        self._lost += int(np.count_nonzero(known & ~here))
        for name, values in (("x", exact[known]), ("y", found[here])):
            self._largest[name] = max(self._largest[name], float(np.abs(values).max(initial=0.0)))
        if not (known & here).all():
            exact, found = exact[known & here], found[known & here]
        if not exact.size:
            return
        difference = exact - found
        with np.errstate(over="ignore", invalid="ignore"):
            for name, left, right in (
                ("xx", exact, exact),
                ("yy", found, found),
                ("xy", exact, found),
                ("dd", difference, difference),
            ):
                self._sums[name] += float(np.dot(left, right))
        self._largest["d"] = max(self._largest["d"], float(np.abs(difference).max()))
        self._range = (min(self._range[0], float(exact.min())), max(self._range[1], float(exact.max())))

    def _compare_largest(self, expected: Array, got: Array) -> None:
        import numpy as np

        if kind_of(expected.dtype) == "exact":
            self._rows += expected.size
            self._agreeing += int(np.count_nonzero(expected == got))
        elif expected.size and expected.ndim and expected.shape[-1] > 1:
            rows, others = (array.reshape(-1, array.shape[-1]) for array in (expected, got))
            at = np.argmax(others, axis=1)
            # Where several are the largest, each of them is the right one.
            chosen = np.take_along_axis(rows, at[:, None], axis=1)[:, 0]
            whole = np.isfinite(np.take_along_axis(others, at[:, None], axis=1)[:, 0]) if got.dtype.kind == "f" else True
            self._rows += len(rows)
            self._agreeing += int(np.count_nonzero((chosen == rows.max(axis=1)) & whole))

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
            cosine=_cosine(xy, norm) if numbers and norm and self._elements > self._samples else None,
            snr_db=_finite(10 * math.log10(xx / dd)) if numbers and xx and dd else None,
            max_abs=_finite(difference) if not self._lost else None,
            max_rel=_finite(difference / largest) if numbers and largest else None,
            top1=self._agreeing / self._rows if self._rows else None,
            largest=largest,
            largest_got=self._largest["y"],
            constant=self._elements > self._samples and self._range[0] == self._range[1],
            undefined=self._undefined,
            lost=self._lost,
        )


def check_alike(output: str, expected: Array, got: Array) -> None:
    """Raise DifferentOutput where an output is not of the type and the shape that it should have."""
    for what, here, there in (("shape", expected.shape, got.shape), ("type", expected.dtype, got.dtype)):
        if here != there and not (what == "type" and expected.dtype.kind == got.dtype.kind == "U"):
            raise DifferentOutput(f"the {what} of the output '{output}' is {there}, and should be {here}")


def _blocks(expected: Array, got: Array) -> Iterator[tuple[Array, Array]]:
    """Two arrays of numbers as 64-bit floats, a block at a time."""
    import numpy as np

    left, right = expected.reshape(-1), got.reshape(-1)
    for begin in range(0, left.size, _BLOCK):
        part = slice(begin, begin + _BLOCK)
        yield left[part].astype(np.float64), right[part].astype(np.float64)


def _cosine(product: float, norm: float) -> float | None:
    # Rounding may lead beyond 1; NaN must not become one by the bounds.
    return max(-1.0, min(1.0, product / norm)) if math.isfinite(product) and math.isfinite(norm) else None


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
