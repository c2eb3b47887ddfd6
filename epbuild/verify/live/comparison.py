"""Comparison of compiled models' outputs with those of their sources."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from epbuild.cache.blobs import BlobStore
from epbuild.cache.location import cache_directory
from epbuild.catalog.numbers import Numbers, Thresholds
from epbuild.core.errors import BuildError, EpbuildError, Problem
from epbuild.core.units import counted
from epbuild.engine.events import NoProgress
from epbuild.onnxfile.headers import read_header
from epbuild.onnxfile.model_header import ValueInfo
from epbuild.plan.shapes import sized
from epbuild.plan.steps import SessionGroup
from epbuild.plan.verification import CheckedMember
from epbuild.recipe.model import MadeInputs
from epbuild.toolchain.execution import Execution
from epbuild.verify.findings import Outcome
from epbuild.verify.live.action import Alone
from epbuild.verify.live.inputs import BadInputs, NoInputs, Sample, made_samples, read_samples
from epbuild.verify.live.metrics import DifferentOutput, Figures
from epbuild.verify.live.model import RunnableSource
from epbuild.verify.live.numbers import Tolerance, default_float, default_tolerance
from epbuild.verify.live.runs import Measured, ReferenceRun, measure, run_reference
from epbuild.verify.live.source import NoSource, Sources
from epbuild.verify.live.verdict import OutputVerdict, Rules, figures_text, overall
from epbuild.verify.live.worker import Load, LoadFailure, Session, run_models

if TYPE_CHECKING:
    import numpy as np

_ELEMENTS = "Where that is what the target's precision comes to, allow it with --atol and --rtol, or judge by --metric."


@dataclass(frozen=True)
class Judged:
    """What became of the comparison of one model."""

    model: str
    outcome: Outcome
    message: str
    code: str | None = None
    hint: str | None = None
    figures: tuple[Figures, ...] = ()
    """Of each output, where it was run."""
    evidence: Literal["made", "given"] | None = None
    """Whether it was run on inputs that were made up."""


@dataclass(frozen=True)
class OutputComparison:
    """On what models are run, and how exact they have to be."""

    inputs: Mapping[str, Path] = field(default_factory=dict)
    """Files or folders of inputs, by model; under the empty name, those of every other model."""
    made: MadeInputs | None = None
    """How inputs are made where none are given; None: as the recipe has it in `verify`, else from the seed 0."""
    asked: Thresholds = field(default_factory=Thresholds)
    """What metrics have to come to; none: what the recipe has in `verify`, else what the catalog has for the EP."""
    atol: float | None = None
    rtol: float | None = None
    """What each element may be off by, where that is asked: absolute, and of an output's largest expected magnitude."""
    alone: Alone | None = None
    """Compiles un-shared what cannot be loaded shared; None: that is skipped."""

    def judge(
        self,
        loads: Sequence[Load],
        inputs: Mapping[str, Sequence[ValueInfo]],
        failed: LoadFailure | None,
        session: Session,
        sources: Sources,
        document: Mapping[str, Any] | None,
        scratch: Path,
    ) -> Iterator[Judged]:
        """Compare the models of one process; `failed` is how loading them failed. Each model is judged, whatever becomes of the others."""
        group = sources.group(document, loads[0].name) if failed is not None and failed.cannot_load else None
        alone = self.alone is not None and group is not None and group.share
        if failed is not None and not alone:
            yield from (self._unloaded(load, failed, group, sources) for load in loads)
            return
        references: dict[str, tuple[RunnableSource, ReferenceRun]] = {}
        checked = {load.name: sources.checked(load.name, document) for load in loads}
        asked = {} if self.asked != Thresholds() else {name: item.asked for name, item in checked.items() if item is not None}
        for number, load in enumerate(loads):
            # By number: a name comes from a manifest, and may be anything.
            found = self._reference(load, inputs[load.name], session, sources, document, scratch / f"{number}")
            if isinstance(found, Judged):
                yield found
            else:
                references[load.name] = found
        if failed is not None and group is not None:
            yield from self._judge_alone(references, group, failed, session, document, scratch, asked)
        elif references:
            fed = [replace(load, feeds=references[load.name][1].feeds if load.name in references else ()) for load in loads]
            yield from self._run(fed, references, session, scratch, asked)

    def _unloaded(self, load: Load, failed: LoadFailure, group: SessionGroup | None, sources: Sources) -> Judged:
        if not failed.cannot_load:
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
    ) -> tuple[RunnableSource, ReferenceRun] | Judged:
        """A model's source, its inputs, and what the CPU EP makes of them; or why there are none."""
        name = load.name
        try:
            source = sources.find(name, document)
            samples = self._samples(name, inputs, source, sources.checked(name, document))
        except NoSource as reason:
            return Judged(name, "failed" if reason.wrong else "skipped", str(reason), "EPB647" if reason.wrong else None)
        except BadInputs as reason:
            return Judged(name, "failed", str(reason), "EPB648")
        except NoInputs as reason:
            return Judged(name, "skipped", str(reason))
        found = run_reference(
            name, source.placed(scratch / "source"), samples, [value.name for value in inputs], session, scratch
        )
        if isinstance(found, LoadFailure):
            return Judged(name, "failed", f"the CPU EP cannot run its source model: {found.message}", "EPB649")
        return source, found

    def _samples(
        self, name: str, inputs: Sequence[ValueInfo], source: RunnableSource, checked: CheckedMember | None
    ) -> list[Sample]:
        """What a model is run on: what is given for it, else what the recipe has, else what is made up."""
        place = self.inputs.get(name) or self.inputs.get("")
        if place:
            return read_samples(place, inputs)
        if self.made is None and checked is not None and checked.made is None:
            return [sample for path in checked.inputs.values() for sample in read_samples(path, inputs)]
        usual = checked.made if checked is not None else None
        return made_samples(self.made or usual or MadeInputs(), inputs, source.sizes)

    def _run(
        self,
        loads: Sequence[Load],
        references: Mapping[str, tuple[RunnableSource, ReferenceRun]],
        session: Session,
        scratch: Path,
        asked: Mapping[str, Thresholds],
        because: str = "",
    ) -> Iterator[Judged]:
        attempt = run_models(loads, session, scratch)
        numbers = session.eps[0].entry.numbers if session.eps else Numbers()
        for name, (source, reference) in references.items():
            outputs = [tuple(report["outputs"]) for report in attempt.of("ran") if report["model"] == name]
            if len(outputs) == len(reference.samples):
                rules = Rules(
                    numbers, source.is_quantised, asked.get(name, self.asked), self._bound(quantised=source.is_quantised)
                )
                yield self._compared(name, reference, outputs, rules, because)
            elif attempt.failure is not None and attempt.failure.model in (None, name):
                outcome: Outcome = "skipped" if attempt.failure.cannot_load else "failed"
                code = None if attempt.failure.cannot_load else attempt.failure.code
                yield Judged(name, outcome, attempt.failure.message + because, code)
            else:
                yield Judged(name, "skipped", "it was not run: the models are run in order, and one before it failed")

    def _judge_alone(
        self,
        references: Mapping[str, tuple[RunnableSource, ReferenceRun]],
        group: SessionGroup,
        failed: LoadFailure,
        session: Session,
        document: Mapping[str, Any] | None,
        scratch: Path,
        asked: Mapping[str, Thresholds],
    ) -> Iterator[Judged]:
        """The numbers of each model compiled un-shared, where the group cannot be loaded."""
        if self.alone is None:
            return
        for number, (name, reference) in enumerate(references.items()):
            if not _as_compiled(group, document):
                yield Judged(
                    name, "skipped", "the recipe compiles it with other options than it was compiled with; build it again"
                )
                continue
            place = scratch / f"alone-{number}"
            place.mkdir()
            try:
                model = _compile_alone(self.alone, group, name, reference[0], session, place)
            except EpbuildError as error:
                yield Judged(name, "failed", " ".join(problem.message for problem in error.problems), "EPB649")
                continue
            because = f". These are the numbers of the same model compiled un-shared: {failed.message.rstrip('.')}"
            load = Load(name, model, feeds=reference[1].feeds)
            yield from self._run([load], {name: reference}, session.sharing(share=False), place, asked, because)

    def _compared(
        self, name: str, reference: ReferenceRun, outputs: Sequence[tuple[str, ...]], rules: Rules, because: str
    ) -> Judged:
        """The verdict on all outputs for all samples."""
        evidence: Literal["made", "given"] = "made" if reference.made else "given"
        try:
            measured = measure(reference, outputs, self._tolerance(rules) if self._by_element else None)
        except DifferentOutput as error:
            return Judged(name, "failed", f"{error}{because}", "EPB646", evidence=evidence)
        if measured.worst is None:
            return Judged(name, "skipped", f"it has no output with elements to compare{because}")
        verdicts = [rules.judge(figures) for figures in measured.figures]
        if self._by_element:
            outcome, message, hint = _by_element(verdicts, measured, reference)
        else:
            outcome, message, hint = _by_metrics(verdicts, measured, reference)
        code = {"failed": "EPB646", "skipped": "EPB665", "passed": None}[outcome]
        return Judged(name, outcome, message + because, code, hint, measured.figures, evidence)

    @property
    def _by_element(self) -> bool:
        """Whether it is asked what each element may be off by."""
        return (self.atol, self.rtol) != (None, None)

    def _bound(self, *, quantised: bool) -> float | None:
        """What a float near zero may be off by, where it is asked what each element may."""
        if not self._by_element:
            return None
        return default_float(quantised=quantised).atol if self.atol is None else self.atol

    def _tolerance(self, rules: Rules) -> Callable[[np.dtype[Any]], Tolerance]:
        """What each element of a type may be off by."""

        def of(dtype: np.dtype[Any]) -> Tolerance:
            default = default_tolerance(dtype, quantised=rules.quantised)
            return Tolerance(default.atol if self.atol is None else self.atol, default.rtol if self.rtol is None else self.rtol)

        return of


def _by_metrics(
    verdicts: Sequence[OutputVerdict], measured: Measured, reference: ReferenceRun
) -> tuple[Outcome, str, str | None]:
    """The outcome by figures, a clause about it with them, and what to do."""
    outcome, figures, hint = overall(verdicts), figures_text(verdicts), _hint(verdicts)
    worst = f"; the worst number, for {measured.at}, is {measured.worst.place}" if measured.worst is not None else ""
    if outcome == "passed":
        return "passed", f"its numbers are near enough to those of the CPU EP, for {reference.on}: {figures}{worst}", None
    if outcome == "unjudgeable":
        return "skipped", f"its numbers cannot be judged, for {reference.on}: {figures}", hint
    bad = sum(verdict.outcome == "failed" for verdict in verdicts)
    few = "its only output is" if len(verdicts) == 1 else f"{bad} of {len(verdicts)} outputs are"
    return "failed", f"{few} too far from those of the CPU EP, for {reference.on}: {figures}{worst}", hint


def _by_element(
    verdicts: Sequence[OutputVerdict], measured: Measured, reference: ReferenceRun
) -> tuple[Outcome, str, str | None]:
    """The same by what each element may be off by; what shows nothing by its figures shows nothing by its elements either."""
    figures, worst = figures_text(verdicts), measured.worst
    if overall(verdicts) == "unjudgeable":
        return "skipped", f"its numbers cannot be judged, for {reference.on}: {figures}", _hint(verdicts)
    small = [verdict for verdict in verdicts if verdict.outcome == "failed" and verdict.own_scale]
    if measured.outside == 0 and small:
        why = (
            "what is allowed is more than any of their numbers, and by their own scale they are too far from those of the CPU EP"
        )
        return "failed", f"{counted(len(small), 'output')}, for {reference.on}: {why}: {figures_text(small)}", _hint(small)
    if measured.outside == 0:
        message = f"its numbers are near enough to those of the CPU EP, for {reference.on}; the worst is {worst}; {figures}"
        return "passed", message, None
    far = f"{measured.outside:,} of {measured.elements:,} numbers are too far from those of the CPU EP"
    return "failed", f"{far}; the worst, for {measured.at}, is {worst}; {figures}", _hint(verdicts) or _ELEMENTS


def _hint(verdicts: Sequence[OutputVerdict]) -> str | None:
    """What to do about the outputs that decide."""
    outcome = overall(verdicts)
    hints = dict.fromkeys(verdict.hint for verdict in verdicts if verdict.outcome == outcome and verdict.hint is not None)
    return " ".join(hints) or None


def _as_compiled(group: SessionGroup, document: Mapping[str, Any] | None) -> bool:
    """Whether a session group of the recipe has the EPs and the options of a manifest."""
    target = document["target"] if document is not None else {"eps": [], "session_options": {}}
    eps = [(ep["ep"], ep["provider_options"]) for ep in target["eps"]]
    here = [(ep.entry.ep, dict(ep.provider_options)) for ep in group.target.eps]
    return eps == here and target["session_options"] == dict(group.target.session_options)


def _compile_alone(alone: Alone, group: SessionGroup, name: str, source: RunnableSource, session: Session, staging: Path) -> Path:
    """Compile a member of a sharing group by itself, as the recipe has it; returns its EPContext model. Raises what a compile does.

    Of a member that is prepared, `source` knows what is compiled.
    """
    member = next(member for member in group.members if member.name == name)
    if member.prepared is not None:
        if source.prepared is None:
            message = f"what {member.prepared} made is not in the cache"
            raise BuildError(Problem("EPB649", message, None, "`epbuild run` makes it again."))
        member = sized(member.with_files(source.prepared), read_header(source.prepared.graph))
        group = replace(group, members=tuple(member if item.name == name else item for item in group.members))
    execution = Execution(
        environment=session.environment,
        staging=staging,
        log=staging.with_suffix(".log"),
        shown_log="not kept",
        store=BlobStore(cache_directory()),
        progress=NoProgress(),
        cancelled=threading.Event(),
    )
    alone(group, member, execution)
    return staging / member.output
