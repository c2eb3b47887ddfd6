"""Sampling in rounds. Contenders take turns, so that a disturbance affects all of them alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from results import Series, Unit


@dataclass(frozen=True)
class Contender:
    """Subject of repeated measurements. `sample` prepares one run, executes it, and returns its measurement."""

    what: str
    sample: Callable[[], float]


def interleave(contenders: Sequence[Contender], rounds: int, unit: Unit = "s") -> list[Series]:
    """Return `rounds` samples of each contender, in their order. A first round only warms caches."""
    samples: dict[str, list[float]] = {contender.what: [] for contender in contenders}
    for number in range(rounds + 1):
        # The first contender may pay for, or gain from, the state that the others left. Each round starts with another one.
        first = number % len(contenders)
        for contender in (*contenders[first:], *contenders[:first]):
            value = contender.sample()
            if number > 0:
                samples[contender.what].append(value)
    return [Series(what, unit, tuple(values)) for what, values in samples.items()]
