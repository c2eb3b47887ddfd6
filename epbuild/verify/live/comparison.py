"""Findings about numbers: adapter between `verify` and `NumbersCheck`."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field, to_builtins
from msgspec.structs import asdict, replace

from epbuild.cache.blobs import BlobStore
from epbuild.cache.location import find_cache_directory
from epbuild.catalog.facts import Numbers, Thresholds
from epbuild.core.errors import BuildError, Problem
from epbuild.core.units import format_count
from epbuild.engine.events import NoProgress
from epbuild.onnxfile.read.headers import read_header
from epbuild.onnxfile.read.model_header import ValueInfo
from epbuild.plan.shapes import fit_inputs
from epbuild.plan.steps import SessionGroup
from epbuild.plan.verification import CheckedMember
from epbuild.recipe.model import MadeInputs
from epbuild.toolchain.execution import Execution
from epbuild.verify.findings import Finding, Outcome
from epbuild.verify.live.inputs import BadInputs, NoInputs, Sample, load_recipe_samples, make_samples, read_samples
from epbuild.verify.live.metrics import Tolerance, get_default_tolerance
from epbuild.verify.live.numbers_check import CompileAlone, Measured, MemberResult, NumbersCheck, Subject, compile_unshared
from epbuild.verify.live.source import NoSource, RunnableSource, Sources, WrongSource
from epbuild.verify.live.verdict import (
    OutputVerdict,
    Rules,
    decide_outcome,
    format_losses,
    format_output_figures,
    list_hints,
    rank_cosine,
)
from epbuild.verify.live.worker import LoadFailure, Session

if TYPE_CHECKING:
    import numpy as np

_ELEMENTS = "If the target's precision explains the difference, allow it with --atol and --rtol, or judge by --metric."


class OutputComparison(Struct, frozen=True):
    """User's options for a comparison: the inputs of models, and the required accuracy of outputs."""

    inputs: Mapping[str, Path] = field(default_factory=dict)
    """Files or folders of inputs, by model. The empty name stands for all other models."""
    made: MadeInputs | None = None
    """Settings for generated inputs. If None, the settings in the recipe's `verify` or else the seed 0 apply."""
    asked: Thresholds = field(default_factory=Thresholds)
    """Thresholds for metrics. If empty, the thresholds in the recipe's `verify` apply, or else the catalog's for the EP."""
    atol: float | None = None
    rtol: float | None = None
    """Relative tolerance. An element's tolerance is `atol` plus `rtol` times the output's largest expected magnitude.

    Elements are not judged if both `atol` and `rtol` are None.
    """
    compile_alone: CompileAlone | None = None
    """Function that compiles a model without sharing if a group cannot be loaded. If None, models of such a group are skipped."""

    @property
    def by_element(self) -> bool:
        """True if each element is judged separately."""
        return (self.atol, self.rtol) != (None, None)

    def get_bound(self, *, quantized: bool) -> float | None:
        """Return the absolute tolerance of float outputs, or None if elements are not judged separately."""
        import numpy as np

        return self.get_tolerance(quantized=quantized)(np.dtype(np.float32)).atol if self.by_element else None

    def get_tolerance(self, *, quantized: bool) -> Callable[[np.dtype[Any]], Tolerance]:
        """Return a function that maps the type of an output to its tolerance."""

        def of(dtype: np.dtype[Any]) -> Tolerance:
            default = get_default_tolerance(dtype, quantized=quantized)
            return Tolerance(default.atol if self.atol is None else self.atol, default.rtol if self.rtol is None else self.rtol)

        return of

    def load_samples(
        self, name: str, inputs: Sequence[ValueInfo], source: RunnableSource, checked: CheckedMember | None
    ) -> list[Sample]:
        """Return a model's inputs as the user or else the recipe requests, or else generate them. Raises BadInputs and NoInputs."""
        place = self.inputs.get(name) or self.inputs.get("")
        if place:
            return read_samples(place, inputs)
        if self.made is None and checked is not None:
            return load_recipe_samples(checked, inputs, source.sizes, source.tables)
        return make_samples(self.made or MadeInputs(), inputs, source.sizes, source.tables)


class NumbersFindings(Struct, frozen=True):
    """Findings about the numbers of models in one process.

    A finding has the model's name as subject, and a clause as message.
    """

    comparison: OutputComparison
    session: Session
    sources: Sources
    document: Mapping[str, Any] | None
    """Document of the manifest, or None."""
    scratch: Path

    def judge(
        self, models: Mapping[str, Path], inputs: Mapping[str, Sequence[ValueInfo]], failed: LoadFailure | None
    ) -> Iterator[Finding]:
        """Judge every model, even after a model has failed. `failed` is the failure to load the models, if any."""
        group = self.sources.find_group(self.document, next(iter(models)))
        compile_subject = None
        if self.comparison.compile_alone is not None and group is not None and group.share:
            compile_subject = partial(self._compile_unshared, self.comparison.compile_alone, group)
        if failed is not None and (compile_subject is None or not failed.cannot_load):
            yield from (_make_finding(name, "skipped", self._explain_not_run(failed, group)) for name in models)
            return
        subjects = []
        for name in models:
            found = self._make_subject(name, inputs[name])
            if isinstance(found, Finding):
                yield found
            else:
                subjects.append(found)
        if group is not None and not _is_as_compiled(group, self.document):
            compile_subject = None
        if failed is not None and compile_subject is None:
            message = "it was not compiled with the options in the recipe; rebuild it"
            yield from (_make_finding(subject.name, "skipped", message) for subject in subjects)
            return
        check = NumbersCheck(models, self.session, self.scratch, compile_subject)
        for result in check.compare(subjects, failed):
            yield self._judge(result)

    def _compile_unshared(self, compile_alone: CompileAlone, group: SessionGroup, subject: Subject, staging: Path) -> Path:
        """Compile a subject's model without sharing, and return its path. Raises EpbuildError and Cancelled."""
        member, files = group.member(subject.name), subject.source.prepared
        if member.prepared is not None:
            if files is None:
                message = f"the result of {member.prepared} is not in the store"
                raise BuildError(Problem("EPB649", message, None, "Run `epbuild run` to recreate it."))
            member = fit_inputs(member.with_files(files), read_header(files.graph))
            group = replace(group, members=tuple(member if item.name == member.name else item for item in group.members))
        log, store = staging.with_suffix(".log"), BlobStore(find_cache_directory())
        execution = Execution(self.session.environment, staging, log, "not kept", store, NoProgress(), threading.Event())
        return compile_unshared(compile_alone, group, member, execution, group.id)

    def _explain_not_run(self, failed: LoadFailure, group: SessionGroup | None) -> str:
        if not failed.cannot_load:
            return "it was not run, because it could not be loaded"
        hint = "; to compile the model without sharing and compare its outputs, pass --recipe"
        return failed.message.rstrip(".") + (hint if group is None and self.sources.recipe is None else "")

    def _make_subject(self, name: str, inputs: Sequence[ValueInfo]) -> Subject | Finding:
        """Return the source and the inputs to compare a model with, or a finding if a comparison is not possible."""
        comparison = self.comparison
        try:
            source = self.sources.find(name, self.document)
            samples = comparison.load_samples(name, inputs, source, self.sources.find_checked(name, self.document))
        except WrongSource as reason:
            return _make_finding(name, "failed", str(reason), "EPB647")
        except BadInputs as reason:
            return _make_finding(name, "failed", str(reason), "EPB648")
        except (NoSource, NoInputs) as reason:
            return _make_finding(name, "skipped", str(reason))
        tolerance = comparison.get_tolerance(quantized=source.is_quantized) if comparison.by_element else None
        return Subject(name, source, samples, tuple(value.name for value in inputs), tolerance)

    def _judge(self, result: MemberResult) -> Finding:
        name, failure, unshared = result.subject.name, result.failure, result.unshared
        because = ""
        if unshared is not None:
            reason = f"because the sharing group cannot be loaded here: {unshared.message.rstrip('.')}"
            because = f". These figures are for the same model compiled without sharing, {reason}"
        if result.source_failure is not None:
            return _make_finding(
                name, "failed", f"the CPU EP cannot run the source model: {result.source_failure.message}", "EPB649"
            )
        if result.compile_error is not None:
            return _make_finding(name, "failed", " ".join(problem.message for problem in result.compile_error.problems), "EPB649")
        if result.different:
            return _make_finding(name, "failed", f"{result.different}{because}", "EPB646")
        if result.measured is not None:
            return self._judge_numbers(result.subject, result.measured, because)
        if failure is None or failure.model not in (None, name):
            return _make_finding(name, "skipped", "it was not run, because an earlier model failed")
        if failure.cannot_load:
            return _make_finding(name, "skipped", failure.message + because)
        return _make_finding(name, "failed", failure.message + because, failure.code)

    def _judge_numbers(self, subject: Subject, measured: Measured, because: str) -> Finding:
        comparison, quantized = self.comparison, subject.source.is_quantized
        if measured.worst is None:
            return _make_finding(subject.name, "skipped", f"its outputs have no elements to compare{because}")
        checked = self.sources.find_checked(subject.name, self.document)
        asked = checked.user_thresholds if checked is not None and comparison.asked == Thresholds() else comparison.asked
        numbers = self.session.eps[0].entry.numbers if self.session.eps else Numbers()
        rules = Rules(numbers, quantized, asked, comparison.get_bound(quantized=quantized))
        verdicts = [rules.judge(figures) for figures in measured.figures]
        outcome, message, hint = (_judge_by_element if comparison.by_element else _judge_by_metrics)(verdicts, measured, subject)
        code = {"failed": "EPB646", "skipped": "EPB665", "passed": None}[outcome]
        losses = measured.losses
        figures = tuple(
            {
                "evidence": subject.evidence,
                **asdict(found),
                **({"losses": to_builtins(losses[found.output])} if found.output in losses else {}),
            }
            for found in measured.figures
        )
        if losses:
            message += (
                f"; {format_losses(min(losses.values(), key=lambda loss: min(map(rank_cosine, (loss.preparation, loss.ep)))))}"
            )
        return Finding("numbers", subject.name, outcome, message + because, code, hint, figures)


def _make_finding(model: str, outcome: Outcome, message: str, code: str | None = None) -> Finding:
    return Finding("numbers", model, outcome, message, code)


def _describe_inputs(subject: Subject) -> str:
    return f"{subject.on} (generated inputs: weak evidence)" if subject.evidence == "made" else subject.on


def _judge_by_metrics(verdicts: Sequence[OutputVerdict], measured: Measured, subject: Subject) -> tuple[Outcome, str, str | None]:
    """Judge a model by metrics. Return the outcome, a clause with the figures, and a hint."""
    on, outcome, figures, hint = (
        _describe_inputs(subject),
        decide_outcome(verdicts),
        format_output_figures(verdicts),
        list_hints(verdicts),
    )
    worst = f"; the worst value, for {measured.at}, is {measured.worst.place}" if measured.worst is not None else ""
    if outcome == "passed":
        return "passed", f"its outputs are close enough to the outputs of the CPU EP, for {on}: {figures}{worst}", None
    if outcome == "unjudgeable":
        return "skipped", f"with {on}, its outputs cannot be judged: {figures}", hint
    bad = sum(verdict.outcome == "failed" for verdict in verdicts)
    few = "its only output differs" if len(verdicts) == 1 else f"{bad} of {len(verdicts)} outputs differ"
    return "failed", f"{few} too much from the CPU EP, for {on}: {figures}{worst}", hint


def _judge_by_element(verdicts: Sequence[OutputVerdict], measured: Measured, subject: Subject) -> tuple[Outcome, str, str | None]:
    """Judge a model by the tolerance of its elements. Return the outcome, a clause with the figures, and a hint.

    If the figures prove nothing, the elements cannot be judged either.
    """
    on, figures, worst = _describe_inputs(subject), format_output_figures(verdicts), measured.worst
    if decide_outcome(verdicts) == "unjudgeable":
        return "skipped", f"with {on}, its outputs cannot be judged: {figures}", list_hints(verdicts)
    small = [verdict for verdict in verdicts if verdict.outcome == "failed" and verdict.own_scale]
    if measured.outside == 0 and small:
        why = "no value is larger than the allowed difference, so the output was judged by its own scale"
        return (
            "failed",
            f"{format_count(len(small), 'output')} failed, for {on}; {why}; {format_output_figures(small)}",
            list_hints(small),
        )
    if measured.outside == 0:
        message = f"its outputs are close enough to the outputs of the CPU EP, for {on}; the worst is {worst}; {figures}"
        return "passed", message, None
    far = f"{measured.outside:,} of {measured.elements:,} values differ too much from the values of the CPU EP"
    return "failed", f"{far}; the worst, for {measured.at}, is {worst}; {figures}", list_hints(verdicts) or _ELEMENTS


def _is_as_compiled(group: SessionGroup, document: Mapping[str, Any] | None) -> bool:
    """Return whether a session group of the recipe has the same EPs and options as a manifest."""
    target = document["target"] if document is not None else {"eps": [], "session_options": {}}
    eps = [(ep["ep"], ep["provider_options"]) for ep in target["eps"]]
    here = [(ep.entry.ep, dict(ep.provider_options)) for ep in group.target.eps]
    return eps == here and target["session_options"] == dict(group.target.session_options)
