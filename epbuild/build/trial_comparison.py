"""Outputs of compiled models against those of ONNX Runtime's CPU EP on the models that they were compiled from."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from epbuild.build.executor import Execution
from epbuild.build.sharing import measure_alone
from epbuild.build.trial_inputs import BadInputs, NoInputs, Sample, made_sample, read_samples
from epbuild.build.trial_numbers import DifferentOutput, Tolerance, Worst, default_tolerance, worst_element
from epbuild.build.trial_source import NoSource, Source, Sources
from epbuild.build.trial_worker import Failure, Feed, Load, Session, attempt
from epbuild.errors import EpbuildError
from epbuild.onnxfile import ValueInfo
from epbuild.plan import SessionGroup
from epbuild.store import BlobStore, cache_directory
from epbuild.verify import Outcome

_OTHER_NUMBERS = "Where that is what the target's precision comes to, allow it with --atol and --rtol."


@dataclass(frozen=True)
class Judged:
    """What became of the comparison of one model."""

    model: str
    outcome: Outcome
    message: str
    code: str | None = None
    hint: str | None = None


@dataclass(frozen=True)
class _Reference:
    """A source model's outputs on each sample."""

    source: Source
    samples: tuple[Sample, ...]
    feeds: tuple[Feed, ...]
    """Those for the compiled model."""
    outputs: tuple[tuple[Path, tuple[str, ...]], ...]
    """The file of expected outputs for each sample, and their names."""


@dataclass(frozen=True)
class Comparison:
    """On what models are run, and how exact they have to be."""

    inputs: Mapping[str, Path] = field(default_factory=dict)
    """Files or folders of inputs, by model; under the empty name, those of every other model."""
    seed: int = 0
    """What inputs are made from where none are given."""
    atol: float | None = None
    rtol: float | None = None
    """What to allow instead of the defaults: absolute, and of an output's largest expected magnitude."""

    def judge(
        self,
        loads: Sequence[Load],
        inputs: Mapping[str, Sequence[ValueInfo]],
        failed: Failure | None,
        session: Session,
        sources: Sources,
        document: Mapping[str, Any] | None,
        scratch: Path,
    ) -> Iterator[Judged]:
        """Compare the models of one process; `failed` is how loading them failed. Each model is judged, whatever becomes of the others."""
        group = sources.group(document, loads[0].name) if failed is not None and failed.impossible else None
        alone = failed is not None and failed.impossible and group is not None and group.share
        if failed is not None and not alone:
            yield from (self._unloaded(load, failed, group, sources) for load in loads)
            return
        references: dict[str, _Reference] = {}
        for number, load in enumerate(loads):
            # By number: a name comes from a manifest, and may be anything.
            found = self._reference(load, inputs[load.name], session, sources, document, scratch / f"{number}")
            if isinstance(found, Judged):
                yield found
            else:
                references[load.name] = found
        if failed is not None and group is not None:
            yield from self._judge_alone(references, group, failed, session, document, scratch)
        elif references:
            fed = [replace(load, feeds=references[load.name].feeds if load.name in references else ()) for load in loads]
            yield from self._run(fed, references, session, scratch)

    def _unloaded(self, load: Load, failed: Failure, group: SessionGroup | None, sources: Sources) -> Judged:
        if not failed.impossible:
            return Judged(load.name, "skipped", "it was not run, as it could not be loaded")
        cure = "with --recipe, the same model is compiled un-shared and its numbers are compared"
        help_ = f"; {cure}" if group is None and sources.recipe is None else ""
        return Judged(load.name, "skipped", f"{failed.message.rstrip('.')}{help_}")

    def _reference(
        self,
        load: Load,
        inputs: Sequence[ValueInfo],
        session: Session,
        sources: Sources,
        document: Mapping[str, Any] | None,
        scratch: Path,
    ) -> _Reference | Judged:
        """A model's inputs, and what the CPU EP makes of them; or why there are none."""
        name = load.name
        try:
            source = sources.find(name, document)
            place = self.inputs.get(name) or self.inputs.get("")
            samples = read_samples(place, inputs) if place else [made_sample(self.seed, inputs, source.sizes)]
        except NoSource as reason:
            return Judged(name, "failed" if reason.wrong else "skipped", str(reason), "EPB647" if reason.wrong else None)
        except BadInputs as reason:
            return Judged(name, "failed", str(reason), "EPB648")
        except NoInputs as reason:
            return Judged(name, "skipped", str(reason))
        scratch.mkdir(parents=True)
        names = tuple(value.name for value in inputs)
        feeds = tuple(_written(sample, names, scratch / f"{number}") for number, sample in enumerate(samples))
        own = tuple(replace(feed, outputs=feed.outputs.with_suffix(".expected.npz")) for feed in feeds)
        on_cpu = replace(session, eps=(), options={}, variables={})
        tried = attempt([Load(name, source.placed(scratch / "source"), feeds=own)], on_cpu, scratch)
        if tried.failure is not None:
            message = f"the CPU EP cannot run its source model: {tried.failure.message}"
            return Judged(name, "failed", message, "EPB649")
        outputs = [(feed.outputs, tuple(report["outputs"])) for feed, report in zip(own, tried.of("ran"), strict=True)]
        return _Reference(source, tuple(samples), feeds, tuple(outputs))

    def _run(
        self, loads: Sequence[Load], references: Mapping[str, _Reference], session: Session, scratch: Path, because: str = ""
    ) -> Iterator[Judged]:
        tried = attempt(loads, session, scratch)
        for name, reference in references.items():
            outputs = [tuple(report["outputs"]) for report in tried.of("ran") if report["model"] == name]
            if len(outputs) == len(reference.samples):
                yield self._compared(name, reference, outputs, because)
            elif tried.failure is not None and tried.failure.model in (None, name):
                outcome: Outcome = "skipped" if tried.failure.impossible else "failed"
                code = None if tried.failure.impossible else tried.failure.code
                yield Judged(name, outcome, tried.failure.message + because, code)
            else:
                yield Judged(name, "skipped", "it was not run: the models are run in order, and one before it failed")

    def _judge_alone(
        self,
        references: Mapping[str, _Reference],
        group: SessionGroup,
        failed: Failure,
        session: Session,
        document: Mapping[str, Any] | None,
        scratch: Path,
    ) -> Iterator[Judged]:
        """The numbers of each model compiled un-shared, where the group cannot be loaded."""
        for number, (name, reference) in enumerate(references.items()):
            if not _as_compiled(group, document):
                yield Judged(
                    name, "skipped", "the recipe compiles it with other options than it was compiled with; build it again"
                )
                continue
            place = scratch / f"alone-{number}"
            place.mkdir()
            try:
                model = _compile_alone(group, name, session, place)
            except EpbuildError as error:
                yield Judged(name, "failed", " ".join(problem.message for problem in error.problems), "EPB649")
                continue
            because = f". These are the numbers of the same model compiled un-shared: {failed.message.rstrip('.')}"
            load = Load(name, model, feeds=reference.feeds)
            yield from self._run([load], {name: reference}, session.sharing(share=False), place, because)

    def _compared(self, name: str, reference: _Reference, outputs: Sequence[tuple[str, ...]], because: str) -> Judged:
        """The verdict on all outputs for all samples."""
        worst: Worst | None = None
        at, outside, elements = "", 0, 0
        for sample, feed, (file, names), got in zip(reference.samples, reference.feeds, reference.outputs, outputs, strict=True):
            try:
                for element in self._elements(file, names, feed.outputs, got, reference.source):
                    outside, elements = outside + element.outside, elements + element.elements
                    if worst is None or element.severity > worst.severity:
                        worst, at = element, sample.name
            except DifferentOutput as error:
                return Judged(name, "failed", f"{error}{because}", "EPB646")
        samples = reference.samples[0].name if len(reference.samples) == 1 else f"{len(reference.samples)} sets of inputs"
        if worst is None:
            return Judged(name, "skipped", f"it has no output with elements to compare{because}")
        if outside == 0:
            message = f"its numbers are near enough to those of the CPU EP, for {samples}; the worst is {worst}"
            return Judged(name, "passed", message + because)
        message = f"{outside:,} of {elements:,} numbers are too far from those of the CPU EP; the worst, for {at}, is {worst}"
        return Judged(name, "failed", message + because, "EPB646", _OTHER_NUMBERS)

    def _elements(
        self, expected: Path, names: Sequence[str], got: Path, got_names: Sequence[str], source: Source
    ) -> Iterator[Worst]:
        """The worst element of each output."""
        import numpy as np

        with np.load(expected, allow_pickle=False) as right, np.load(got, allow_pickle=False) as here:
            for number, name in enumerate(names):
                if name not in got_names:
                    raise DifferentOutput(f"the output '{name}' is missing")
                array = right[f"arr_{number}"]
                default = default_tolerance(array.dtype, quantised=source.is_quantised)
                tolerance = Tolerance(
                    default.atol if self.atol is None else self.atol, default.rtol if self.rtol is None else self.rtol
                )
                worst = worst_element(name, array, here[f"arr_{got_names.index(name)}"], tolerance)
                if worst is not None:
                    yield worst


def _written(sample: Sample, names: tuple[str, ...], stem: Path) -> Feed:
    """A sample as a file of arrays in the order of `names`: their own names can be such as a file of arrays cannot take."""
    import numpy as np

    file = stem.with_suffix(".inputs.npz")
    np.savez(file, *(sample.arrays[name] for name in names))
    return Feed(file, names, stem.with_suffix(".outputs.npz"))


def _as_compiled(group: SessionGroup, document: Mapping[str, Any] | None) -> bool:
    """Whether a session group of the recipe has the EPs and the options that a manifest tells of."""
    target = document["target"] if document is not None else {"eps": [], "session_options": {}}
    eps = [(ep["ep"], ep["provider_options"]) for ep in target["eps"]]
    here = [(ep.entry.ep, dict(ep.provider_options)) for ep in group.target.eps]
    return eps == here and target["session_options"] == dict(group.target.session_options)


def _compile_alone(group: SessionGroup, name: str, session: Session, staging: Path) -> Path:
    """Compile a member of a sharing group by itself, as the recipe has it; returns its EPContext model. Raises what a compile does."""
    member = next(member for member in group.members if member.name == name)
    execution = Execution(
        environment=session.environment,
        staging=staging,
        log=staging.with_suffix(".log"),
        shown_log="not kept",
        store=BlobStore(cache_directory()),
        tell=lambda event: None,
        cancelled=threading.Event(),
        recheck=lambda: None,
        compiled=lambda: None,
        relinking=lambda paths: nullcontext(),
    )
    measure_alone(group, member, execution)
    return staging / member.output
