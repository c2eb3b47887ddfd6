"""Differences of outputs, element by element, and their tolerances.

A difference is held against `atol + rtol * (the largest expected magnitude of that output)`: what half precision and quantisation cost
grows with the range of an output, also for those of its elements that happen to be near zero.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import Struct

from epbuild.verify.live.metrics import check_alike

if TYPE_CHECKING:
    import numpy as np


class Tolerance(Struct, frozen=True):
    """The difference that an output may have: absolute, and as a part of its largest expected magnitude."""

    atol: float
    rtol: float


_EXACT = Tolerance(0, 0)
# QNN's emulator is off by 0.0015 on the quickstart's classifier, and by 0.0025 of the largest logit on its decoder.
_FLOATING = Tolerance(0.005, 0.005)
# Eight layers with activations of eight bits are off by 0.0084 on the emulator, where most outputs are within 0.06.
_QUANTISED = Tolerance(0.01, 0.05)
# Two steps of eight bits, whatever the bits that they are written with.
_STEPS = {1: Tolerance(2, 0), 2: Tolerance(512, 0)}


def default_tolerance(dtype: np.dtype[Any], *, quantised: bool) -> Tolerance:
    """What an output of this type may be off by; `quantised`: the source model computes with quantised values.

    Integers of 8 and 16 bits are taken for quantised values; wider ones, booleans and texts have to be equal.
    """
    if dtype.kind == "f":
        return default_float(quantised=quantised)
    return _STEPS.get(dtype.itemsize, _EXACT) if dtype.kind in "iu" else _EXACT


def default_float(*, quantised: bool) -> Tolerance:
    return _QUANTISED if quantised else _FLOATING


class Worst(Struct, frozen=True):
    """The element of one output that is furthest from what it should be, in terms of what is allowed."""

    output: str
    index: tuple[int, ...]
    expected: str
    got: str
    difference: float
    """Infinite where the two cannot be subtracted: not a number against a number, or two texts."""
    allowed: float
    outside: int
    """How many elements are off by more than is allowed."""
    elements: int

    @property
    def severity(self) -> float:
        """The difference in terms of the allowed one; more than 1 is too much."""
        return self.difference / self.allowed if self.allowed else float("inf") if self.difference else 0.0

    @property
    def place(self) -> str:
        """Where it is, and what is expected and came out there."""
        place = f"{self.output}[{', '.join(map(str, self.index))}]" if self.index else self.output
        return f"{place}: expected {self.expected}, got {self.got}"

    def __str__(self) -> str:
        if self.difference in (0.0, float("inf")):
            return self.place
        return f"{self.place}; off by {self.difference:.3g}, where {self.allowed:.3g} is allowed"


def worst_element(output: str, expected: np.ndarray[Any, Any], got: np.ndarray[Any, Any], tolerance: Tolerance) -> Worst | None:
    """The worst element of an output; None for one that has no elements. Raises DifferentOutput."""
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
        exact, found = expected.astype(np.float64), got.astype(np.float64)
        with np.errstate(invalid="ignore"):
            difference = np.where(same, 0.0, np.abs(exact - found))
        difference = np.where(np.isnan(difference), np.inf, difference)
        if expected.dtype.kind in "iu":
            difference = np.where(same, 0.0, np.maximum(difference, 1.0))  # larger ones than a float can distinguish
        finite = np.abs(exact[np.isfinite(exact)])
        allowed = tolerance.atol + tolerance.rtol * float(finite.max(initial=0.0))
    at = tuple(int(part) for part in np.unravel_index(int(np.argmax(difference)), difference.shape))
    return Worst(
        output=output,
        index=at,
        expected=_shown(expected[at]),
        got=_shown(got[at]),
        difference=float(difference[at]),
        allowed=allowed,
        # What cannot be subtracted is outside whatever is allowed, also when that is NaN itself.
        outside=int(np.count_nonzero(~(difference <= allowed) | np.isinf(difference))),
        elements=int(expected.size),
    )


def _shown(value: Any) -> str:
    return f"{value:.6g}" if getattr(value, "dtype", None) is not None and value.dtype.kind == "f" else str(value)
