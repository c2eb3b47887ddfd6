"""Runs of a model and of its source on the same inputs, and their figures."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from epbuild.plan.result import Figures
from epbuild.verify.live.inputs import Sample
from epbuild.verify.live.metrics import DifferentOutput, Meter
from epbuild.verify.live.model import RunnableSource
from epbuild.verify.live.numbers import Tolerance, Worst, worst_element
from epbuild.verify.live.worker import Attempt, Feed, Load, LoadFailure, Session, run_models

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np

    ToleranceFor = Callable[[np.dtype[Any]], Tolerance]

# Every element is right within the range of its output: for the element that is furthest off in those terms.
_BY_RANGE = Tolerance(0, 1)


class ReferenceRun(Struct, frozen=True):
    """A source model's outputs on each sample, by ONNX Runtime's CPU EP."""

    source: RunnableSource
    samples: tuple[Sample, ...]
    feeds: tuple[Feed, ...]
    """Those for the compiled model: the same inputs, and a file of its own for its outputs."""
    outputs: tuple[tuple[Path, tuple[str, ...]], ...]
    """The file of expected outputs for each sample, and their names."""

    @property
    def on(self) -> str:
        """What was run on, for a sentence."""
        return self.samples[0].name if len(self.samples) == 1 else f"{len(self.samples)} sets of inputs"

    @property
    def evidence(self) -> str:
        """`made` where inputs were made up, so that figures are weak evidence, else `given`."""
        return "made" if any(sample.made for sample in self.samples) else "given"


class Measured(Struct, frozen=True):
    """What all outputs of a model come to."""

    figures: tuple[Figures, ...]
    worst: Worst | None
    """The element that is furthest off, of all outputs and samples; None where there is none at all."""
    at: str
    """The sample that it is of."""
    outside: int
    """How many elements are off by more than was allowed each."""
    elements: int


def run_reference(
    name: str,
    source: RunnableSource,
    samples: Sequence[Sample],
    inputs: Sequence[str],
    session: Session,
    scratch: Path,
    cancelled: threading.Event | None = None,
) -> ReferenceRun | LoadFailure:
    """Run the model that another was compiled from on the CPU EP; `inputs` are the names of its inputs. Files go to `scratch`."""
    scratch.mkdir(parents=True)
    names = tuple(inputs)
    feeds = tuple(_written(sample, names, scratch / f"{number}") for number, sample in enumerate(samples))
    own = tuple(replace(feed, outputs=feed.outputs.with_suffix(".expected.npz")) for feed in feeds)
    on_cpu = replace(session, eps=(), options={}, variables={})
    attempt = run_models([Load(name, source.placed(scratch / "source"), feeds=own)], on_cpu, scratch, cancelled)
    if attempt.failure is not None:
        return attempt.failure
    outputs = [(feed.outputs, tuple(report["outputs"])) for feed, report in zip(own, attempt.of("ran"), strict=True)]
    return ReferenceRun(source, tuple(samples), feeds, tuple(outputs))


def outputs_of(name: str, attempt: Attempt) -> list[tuple[str, ...]]:
    return [tuple(report["outputs"]) for report in attempt.of("ran") if report["model"] == name]


def measure(reference: ReferenceRun, outputs: Sequence[Sequence[str]], tolerance: ToleranceFor | None = None) -> Measured:
    """The figures of each output over all samples, whose names a compiled model gave as `outputs`.

    `tolerance`: what each element of a type may be off by, where that is asked. Raises DifferentOutput.
    """
    meters: dict[str, Meter] = {}
    worst: Worst | None = None
    at, outside, elements = "", 0, 0
    for sample, feed, (file, names), got in zip(reference.samples, reference.feeds, reference.outputs, outputs, strict=True):
        for name, expected, found in _pairs(file, names, feed.outputs, got):
            meters.setdefault(name, Meter(name)).add(expected, found)
            element = worst_element(name, expected, found, _BY_RANGE if tolerance is None else tolerance(expected.dtype))
            if element is None:
                continue
            outside, elements = outside + element.outside, elements + element.elements
            if worst is None or element.severity > worst.severity:
                worst, at = element, sample.name
    return Measured(tuple(meter.figures for meter in meters.values()), worst, at, outside, elements)


def _pairs(expected: Path, names: Sequence[str], got: Path, got_names: Sequence[str]) -> Iterator[tuple[str, Any, Any]]:
    import numpy as np

    with np.load(expected, allow_pickle=False) as right, np.load(got, allow_pickle=False) as here:
        for number, name in enumerate(names):
            if name not in got_names:
                raise DifferentOutput(f"the output '{name}' is missing")
            yield name, right[f"arr_{number}"], here[f"arr_{got_names.index(name)}"]


def _written(sample: Sample, names: tuple[str, ...], stem: Path) -> Feed:
    """A sample as a file of arrays in the order of `names`: their own names can be such as a file of arrays cannot take."""
    import numpy as np

    file = stem.with_suffix(".inputs.npz")
    np.savez(file, *(sample.arrays[name] for name in names))
    return Feed(file, names, stem.with_suffix(".outputs.npz"))
