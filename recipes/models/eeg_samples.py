"""Inputs of ICLabel (package mne-icalabel), to calibrate its quantization and to check its numbers.

ICLabel classifies components of electroencephalograms. The samples resemble the features of components, and come from no
person.

The script uses only operations that every machine rounds alike. It has no exponentials, and no sums whose order the library
chooses.
"""

from __future__ import annotations

import math
from typing import Protocol

import numpy as np
import numpy.typing as npt

COMPONENTS = 4  # in a sample
CALIBRATION_SAMPLES = 8
TEST_SAMPLES = 4
SIDE = 32  # of the map of a scalp
POINTS = 100  # of a spectrum in steps of 1 Hz, and of an autocorrelation in steps of 10 ms
LARGEST = 0.99  # in absolute terms, after scaling, as the package scales them

Array = npt.NDArray[np.generic]
Floats = npt.NDArray[np.float64]


class Uniform(Protocol):
    """Source of reproducible random values, as `make_models.Randomness` implements it."""

    def uniform(self, shape: tuple[int, ...], deviation: float, mean: float = 0.0) -> Array: ...


class Draw:
    """Source of single numbers between two bounds."""

    def __init__(self, random: Uniform) -> None:
        self._random = random

    def between(self, low: float, high: float) -> float:
        deviation = (high - low) / (2 * math.sqrt(3.0))
        return float(self._random.uniform((1,), deviation, mean=(low + high) / 2)[0])


def samples(random: Uniform) -> dict[str, dict[str, Array]]:
    """Return every sample by the name of its file, without suffix."""
    draw = Draw(random)
    names = [f"calibration_{number}" for number in range(CALIBRATION_SAMPLES)] + [
        f"test_{number}" for number in range(TEST_SAMPLES)
    ]
    return {name: _sample(draw) for name in names}


def _sample(draw: Draw) -> dict[str, Array]:
    components = [(_scalp(draw), _spectrum(draw), _autocorrelation(draw)) for _ in range(COMPONENTS)]
    maps, spectra, autocorrelations = (np.stack([_scaled(values) for values in kind]) for kind in zip(*components, strict=True))
    return {
        "topo": maps.reshape(COMPONENTS, 1, SIDE, SIDE),
        "psds": spectra.reshape(COMPONENTS, 1, 1, POINTS),
        "autocorr": autocorrelations.reshape(COMPONENTS, 1, 1, POINTS),
    }


def _bump(distance: Floats, width: float) -> Floats:
    """Return 1 in the middle, 0 from `width` on, and a smooth transition between."""
    inside: Floats = np.maximum(0.0, 1.0 - (distance / width) * (distance / width))
    return inside * inside


def _scaled(values: Floats) -> Array:
    scaled: Array = (values * (LARGEST / float(np.abs(values).max()))).astype("<f4")
    return scaled


def _scalp(draw: Draw) -> Floats:
    """Return one or two sources of either sign on a round head."""
    axis = (np.arange(SIDE, dtype=np.float64) - (SIDE - 1) / 2) / ((SIDE - 1) / 2)
    across, down = axis.reshape(1, SIDE), axis.reshape(SIDE, 1)
    head = across * across + down * down <= 1.0
    scalp = np.zeros((SIDE, SIDE))
    for weight in (1.0, draw.between(-1.0, 1.0)):
        x, y, width = draw.between(-0.8, 0.8), draw.between(-0.8, 0.8), draw.between(0.4, 1.6)
        distance = np.sqrt((across - x) * (across - x) + (down - y) * (down - y))
        scalp = scalp + weight * _bump(distance, width)
    return np.where(head, scalp, 0.0) * (1.0 if draw.between(-1.0, 1.0) > 0 else -1.0)


def _spectrum(draw: Draw) -> Floats:
    """Return a spectrum that falls with the frequency, with a rhythm and with mains hum."""
    frequency = np.arange(1, POINTS + 1, dtype=np.float64)
    slope = draw.between(5.0, 60.0) / (frequency + draw.between(1.0, 20.0)) - draw.between(0.2, 2.0)
    rhythm = draw.between(0.0, 4.0) * _bump(np.abs(frequency - draw.between(8.0, 12.0)), 4.0)
    hum = draw.between(0.0, 4.0) * _bump(np.abs(frequency - (50.0 if draw.between(-1.0, 1.0) > 0 else 60.0)), 3.0)
    noise = np.array([draw.between(-0.1, 0.1) for _ in range(POINTS)])
    spectrum: Floats = slope + rhythm + hum + noise
    return spectrum


def _autocorrelation(draw: Draw) -> Floats:
    """Return a decaying oscillation."""
    step = np.arange(1, POINTS + 1, dtype=np.float64)
    period, decay = draw.between(8.0, 80.0), draw.between(3.0, 60.0)
    phase = step / period - np.floor(step / period)
    oscillation: Floats = (4.0 * np.abs(phase - 0.5) - 1.0) * (decay / (decay + step))
    return oscillation
