"""Checks of numbers as actions: figures of compiled models and their sources."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from msgspec.structs import asdict, replace

from epbuild.core.errors import BuildError, EnvironmentFailure, EpbuildError, Problem, StepId, VerifyError
from epbuild.engine.events import StepOutput
from epbuild.onnxfile.read.headers import read_header
from epbuild.onnxfile.read.wire import MalformedModel
from epbuild.plan.made import Made
from epbuild.plan.member import Member
from epbuild.plan.result import FigureRow, Measurements, UnjudgedMember, VerificationResult
from epbuild.plan.steps import SessionGroup
from epbuild.plan.verification import CheckedMember, Verification
from epbuild.toolchain.execution import Execution, Workplace
from epbuild.verify.live.eps import session_of
from epbuild.verify.live.inputs import BadInputs, NoInputs, Sample, made_samples, read_samples
from epbuild.verify.live.judging import not_judged_here
from epbuild.verify.live.metrics import DifferentOutput
from epbuild.verify.live.model import RunnableSource, other_values
from epbuild.verify.live.runs import ReferenceRun, measure, outputs_of, run_reference
from epbuild.verify.live.worker import RAISED, Attempt, Load, LoadFailure, Session, find_devices, run_models, why_not_real


class Alone(Protocol):
    """Compiles a member of a sharing group by itself, un-shared."""

    def __call__(self, group: SessionGroup, member: Member, execution: Execution, /) -> object:
        """Leave the compiled model in the execution's staging directory. Raises EpbuildError, and Cancelled."""


class NumbersMaker:
    """Runs compiled models and compares their outputs with those of their sources; `alone` compiles those that cannot be loaded shared."""

    def __init__(self, alone: Alone) -> None:
        self._alone = alone

    def check(self, action: Verification) -> None:
        """Nothing can be known before it runs."""

    def make(self, action: Verification, execution: Execution) -> VerificationResult:
        return _Check(action, execution, self._alone).result()

    def finish(self, action: Verification, result: VerificationResult, work: Workplace) -> Iterator[VerificationResult]:
        return iter(())

    def remake(self, action: Verification, execution: Execution) -> Mapping[str, Path]:
        return {}


class _Check:
    """One check of numbers on its way."""

    def __init__(self, action: Verification, execution: Execution, alone: Alone) -> None:
        self._action = action
        self._compile_alone = alone
        self._execution = execution
        self._session = session_of(action.target, execution.environment, action.custom_ops, action.timeout)
        self._logs: list[Path] = []
        self._peaks: list[int] = []
        self._figures: list[FigureRow] = []
        self._unjudged: list[UnjudgedMember] = []

    def result(self) -> VerificationResult:
        """The figures, and what is kept beside them. Raises EpbuildError, and Cancelled."""
        begin = time.monotonic()
        try:
            if self._action.is_on_real_device:
                self._check_device(self._execution.staging / "devices")
            for number, built in enumerate(self._action.compiled):
                self._run(built, self._execution.staging / f"{number}")
        finally:
            self._write_log()
        self._execution.recheck()
        for item in self._unjudged:
            # What another machine can judge must not be in the store as something that nobody can.
            if self._action.of(item.member).must_be_judged and not item.by_inputs:
                raise VerifyError(not_judged_here(self._action, item))
        log = self._execution.store.put(self._execution.log)
        measured = Measurements(round(time.monotonic() - begin, 3), {}, max(self._peaks, default=None))
        return VerificationResult({}, log, measured, tuple(self._figures), tuple(self._unjudged))

    def _check_device(self, scratch: Path) -> None:
        """Raises EnvironmentFailure (EPB667) where this machine has no device for the EPs, or only one that stands for it."""
        scratch.mkdir(parents=True)
        self._logs.append(scratch / "worker.log")
        attempt = find_devices(self._session, scratch, self._execution.cancelled)
        if (why := why_not_real(attempt, self._session.eps)) is not None:
            message = f"{self._action.target.title} has no real device here: {why}"
            hint = "Run it on a machine that has one, or have a worker there do it (--executor)."
            raise EnvironmentFailure(Problem("EPB667", message, StepId(self._action.id), hint))

    def _run(self, built: Made, place: Path) -> None:
        for name, digest in built.result.digests.items():
            self._execution.store.materialize(digest, place / "compiled" / name)
        files = {model.member: place / "compiled" / model.file for model in built.compiled.models}
        references = {
            checked.name: found
            for number, checked in enumerate(self._action.members)
            if checked.session == built.group.id
            and (found := self._reference(checked, built, files[checked.name], place / f"reference-{number}")) is not None
        }
        if not references:
            return
        loads = [Load(name, file, feeds=references[name].feeds if name in references else ()) for name, file in files.items()]
        self._say(f"running {', '.join(references)} on {self._action.target.title}")
        attempt = self._attempt(loads, self._session.sharing(share=True) if built.group.share else self._session, place / "run")
        if attempt.failure is None:
            for name, reference in references.items():
                self._compare(name, reference, attempt, unshared=False)
        elif not attempt.failure.cannot_load:
            raise self._failed(attempt.failure)
        elif built.group.share:
            for number, (name, reference) in enumerate(references.items()):
                self._run_alone(name, reference, built, place / f"alone-{number}")
        else:
            self._unjudged += [UnjudgedMember(name, attempt.failure.message) for name in references]

    def _run_alone(self, name: str, reference: ReferenceRun, built: Made, place: Path) -> None:
        """The same of a member compiled un-shared, where what shares cannot be loaded."""
        self._say(f"compiling {name} un-shared, as what shares cannot be loaded here")
        place.mkdir(parents=True)
        own = self._execution.apart(place)
        self._logs.append(own.log)
        member = built.group.member(name)
        try:
            self._compile_alone(built.group, member, own)
        except EpbuildError as error:
            raise type(error)(*(replace(problem, where=StepId(self._action.id)) for problem in error.problems)) from error
        attempt = self._attempt([Load(name, place / member.output, feeds=reference.feeds)], self._session, place / "run")
        if attempt.failure is None:
            self._compare(name, reference, attempt, unshared=True)
        elif attempt.failure.cannot_load:
            self._unjudged.append(UnjudgedMember(name, attempt.failure.message))
        else:
            raise self._failed(attempt.failure)

    def _reference(self, checked: CheckedMember, built: Made, compiled: Path, place: Path) -> ReferenceRun | None:
        """Run what a member is compared with; returns None, and takes note, if its made inputs do not suit it."""
        member = built.group.member(checked.name)
        step = StepId(self._action.id)
        try:
            compiled_from = member.known
            files = checked.source or compiled_from
            prepared = compiled_from if member.prepared is not None else None
            source = RunnableSource(files.graph, files.external, read_header(files.graph), member.model.free_dimensions, prepared)
            inputs = read_header(compiled).inputs
            samples = self._samples(checked, source, inputs)
        except NoInputs as error:
            self._unjudged.append(UnjudgedMember(checked.name, str(error), by_inputs=True))
            return None
        except BadInputs as error:
            hint = "Change `inputs` of its `verify`."
            raise VerifyError(Problem("EPB648", f"the inputs of the model '{checked.name}': {error}", step, hint)) from error
        except (OSError, MalformedModel) as error:
            raise BuildError(Problem("EPB649", f"the model '{checked.name}' cannot be read: {error}", step)) from error
        if others := other_values(source.header, built.compiled.model(checked.name).source):
            message = (
                f"the model '{checked.name}' cannot be compared with its source, which has other inputs or outputs: {others}"
            )
            raise VerifyError(Problem("EPB649", message, step, "Write `reference: prepared`, or leave `reference` out."))
        several = f", for {len(samples)} sets of inputs" if len(samples) > 1 else ""
        self._say(f"running {checked.name} on the CPU EP{several}")
        self._logs.append(place / "worker.log")
        names = [value.name for value in inputs]
        found = run_reference(checked.name, source, samples, names, self._session, place, self._execution.cancelled)
        if isinstance(found, LoadFailure):
            if checked.made is not None and found.code == RAISED:
                reason = f"the CPU EP cannot run its source with them: {found.message}"
                self._unjudged.append(UnjudgedMember(checked.name, reason, by_inputs=True))
                return None
            message = f"there is nothing to compare '{checked.name}' with: the CPU EP cannot run its source: {found.message}"
            raise BuildError(Problem("EPB649", message, step, f"The whole log: {self._execution.shown_log}."))
        return found

    def _samples(self, checked: CheckedMember, source: RunnableSource, inputs: Sequence[Any]) -> list[Sample]:
        made = checked.made
        if made is None:
            return [replace(sample, name=name) for name, path in checked.inputs.items() for sample in read_samples(path, inputs)]
        ranges = {name: bounds for name, bounds in made.ranges.items() if name in {value.name for value in inputs}}
        return made_samples(replace(made, ranges=ranges), inputs, source.sizes, source.tables)

    def _compare(self, name: str, reference: ReferenceRun, attempt: Attempt, *, unshared: bool) -> None:
        try:
            measured = measure(reference, outputs_of(name, attempt))
        except DifferentOutput as error:
            message = f"the model '{name}' does not give what its source does: {error}"
            raise VerifyError(Problem("EPB646", message, StepId(self._action.id))) from error
        self._figures += [
            FigureRow(
                **asdict(figures),
                member=name,
                evidence=reference.evidence,
                on=f"for {reference.on}",
                reference=self._action.of(name).reference,
                at=measured.at,
                quantised=reference.source.is_quantised,
                unshared=unshared,
                worst=measured.worst.place if measured.worst is not None else None,
            )
            for figures in measured.figures
        ]

    def _attempt(self, loads: Sequence[Load], session: Session, scratch: Path) -> Attempt:
        scratch.mkdir(parents=True)
        self._logs.append(scratch / "worker.log")
        attempt = run_models(loads, session, scratch, self._execution.cancelled)
        self._peaks += [report["peak_memory"] for report in attempt.of("finished") if report.get("peak_memory")]
        return attempt

    def _failed(self, failure: LoadFailure) -> BuildError:
        subject = f"the model '{failure.model}' cannot be run" if failure.model is not None else "the models cannot be run"
        message = f"{subject} on {self._action.target.title}: {failure.message}"
        hint = f"The whole log: {self._execution.shown_log}."
        return BuildError(Problem(failure.code, message, StepId(self._action.id), hint))

    def _say(self, text: str) -> None:
        self._execution.progress.report(StepOutput(self._action.id, text))

    def _write_log(self) -> None:
        with self._execution.log.open("wb") as whole:
            for log in self._logs:
                if log.exists():
                    whole.write(f"--- {log.parent.name}\n".encode())
                    with log.open("rb") as part:
                        shutil.copyfileobj(part, whole)
