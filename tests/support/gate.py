"""Test parameters of which most run only in the gate or at night."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from typing import Any

import pytest


def mark_rest_exhaustive(cases: Iterable[Any], sample: Container[Any]) -> list[Any]:
    """Return all cases, and mark those outside the sample with `exhaustive`."""
    night = pytest.mark.exhaustive
    return [
        case if case in sample else pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=night) for case in cases
    ]


def sampled(cases: Iterable[Any], every: int) -> Iterator[Any]:
    """Yield all cases, and mark all but one of `every` with `gate`."""
    for number, case in enumerate(cases):
        if number % every == 0:
            yield case
        elif hasattr(case, "marks"):
            yield pytest.param(*case.values, id=case.id, marks=[*case.marks, pytest.mark.gate])
        else:
            yield pytest.param(case, marks=pytest.mark.gate)
