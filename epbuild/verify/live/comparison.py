"""Comparison of compiled models' outputs with those of their sources."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field
from msgspec.structs import asdict, replace

from epbuild.cache.blobs import BlobStore
from epbuild.cache.location import cache_directory
from epbuild.catalog.numbers import Numbers, Thresholds
from epbuild.core.errors import BuildError, EpbuildError, Problem
from epbuild.core.units import counted
from epbuild.engine.events import NoProgress
from epbuild.onnxfile.read.headers import read_header
from epbuild.onnxfile.read.model_header import ValueInfo
from epbuild.plan.shapes import sized
from epbuild.plan.steps import SessionGroup
from epbuild.plan.verification import CheckedMember
from epbuild.recipe.model import MadeInputs
from epbuild.toolchain.execution import Execution
from epbuild.verify.findings import Finding, Outcome
from epbuild.verify.live.action import Alone
from epbuild.verify.live.inputs import BadInputs, NoInputs, Sample, made_samples, read_samples
from epbuild.verify.live.metrics import DifferentOutput
from epbuild.verify.live.model import RunnableSource
from epbuild.verify.live.numbers import Tolerance, default_float, default_tolerance
from epbuild.verify.live.runs import Measured, ReferenceRun, measure, outputs_of, run_reference
from epbuild.verify.live.source import NoSource, Sources, WrongSource
from epbuild.verify.live.verdict import OutputVerdict, Rules, figures_text, hint_of, overall
from epbuild.verify.live.worker import Load, LoadFailure, Session, run_models

if TYPE_CHECKING:
    import numpy as np

_ELEMENTS = "Where that is what the target's precision comes to, allow it with --atol and --rtol, or judge by --metric."


class OutputComparison(Struct, frozen=True):
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

    @property
    def by_element(self) -> bool:
        """Whether it is asked what each element may be off by."""
        return (self.atol, self.rtol) != (None, None)

    def bound(self, *, quantised: bool) -> float | None:
        """What a float near zero may be off by, where it is asked what each element may."""
        if not self.by_element:
            return None
        return default_float(quantised=quantised).atol if self.atol is None else self.atol

    def tolerance(self, *, quantised: bool) -> Callable[[np.dtype[Any]], Tolerance]:
        def of(dtype: np.dtype[Any]) -> Tolerance:
            default = default_tolerance(dtype, quantised=quantised)
            return Tolerance(default.atol if self.atol is None else self.atol, default.rtol if self.rtol is None else self.rtol)

        return of

    def samples(
        self, name: str, inputs: Sequence[ValueInfo], source: RunnableSource, checked: CheckedMember | None
    ) -> list[Sample]:
        """What a model is run on: what is given for it, else what the recipe has, else what is made up."""
        place = self.inputs.get(name) or self.inputs.get("")
        if place:
            return read_samples(place, inputs)
        if self.made is None and checked is not None and checked.made is None:
            return [sample for path in checked.inputs.values() for sample in read_samples(path, inputs)]
        usual = checked.made if checked is not None else None
        return made_samples(self.made or usual or MadeInputs(), inputs, source.sizes, source.tables)


class CompareModels(Struct, frozen=True):
    """The comparison of the models of one process, whose findings go by the models' names, with clauses as messages."""

    comparison: OutputComparison
    session: Session
    sources: Sources
    document: Mapping[str, Any] | None
    """The manifest's."""
    scratch: Path

    def judge(
        self, loads: Sequence[Load], inputs: Mapping[str, Sequence[ValueInfo]], failed: LoadFailure | None
    ) -> Iterator[Finding]:
        """Judge each model, whatever becomes of the others; `failed` is how loading them failed."""
        group = self.sources.group(self.document, loads[0].name) if failed is not None and failed.cannot_load else None
        alone = self.comparison.alone is not None and group is not None and group.share
        if failed is not None and not alone:
            yield from (_finding(load.name, "skipped", self._why_unloaded(failed, group)) for load in loads)
            return
        references: dict[str, ReferenceRun] = {}
        for number, load in enumerate(loads):
            # By number: a name comes from a manifest, and may be anything.
            found = self._reference(load.name, inputs[load.name], self.scratch / f"{number}")
            if isinstance(found, Finding):
                yield found
            else:
                references[load.name] = found
        if failed is not None and group is not None:
            yield from self._judge_alone(references, group, failed)
        elif references:
            fed = [replace(load, feeds=references[load.name].feeds if load.name in references else ()) for load in loads]
            yield from self._run(fed, references, self.session, self.scratch)

    def _why_unloaded(self, failed: LoadFailure, group: SessionGroup | None) -> str:
        if not failed.cannot_load:
            return "it was not run, as it could not be loaded"
        cure = "; with --recipe, the same model is compiled un-shared and its numbers are compared"
        return failed.message.rstrip(".") + (cure if group is None and self.sources.recipe is None else "")

    def _reference(self, name: str, inputs: Sequence[ValueInfo], scratch: Path) -> ReferenceRun | Finding:
        """What the CPU EP makes of a model's source; or why there is nothing to compare with."""
        try:
            source = self.sources.find(name, self.document)
            samples = self.comparison.samples(name, inputs, source, self.sources.checked(name, self.document))
        except WrongSource as reason:
            return _finding(name, "failed", str(reason), "EPB647")
        except BadInputs as reason:
            return _finding(name, "failed", str(reason), "EPB648")
        except (NoSource, NoInputs) as reason:
            return _finding(name, "skipped", str(reason))
        found = run_reference(name, source, samples, [value.name for value in inputs], self.session, scratch)
        if isinstance(found, LoadFailure):
            return _finding(name, "failed", f"the CPU EP cannot run its source model: {found.message}", "EPB649")
        return found

    def _run(
        self,
        loads: Sequence[Load],
        references: Mapping[str, ReferenceRun],
        session: Session,
        scratch: Path,
        because: str = "",
    ) -> Iterator[Finding]:
        attempt = run_models(loads, session, scratch)
        failure = attempt.failure
        for name, reference in references.items():
            outputs = outputs_of(name, attempt)
            if len(outputs) == len(reference.samples):
                yield self._compared(name, reference, outputs, because)
            elif failure is not None and failure.model in (None, name):
                outcome: Outcome = "skipped" if failure.cannot_load else "failed"
                yield _finding(name, outcome, failure.message + because, None if failure.cannot_load else failure.code)
            else:
                yield _finding(name, "skipped", "it was not run: the models are run in order, and one before it failed")

    def _judge_alone(self, references: Mapping[str, ReferenceRun], group: SessionGroup, failed: LoadFailure) -> Iterator[Finding]:
        """The numbers of each model compiled un-shared, where the group cannot be loaded."""
        session, because = (
            self.session.sharing(share=False),
            f". These are the numbers of the same model compiled un-shared: {failed.message.rstrip('.')}",
        )
        for number, (name, reference) in enumerate(references.items()):
            if not _as_compiled(group, self.document):
                message = "the recipe compiles it with other options than it was compiled with; build it again"
                yield _finding(name, "skipped", message)
                continue
            place = self.scratch / f"alone-{number}"
            place.mkdir()
            try:
                model = self._compile_alone(group, name, reference.source, place)
            except EpbuildError as error:
                yield _finding(name, "failed", " ".join(problem.message for problem in error.problems), "EPB649")
                continue
            yield from self._run([Load(name, model, feeds=reference.feeds)], {name: reference}, session, place, because)

    def _compile_alone(self, group: SessionGroup, name: str, source: RunnableSource, staging: Path) -> Path:
        """Compile a member of a sharing group by itself, as the recipe has it; returns its EPContext model. Raises what a compile does.

        Of a member that is prepared, `source` knows what is compiled.
        """
        member = group.member(name)
        if member.prepared is not None:
            if source.prepared is None:
                message = f"what {member.prepared} made is not in the cache"
                raise BuildError(Problem("EPB649", message, None, "`epbuild run` makes it again."))
            member = sized(member.with_files(source.prepared), read_header(source.prepared.graph))
            group = replace(group, members=tuple(member if item.name == name else item for item in group.members))
        log, store = staging.with_suffix(".log"), BlobStore(cache_directory())
        execution = Execution(self.session.environment, staging, log, "not kept", store, NoProgress(), threading.Event())
        if self.comparison.alone is not None:
            self.comparison.alone(group, member, execution)
        return staging / member.output

    def _compared(self, name: str, reference: ReferenceRun, outputs: Sequence[tuple[str, ...]], because: str) -> Finding:
        comparison, quantised = self.comparison, reference.source.is_quantised
        try:
            measured = measure(reference, outputs, comparison.tolerance(quantised=quantised) if comparison.by_element else None)
        except DifferentOutput as error:
            return _finding(name, "failed", f"{error}{because}", "EPB646")
        if measured.worst is None:
            return _finding(name, "skipped", f"it has no output with elements to compare{because}")
        checked = self.sources.checked(name, self.document)
        asked = checked.asked if checked is not None and comparison.asked == Thresholds() else comparison.asked
        numbers = self.session.eps[0].entry.numbers if self.session.eps else Numbers()
        rules = Rules(numbers, quantised, asked, comparison.bound(quantised=quantised))
        verdicts = [rules.judge(figures) for figures in measured.figures]
        outcome, message, hint = (_by_element if comparison.by_element else _by_metrics)(verdicts, measured, reference)
        code = {"failed": "EPB646", "skipped": "EPB665", "passed": None}[outcome]
        figures = tuple({"evidence": reference.evidence, **asdict(found)} for found in measured.figures)
        return Finding("numbers", name, outcome, message + because, code, hint, figures)


def _finding(model: str, outcome: Outcome, message: str, code: str | None = None) -> Finding:
    return Finding("numbers", model, outcome, message, code)


def _on(reference: ReferenceRun) -> str:
    return f"{reference.on} (made inputs: weak evidence)" if reference.evidence == "made" else reference.on


def _by_metrics(
    verdicts: Sequence[OutputVerdict], measured: Measured, reference: ReferenceRun
) -> tuple[Outcome, str, str | None]:
    """The outcome by figures, a clause about it with them, and what to do."""
    on, outcome, figures, hint = _on(reference), overall(verdicts), figures_text(verdicts), hint_of(verdicts)
    worst = f"; the worst number, for {measured.at}, is {measured.worst.place}" if measured.worst is not None else ""
    if outcome == "passed":
        return "passed", f"its numbers are near enough to those of the CPU EP, for {on}: {figures}{worst}", None
    if outcome == "unjudgeable":
        return "skipped", f"its numbers cannot be judged, for {on}: {figures}", hint
    bad = sum(verdict.outcome == "failed" for verdict in verdicts)
    few = "its only output is" if len(verdicts) == 1 else f"{bad} of {len(verdicts)} outputs are"
    return "failed", f"{few} too far from those of the CPU EP, for {on}: {figures}{worst}", hint


def _by_element(
    verdicts: Sequence[OutputVerdict], measured: Measured, reference: ReferenceRun
) -> tuple[Outcome, str, str | None]:
    """The same by what each element may be off by; what shows nothing by its figures shows nothing by its elements either."""
    on, figures, worst = _on(reference), figures_text(verdicts), measured.worst
    if overall(verdicts) == "unjudgeable":
        return "skipped", f"its numbers cannot be judged, for {on}: {figures}", hint_of(verdicts)
    small = [verdict for verdict in verdicts if verdict.outcome == "failed" and verdict.own_scale]
    if measured.outside == 0 and small:
        why = (
            "what is allowed is more than any of their numbers, and by their own scale they are too far from those of the CPU EP"
        )
        return "failed", f"{counted(len(small), 'output')}, for {on}: {why}: {figures_text(small)}", hint_of(small)
    if measured.outside == 0:
        message = f"its numbers are near enough to those of the CPU EP, for {on}; the worst is {worst}; {figures}"
        return "passed", message, None
    far = f"{measured.outside:,} of {measured.elements:,} numbers are too far from those of the CPU EP"
    return "failed", f"{far}; the worst, for {measured.at}, is {worst}; {figures}", hint_of(verdicts) or _ELEMENTS


def _as_compiled(group: SessionGroup, document: Mapping[str, Any] | None) -> bool:
    """Whether a session group of the recipe has the EPs and the options of a manifest."""
    target = document["target"] if document is not None else {"eps": [], "session_options": {}}
    eps = [(ep["ep"], ep["provider_options"]) for ep in target["eps"]]
    here = [(ep.entry.ep, dict(ep.provider_options)) for ep in group.target.eps]
    return eps == here and target["session_options"] == dict(group.target.session_options)
