"""Thresholds for how near an EP's numbers come to those of the CPU EP."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace


class Thresholds(Struct, frozen=True):
    """What each metric has to come to; None: it is measured, and nothing is asked of it."""

    cosine: float | None = None
    """The least cosine between an output and what it should be."""
    snr_db: float | None = None
    """The least ratio of signal to noise, in dB."""
    top1: float | None = None
    """The least part of the rows that have their largest number at the right place, from 0 to 1."""
    max_abs: float | None = None
    """The largest difference of one number."""
    max_rel: float | None = None
    """The same as a part of the output's largest expected magnitude."""

    def over(self, other: Thresholds) -> Thresholds:
        """These, and those of `other` where these ask for nothing."""
        return replace(other, **{name: value for name in METRICS if (value := getattr(self, name)) is not None})


METRICS = Thresholds.__struct_fields__
"""The names of all metrics, in the order in which they are shown."""

_FLOATS = Thresholds(cosine=0.999, snr_db=20, max_rel=0.1)
_QUANTISED = Thresholds(cosine=0.99, snr_db=15)


class Numbers(Struct, frozen=True):
    """What is known of an EP's numbers; what an entry does not state is as here."""

    floats: Thresholds = _FLOATS
    """For models that compute with floats."""
    quantised: Thresholds = _QUANTISED
    """For models that compute with quantised values."""
    smallest: float = 0.0
    """The magnitude below which the EP's numbers have hardly any digits: outputs that stay below it show nothing when they differ."""
    largest: float | None = None
    """The largest number of the precision that the EP computes in; None: that of the model's own."""
    overflow: str = ""
    """What to do where numbers come out at `largest`, or at a multiple of it, and should be smaller: a sentence."""
    far: str = ""
    """What to do where numbers are too far from those of the CPU EP: a sentence."""
    far_quantised: str = ""
    """The same of a model that computes with quantized values."""
