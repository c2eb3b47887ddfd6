"""Run of a verification step: a `NumbersCheck` for each session group."""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from msgspec.structs import asdict, replace

from epbuild.compile.alone import compile_alone
from epbuild.compile.checked_runs import run_by_command
from epbuild.compile.model_runs import make_device_error
from epbuild.compile.task_metrics import compute_metrics
from epbuild.core.errors import BuildError, Problem, StepId, VerifyError
from epbuild.engine.events import StepOutput
from epbuild.onnxfile.read.headers import read_header
from epbuild.onnxfile.read.wire import MalformedModel
from epbuild.plan.made import Made
from epbuild.plan.result import FigureRow, Measurements, TaskMetric, UnjudgedMember, VerificationResult
from epbuild.plan.verification import CheckedMember, Verification
from epbuild.toolchain.execution import Execution
from epbuild.verify.live.inputs import BadInputs, NoInputs, load_recipe_samples
from epbuild.verify.live.judging import make_unjudged_problem
from epbuild.verify.live.numbers_check import MemberResult, NumbersCheck, Subject, compile_unshared
from epbuild.verify.live.session import open_target_session
from epbuild.verify.live.source import RunnableSource, find_other_values
from epbuild.verify.live.worker import RAISED, Attempt, Feed, LoadFailure, explain_no_real_device, run_models


class VerificationRun:
    """Single run of a verification step. The run ends at the first model that fails.

    The run only measures the outputs. The figures are judged later, whenever the state of the step is determined.
    """

    def __init__(self, action: Verification, execution: Execution) -> None:
        self._action = action
        self._step = StepId(action.id)
        self._execution = execution
        self._session = open_target_session(action.target, execution.environment, action.custom_ops, action.timeout)
        self._checks: list[NumbersCheck] = []
        self._figures: list[FigureRow] = []
        self._unjudged: list[UnjudgedMember] = []
        self._metrics: list[TaskMetric] = []
        self._command_logs: list[Path] = []
        self._devices: dict[str, str] = {}
        """Names of the devices on which commands ran models, by member."""

    def result(self) -> VerificationResult:
        """Run the models and return their figures and the log. Raises EpbuildError and Cancelled."""
        begin = time.monotonic()
        try:
            if self._action.is_on_real_device:
                self._check_device()
            for number, built in enumerate(self._action.compiled):
                self._compare_group(built, self._execution.staging / f"{number}")
        finally:
            self._write_log()
        self._execution.recheck()
        for item in self._unjudged:
            # Raise an error instead of storing the failure, as another machine may be able to judge the same models.
            if self._action.of(item.member).must_be_judged and not item.by_inputs:
                raise VerifyError(make_unjudged_problem(self._action, item))
        log = self._execution.store.put(self._execution.log)
        peaks = [peak for check in self._checks for peak in check.peaks]
        measured = Measurements(round(time.monotonic() - begin, 3), {}, max(peaks, default=None))
        return VerificationResult({}, log, measured, tuple(self._figures), tuple(self._unjudged), tuple(self._metrics))

    @property
    def _device_folder(self) -> Path:
        return self._execution.staging / "devices"

    def _check_device(self) -> None:
        """Raise EnvironmentFailure (EPB667) if this machine has no device for the EPs, or only an emulator."""
        self._device_folder.mkdir(parents=True)
        attempt = run_models((), self._session, self._device_folder, self._execution.cancelled)
        if (reason := explain_no_real_device(attempt, self._session.eps)) is not None:
            raise make_device_error(f"{self._action.target.title} has no real device here: {reason}", self._step)

    def _compare_group(self, built: Made, folder: Path) -> None:
        """Compare the models of one session group with their sources, and collect the figures."""
        for name, digest in built.result.digests.items():
            self._execution.store.materialize(digest, folder / "compiled" / name)
        files = {model.member: folder / "compiled" / model.file for model in built.compiled.models}
        members = [member for member in self._action.members if member.session == built.group.id]
        candidates = [self._make_subject(member, built, files[member.name], folder) for member in members]
        subjects = [subject for subject in candidates if subject is not None]

        def compile_subject(subject: Subject, staging: Path) -> Path:
            member, execution = built.group.member(subject.name), self._execution.create_inner(staging)
            return compile_unshared(compile_alone, built.group, member, execution, self._action.id)

        check = NumbersCheck(
            models=files,
            session=self._session.with_sharing(share=True) if built.group.share else self._session,
            scratch=folder,
            compile_unshared=compile_subject if built.group.share else None,
            lines=lambda text: self._execution.progress.report(StepOutput(self._action.id, text)),
            target=self._action.target.title,
            cancelled=self._execution.cancelled,
        )
        self._checks.append(check)
        for result in check.compare(subjects):
            self._record(result)
            checked = self._action.of(result.subject.name)
            if checked.metric is not None and result.runs:
                self._metrics += compute_metrics(self._action, checked, result.runs, self._create_inner(folder))

    def _create_inner(self, folder: Path) -> Execution:
        """Return an execution for a command, with its own staging directory and log."""
        execution = self._execution.create_inner(folder / f"command-{len(self._command_logs)}")
        self._command_logs.append(execution.log)
        return execution

    def _run_elsewhere(self, checked: CheckedMember, feeds: Sequence[Feed], folder: Path) -> Attempt:
        """Run a compiled model with the member's command."""
        self._devices[checked.name], names = run_by_command(self._action, checked, feeds, self._create_inner(folder))
        return Attempt(({"event": "ran", "model": checked.name, "outputs": names},) * len(feeds), None)

    def _make_subject(self, checked: CheckedMember, built: Made, compiled: Path, folder: Path) -> Subject | None:
        """Return a member's source and inputs. If inputs cannot be generated, record the reason and return None."""
        member = built.group.member(checked.name)
        try:
            compiled_from = member.compiled_files
            files = checked.source or compiled_from
            prepared = compiled_from if member.prepared is not None else None
            source = RunnableSource(files.graph, files.external, read_header(files.graph), member.model.dimensions, prepared)
            inputs = read_header(compiled).inputs
            samples = load_recipe_samples(checked, inputs, source.sizes, source.tables)
        except NoInputs as error:
            self._unjudged.append(UnjudgedMember(checked.name, str(error), by_inputs=True))
            return None
        except BadInputs as error:
            message = f"the inputs of the model '{checked.name}' are invalid: {error}"
            raise VerifyError(Problem("EPB648", message, self._step, "Correct `data` in the recipe's `verify`.")) from error
        except (OSError, MalformedModel) as error:
            raise BuildError(Problem("EPB649", f"the model '{checked.name}' cannot be read: {error}", self._step)) from error
        if others := find_other_values(source.header, built.compiled.model(checked.name).source):
            message = f"the model '{checked.name}' cannot be compared with its source, whose inputs or outputs differ: {others}"
            raise VerifyError(Problem("EPB649", message, self._step, "Write `reference: prepared`, or omit `reference`."))
        run = partial(self._run_elsewhere, checked, folder=folder) if checked.runner is not None else None
        return Subject(checked.name, source, samples, tuple(value.name for value in inputs), run=run)

    def _record(self, result: MemberResult) -> None:
        """Collect the figures of a model. Raises EpbuildError if this model or a model in the same process fails."""
        subject = result.subject
        if result.source_failure is not None:
            self._record_source_failure(subject.name, result.source_failure)
        elif result.compile_error is not None:
            error = result.compile_error
            raise type(error)(*(replace(problem, where=self._step) for problem in error.problems)) from error
        elif result.failure is not None and result.failure.cannot_load:
            self._unjudged.append(UnjudgedMember(subject.name, result.failure.message))
        elif result.failure is not None:
            raise self._make_run_error(result.failure)
        elif result.measured is None:
            message = f"the model '{subject.name}' differs from its source ({self._describe_run(subject)}): {result.different}"
            raise VerifyError(Problem("EPB646", message, self._step))
        else:
            worst = result.measured.worst
            self._figures += [
                FigureRow(
                    **asdict(figures),
                    member=subject.name,
                    evidence=subject.evidence,
                    on=self._describe_run(subject),
                    reference=self._action.of(subject.name).reference,
                    at=result.measured.at,
                    quantized=subject.source.is_quantized,
                    unshared=result.unshared is not None,
                    worst=worst.place if worst is not None else None,
                    losses=result.measured.losses.get(figures.output),
                    command_device=self._devices.get(subject.name),
                )
                for figures in result.measured.figures
            ]

    def _describe_run(self, subject: Subject) -> str:
        """Return a clause with the inputs of a model, and with the device if a command ran the model."""
        device = self._devices.get(subject.name)
        return f"for {subject.on}" + (f", run by the command on '{device}'" if device is not None else "")

    def _record_source_failure(self, name: str, failure: LoadFailure) -> None:
        """Record that the source rejects generated inputs. Raises BuildError for any other failure, or if the inputs are from files."""
        if self._action.of(name).made is not None and failure.code == RAISED:
            reason = f"the CPU EP cannot run the source with generated inputs: {failure.message}"
            self._unjudged.append(UnjudgedMember(name, reason, by_inputs=True))
            return
        message = f"the CPU EP cannot run the source of the model '{name}': {failure.message}"
        raise BuildError(Problem("EPB649", message, self._step, f"See the whole log: {self._execution.shown_log}."))

    def _make_run_error(self, failure: LoadFailure) -> BuildError:
        subject = f"the model '{failure.model}' cannot be run" if failure.model is not None else "the models cannot be run"
        message = f"{subject} on {self._action.target.title}: {failure.message}"
        return BuildError(Problem(failure.code, message, self._step, f"See the whole log: {self._execution.shown_log}."))

    def _write_log(self) -> None:
        logs = [
            self._device_folder / "worker.log",
            *(log for check in self._checks for log in check.logs),
            *self._command_logs,
        ]
        with self._execution.log.open("wb") as whole:
            for log in logs:
                if log.exists():
                    whole.write(f"--- {log.parent.name}\n".encode())
                    with log.open("rb") as part:
                        shutil.copyfileobj(part, whole)
