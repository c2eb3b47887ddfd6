"""`NumbersCheck`: compare outputs of compiled models with their sources' outputs.

The command `verify` and the verify step of a build use this check. Each applies its own rules to the results.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from msgspec import Struct, field
from msgspec.structs import replace

from epbuild.cache.errors import DamagedBlob, MissingBlob
from epbuild.core.errors import EpbuildError
from epbuild.core.shown import ProgressLines, discard_line
from epbuild.plan.member import Member
from epbuild.plan.result import CompileResult, Figures, Loss, Losses
from epbuild.plan.steps import SessionGroup
from epbuild.toolchain.execution import Execution
from epbuild.verify.live.inputs import Sample
from epbuild.verify.live.metrics import DifferentOutput, Meter, Tolerance, Worst, find_worst_element
from epbuild.verify.live.source import RunnableSource
from epbuild.verify.live.worker import Attempt, Feed, Load, LoadFailure, Session, run_models

if TYPE_CHECKING:
    import numpy as np

    ToleranceFor = Callable[[np.dtype[Any]], Tolerance]

# Without a tolerance, elements are ranked by their difference relative to the range of their output.
_BY_RANGE = Tolerance(0, 1)


class CompileAlone(Protocol):
    """Function that returns the result of a sharing group's member without sharing. It compiles the member if the store has no result.

    Progress is reported for `step`. `doing` is the progress text of a compile. Raises EpbuildError and Cancelled.
    """

    def __call__(self, group: SessionGroup, member: Member, execution: Execution, step: str, doing: str, /) -> CompileResult: ...


def compile_unshared(compile_alone: CompileAlone, group: SessionGroup, member: Member, execution: Execution, step: str) -> Path:
    """Write the compiled model of a sharing group's member without sharing to the execution's staging directory. Return its path.

    Raises EpbuildError and Cancelled.
    """
    doing = f"compiling {member.name} without sharing, because the sharing group cannot be loaded here"

    def write(folder: Path) -> Path:
        staging = folder / "staging"  # a compile needs an empty folder
        staging.mkdir(parents=True)
        result = compile_alone(group, member, dataclasses.replace(execution, staging=staging), step, doing)
        for name, digest in result.digests.items():
            execution.store.materialize(digest, folder / name)
        return folder / result.model(member.name).file

    try:
        return write(execution.staging / "alone")
    except (MissingBlob, DamagedBlob):  # a damaged blob has been set aside, so the member is compiled again
        return write(execution.staging / "again")


class Subject(Struct, frozen=True):
    """Compiled model to check, its source, and the inputs for both."""

    name: str
    source: RunnableSource
    samples: Sequence[Sample]
    inputs: tuple[str, ...]
    """Names of the model's inputs, in order."""
    tolerance: ToleranceFor | None = None
    """Function that maps the type of an output to the allowed difference of its elements. None if elements are not judged separately."""
    run: Callable[[Sequence[Feed]], Attempt] | None = None
    """Function that runs the compiled model elsewhere and writes its outputs. None to run the model here."""

    @property
    def on(self) -> str:
        """Description of the inputs for a sentence."""
        return self.samples[0].name if len(self.samples) == 1 else f"{len(self.samples)} sets of inputs"

    @property
    def evidence(self) -> str:
        """`made` if inputs were generated, which is weak evidence, or else `given`."""
        return "made" if any(sample.made for sample in self.samples) else "given"


class NamedArrays(NamedTuple):
    """`.npz` file with the arrays `arr_0`, `arr_1` and so on, and their names."""

    file: Path
    names: tuple[str, ...]


class Measured(Struct, frozen=True):
    """Differences between all outputs of a model and its source's outputs."""

    figures: tuple[Figures, ...]
    worst: Worst | None
    """Element of all outputs and samples that differs most relative to its tolerance. None if all outputs are empty."""
    at: str
    """Title of the sample with the worst element."""
    outside: int
    """Number of elements that differ by more than their tolerance."""
    elements: int
    losses: Mapping[str, Losses] = field(default_factory=dict)
    """Losses of the preparations and of the EP, by output. Empty if there is no prepared model that runs."""


class ComparedRun(Struct, frozen=True):
    """Files of one sample: the inputs, and the outputs of the source and of the compiled model, each with the names of its arrays."""

    inputs: NamedArrays
    source: NamedArrays
    compiled: NamedArrays


class MemberResult(Struct, frozen=True):
    """Result for one model: `measured`, or the reason why nothing can be judged."""

    subject: Subject
    measured: Measured | None = None
    source_failure: LoadFailure | None = None
    """Failure to run the source on the CPU EP."""
    compile_error: EpbuildError | None = None
    """Error from compiling without sharing."""
    failure: LoadFailure | None = None
    """Failure of the process that ran the model. If the model ran before the failure, it is still measured."""
    different: str = ""
    """Sentence about an output whose type or shape differs from the source's output."""
    unshared: LoadFailure | None = None
    """Failure to load the sharing models together, which led to a compile without sharing."""
    runs: tuple[ComparedRun, ...] = ()
    """Files of each sample. Empty if nothing is measured."""


class _Reference(Struct, frozen=True):
    """Outputs of a source model for each sample, computed by ONNX Runtime's CPU EP."""

    subject: Subject
    feeds: tuple[Feed, ...]
    """Inputs for the compiled model, and the paths for its outputs."""
    outputs: tuple[NamedArrays, ...]
    """Expected outputs for each sample."""
    prepared: tuple[NamedArrays, ...] = ()
    """Outputs of the prepared model for each sample. Empty if there is no prepared model that runs."""


@dataclasses.dataclass
class NumbersCheck:
    """Comparison of compiled models with their sources. If possible, the compiled models are open in one process."""

    models: Mapping[str, Path]
    """Compiled models by name, in the order in which they are opened. Includes models that only share with compared models."""
    session: Session
    scratch: Path
    compile_unshared: Callable[[Subject, Path], Path] | None = None
    """Function that compiles a model without sharing into a directory, with a log beside it, and returns the model's path.

    None if the models share nothing.
    """
    lines: ProgressLines = discard_line
    target: str = ""
    """Name of the machine or device where the models run, for progress lines."""
    cancelled: threading.Event = dataclasses.field(default_factory=threading.Event)
    logs: list[Path] = dataclasses.field(default_factory=list)
    """Logs of all processes so far. A process that did not start has no log."""
    peaks: list[int] = dataclasses.field(default_factory=list)
    """Peak memory in bytes of each process that ran compiled models."""

    def compare(self, subjects: Sequence[Subject], failed: LoadFailure | None = None) -> Iterator[MemberResult]:
        """Compare each subject with its source. Models that cannot be loaded together are compiled and compared without sharing.

        `failed` is the reason why the models cannot be loaded together, if it is already known. Raises EnvironmentFailure,
        BuildError and Cancelled as `run_models` does. A compile can also raise Cancelled.
        """
        references = []
        for number, subject in enumerate(subjects):
            # Name the folder by number: a model's name can come from a manifest and contain any characters.
            found = self._run_source(subject, self.scratch / f"reference-{number}")
            if isinstance(found, LoadFailure):
                yield MemberResult(subject, source_failure=found)
            else:
                references.append(found)
        for reference in references:
            if reference.subject.run is not None:
                yield _make_result(reference, reference.subject.run(reference.feeds))
        references = [reference for reference in references if reference.subject.run is None]
        if references and failed is None:
            self.lines(f"running {', '.join(found.subject.name for found in references)} on {self.target}")
            attempt = self._run_compiled(self.models, references, self.session, self.scratch / "run")
            failed = attempt.failure
            if failed is None or not failed.cannot_load or self.compile_unshared is None:
                yield from (_make_result(reference, attempt) for reference in references)
                return
        if failed is not None and self.compile_unshared is not None:
            for number, reference in enumerate(references):
                yield self._compare_unshared(reference, failed, self.scratch / f"alone-{number}", self.compile_unshared)

    def _run_source(self, subject: Subject, scratch: Path) -> _Reference | LoadFailure:
        several = f", for {len(subject.samples)} sets of inputs" if len(subject.samples) > 1 else ""
        self.lines(f"running {subject.name} on the CPU EP{several}")
        scratch.mkdir(parents=True)
        self.logs.append(scratch / "worker.log")
        feeds = tuple(
            _write_inputs(sample, subject.inputs, scratch / f"{number}") for number, sample in enumerate(subject.samples)
        )
        outputs = self._run_on_cpu(subject.name, subject.source, feeds, scratch, "expected")
        if isinstance(outputs, LoadFailure):
            return outputs
        prepared = subject.source.after_preparations
        if prepared is None:
            return _Reference(subject, feeds, outputs)
        self.lines(f"running the prepared {subject.name} on the CPU EP{several}")
        place = scratch / "prepared"
        place.mkdir()
        self.logs.append(place / "worker.log")
        found = self._run_on_cpu(subject.name, prepared, feeds, place, "prepared")
        # Without the prepared outputs, the model is still judged, but the loss is not attributed.
        return _Reference(subject, feeds, outputs, () if isinstance(found, LoadFailure) else found)

    def _run_on_cpu(
        self, name: str, source: RunnableSource, feeds: Sequence[Feed], scratch: Path, suffix: str
    ) -> tuple[NamedArrays, ...] | LoadFailure:
        """Run a source on the CPU EP. Return its outputs for each feed, or the failure."""
        own = tuple(replace(feed, outputs=feed.outputs.with_suffix(f".{suffix}.npz")) for feed in feeds)
        on_cpu = replace(self.session, eps=(), options={}, variables={}, from_memory=False)
        attempt = run_models([Load(name, source.place_files(scratch / "source"), feeds=own)], on_cpu, scratch, self.cancelled)
        if attempt.failure is not None:
            return attempt.failure
        return tuple(
            NamedArrays(feed.outputs, tuple(report["outputs"]))
            for feed, report in zip(own, attempt.find_reports("ran"), strict=True)
        )

    def _run_compiled(
        self, models: Mapping[str, Path], references: Sequence[_Reference], session: Session, scratch: Path
    ) -> Attempt:
        scratch.mkdir(parents=True)
        self.logs.append(scratch / "worker.log")
        feeds = {reference.subject.name: reference.feeds for reference in references}
        loads = [Load(name, file, feeds=feeds.get(name, ())) for name, file in models.items()]
        attempt = run_models(loads, session, scratch, self.cancelled)
        self.peaks += [report["peak_memory"] for report in attempt.find_reports("finished") if report.get("peak_memory")]
        return attempt

    def _compare_unshared(
        self, reference: _Reference, shared_failure: LoadFailure, place: Path, compile_unshared: Callable[[Subject, Path], Path]
    ) -> MemberResult:
        name = reference.subject.name
        place.mkdir(parents=True)
        self.logs.append(place.with_suffix(".log"))
        try:
            model = compile_unshared(reference.subject, place)
        except EpbuildError as error:
            return MemberResult(reference.subject, compile_error=error, unshared=shared_failure)
        attempt = self._run_compiled({name: model}, [reference], self.session.with_sharing(share=False), place / "run")
        return replace(_make_result(reference, attempt), unshared=shared_failure)


def _write_inputs(sample: Sample, names: tuple[str, ...], stem: Path) -> Feed:
    """Write a sample as arrays in the order of `names`, because input names can be invalid as names in a `.npz` file."""
    import numpy as np

    file = stem.with_suffix(".inputs.npz")
    np.savez(file, *(sample.arrays[name] for name in names))
    return Feed(file, names, stem.with_suffix(".outputs.npz"))


def _make_result(reference: _Reference, attempt: Attempt) -> MemberResult:
    """Return the result for a model after a run. The result is measured if the run finished the model's last sample."""
    subject = reference.subject
    outputs = [tuple(report["outputs"]) for report in attempt.find_reports("ran") if report["model"] == subject.name]
    if len(outputs) < len(subject.samples):
        # A process that succeeds has run all samples. A model with fewer samples must not count as skipped.
        incomplete = LoadFailure(subject.name, "the process ended without running the model on all inputs.", "EPB642")
        return MemberResult(subject, failure=attempt.failure or incomplete)
    runs = tuple(
        ComparedRun(NamedArrays(feed.file, feed.names), source, NamedArrays(feed.outputs, names))
        for feed, source, names in zip(reference.feeds, reference.outputs, outputs, strict=True)
    )
    try:
        return MemberResult(subject, _measure(reference, runs), failure=attempt.failure, runs=runs)
    except DifferentOutput as error:
        return MemberResult(subject, different=str(error), failure=attempt.failure)


def _measure(reference: _Reference, runs: Sequence[ComparedRun]) -> Measured:
    """Measure each output over all samples. Raises DifferentOutput."""
    tolerance = reference.subject.tolerance
    meters: dict[str, Meter] = {}
    worst: Worst | None = None
    at, outside, elements = "", 0, 0
    for sample, run in zip(reference.subject.samples, runs, strict=True):
        for name, expected, found in _load_pairs(run.source, run.compiled):
            meters.setdefault(name, Meter(name)).add(expected, found)
            element = find_worst_element(name, expected, found, _BY_RANGE if tolerance is None else tolerance(expected.dtype))
            if element is None:
                continue
            outside, elements = outside + element.outside, elements + element.elements
            if worst is None or element.severity > worst.severity:
                worst, at = element, sample.name
    losses = _measure_losses(reference, runs) if reference.prepared else {}
    return Measured(tuple(meter.figures for meter in meters.values()), worst, at, outside, elements, losses)


def _measure_losses(reference: _Reference, runs: Sequence[ComparedRun]) -> dict[str, Losses]:
    """Measure the losses of the preparations and of the EP for each output over all samples."""
    preparation: dict[str, Meter] = {}
    ep: dict[str, Meter] = {}
    try:
        for run, prepared in zip(runs, reference.prepared, strict=True):
            for name, expected, found in _load_pairs(run.source, prepared):
                preparation.setdefault(name, Meter(name)).add(expected, found)
            for name, expected, found in _load_pairs(prepared, run.compiled):
                ep.setdefault(name, Meter(name)).add(expected, found)
    except DifferentOutput:  # a preparation changed the outputs, so the two losses do not add up
        return {}
    return {name: Losses(Loss.of(meter.figures), Loss.of(ep[name].figures)) for name, meter in preparation.items() if name in ep}


def _load_pairs(expected: NamedArrays, got: NamedArrays) -> Iterator[tuple[str, Any, Any]]:
    """Yield the name, the expected and the actual values of each output. Raises DifferentOutput if an output is missing."""
    import numpy as np

    with np.load(expected.file, allow_pickle=False) as right, np.load(got.file, allow_pickle=False) as here:
        for number, name in enumerate(expected.names):
            if name not in got.names:
                raise DifferentOutput(f"the output '{name}' is missing")
            yield name, right[f"arr_{number}"], here[f"arr_{got.names.index(name)}"]
