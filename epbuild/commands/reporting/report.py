"""`epbuild report`: results of a recipe's builds, without building anything."""

from __future__ import annotations

import itertools
import platform
import sysconfig
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from msgspec.structs import replace

from epbuild import __version__
from epbuild.actions.action_type import StepEnd
from epbuild.actions.types import get_action_type
from epbuild.commands.log import read_log_end
from epbuild.commands.reporting.build_record import (
    BuildRecord,
    BuildRecords,
    ReportedError,
    ReportedPastBuild,
    StepRun,
)
from epbuild.commands.reporting.failures import FailureList, ReportedFailure
from epbuild.commands.reporting.parts import (
    collect_identities,
    report_accuracy,
    report_coverage,
    report_measurements,
    report_models,
    report_output,
    report_targets,
    report_toolchains,
)
from epbuild.commands.reporting.recipe_values import ReportedMachine, ReportedRecipe, ReportedSharing
from epbuild.commands.reporting.recording import report_error
from epbuild.commands.reporting.values import FORMAT, Report, ReportedBuild, ReportedStep, ReportedWarning
from epbuild.core.errors import Problem
from epbuild.core.host import count_cpus, read_cpu_name
from epbuild.engine.capacity import get_memory
from epbuild.engine.events import Progress, StepFailed
from epbuild.engine.ledger import find_faulty_step
from epbuild.plan.measuring import ModelMeasurement
from epbuild.plan.result import ActionResult, CompileResult, MeasurementResult, VerificationResult
from epbuild.plan.steps import Action, Emission, SessionGroup
from epbuild.plan.verification import Verification
from epbuild.publish.sizes import compute_savings
from epbuild.session.coverage import list_all_models
from epbuild.session.emitting import find_ends
from epbuild.session.planning import get_workspace_folder
from epbuild.session.request import Request
from epbuild.session.session import Session, open_session
from epbuild.survey.status import StepStatus
from epbuild.toolchain.platforms import get_own_platform

_MAX_LOGS = 200
"""Maximum number of steps whose logs are in a report."""


def report(request: Request, progress: Progress | None = None) -> Report:
    """Return the known facts about a recipe and its last build on this machine. Raises EpbuildError.

    Builds, fetches and provisions nothing.
    """
    # A report needs all models of the recipe, not only the models that changed since the last survey.
    with open_session(replace(request, every_model=True), progress) as session:
        return _ReportBuilder(session, BuildRecords(get_workspace_folder(request.recipe)), str(request.recipe)).report()


class _ReportBuilder:
    """Builder of a report from the survey and the last build."""

    def __init__(self, session: Session, records: BuildRecords, path: str) -> None:
        self._session = session
        self._found = session.survey()
        self._plan = self._found.plan
        self._path = path
        self._last = records.find_last(self._found.configuration.ident)
        self._past = records.list_summaries(self._found.configuration.ident)
        self._work = self._last.measure_work() if self._last is not None else {}
        self._runs: Mapping[str, StepRun] = {run.step: run for run in self._last.runs} if self._last is not None else {}
        self._results = {ident: result for ident in self._plan.actions if (result := self._find_result(ident)) is not None}
        self._problems = {ident: found for ident in self._plan.actions if (found := self._find_problems(ident))}
        self._ends = {end.step: end for end in self._find_all_ends()}
        self._errors = dict(self._find_all_errors())
        self._logs = dict(self._read_logs(get_workspace_folder(session.request.recipe)))

    def report(self) -> Report:
        session, recipe, digests = self._session, self._session.recipe, self._session.surveyor.digests
        known = collect_identities(self._found)
        covered = list_all_models(self._plan, self._results, self._problems)
        return Report(
            format=FORMAT,
            epbuild=__version__,
            made_at=_format_time(time.time()),
            recipe=ReportedRecipe(recipe.name, recipe.description, self._path, digests.of(recipe.file)),
            machine=ReportedMachine(
                platform.node(), get_own_platform() or sysconfig.get_platform(), read_cpu_name(), count_cpus(), get_memory()
            ),
            toolchains=tuple(report_toolchains(self._found, session.lock, known)),
            targets=tuple(report_targets(self._found, known)),
            models=tuple(report_models(self._plan, digests)),
            steps=tuple(map(self._report_step, self._found.steps())),
            coverage=tuple(report_coverage(self._plan, covered, self._results, session.surveyor.store)),
            outputs=tuple(
                report_output(emission, self._found.actions[ident], session.surveyor.outputs)
                for ident, emission in self._plan.emissions.items()
            ),
            sharing=tuple(self._report_sharing()),
            accuracy=tuple(
                row
                for ident, action in self._plan.of(Verification).items()
                if isinstance(result := self._results.get(ident), VerificationResult)
                for row in report_accuracy(action, result)
            ),
            measurements=tuple(
                row
                for ident, action in self._plan.of(ModelMeasurement).items()
                if isinstance(result := self._results.get(ident), MeasurementResult)
                for row in report_measurements(action, result)
            ),
            build=_report_build(self._last) if self._last is not None else None,
            warnings=tuple(
                ReportedWarning(found.code, found.message, found.hint, None if found.where is None else str(found.where))
                for found in self._plan.warnings
            ),
            failures=tuple(self._list_failures()),
            against=None,
            history=tuple(
                ReportedPastBuild(_format_time(build.began), build.seconds, build.exit_code, build.totals) for build in self._past
            ),
        )

    def _find_result(self, ident: str) -> ActionResult | None:
        """Return the known result of an action, or None. The result may violate the recipe's expectations."""
        status, action = self._found.actions[ident], self._plan.actions[ident]
        if status.made is not None:
            return status.made.result
        if status.key is None or isinstance(action, Emission):
            return None
        return self._session.surveyor.result(action, status.key) or self._session.surveyor.result_here(action, status.key)

    def _find_problems(self, ident: str) -> Sequence[Problem]:
        """Return the problems of a failed action: from its result, or else its stored failure, or else the last build."""
        status, action, result = self._found.actions[ident], self._plan.actions[ident], self._results.get(ident)
        if status.state == "current" or status.made is not None:
            return ()
        if result is not None:
            return list(get_action_type(action).unmet_expectations(action, result))
        failure = self._session.surveyor.failures.of(ident, status.key) if status.key is not None else None
        if failure is not None:
            return failure.problems
        runs = (run for step in self._plan.actions[ident].steps if (run := self._runs.get(step)) is not None)
        return [
            error.problem(run.step)
            for run in runs
            if None in (run.key, status.key) or run.key == status.key
            for error in run.errors
        ]

    def _report_step(self, status: StepStatus) -> ReportedStep:
        step, action = status.step, self._plan.actions[status.step.action]
        run, end, result = self._runs.get(step.id), self._ends.get(step.id), self._results.get(step.action)
        group, target = _get_group_and_target(action)
        return ReportedStep(
            id=step.id,
            kind=step.kind,
            action=step.action,
            group=group,
            target=target,
            needs=step.needs,
            state=status.state,
            remote=status.remote,
            reasons=status.reasons,
            key=status.key,
            seconds=_round_seconds(_find_seconds(run, end, result)),
            size=end.size if end is not None else None,
            memory=result.measured.peak_memory if result is not None and step.id == step.action else None,
            note=end.note if end is not None else "",
            outcome=run.outcome if run is not None else None,
            was=run.was if run is not None else None,
            because=run.because if run is not None else (),
            took=run.seconds if run is not None else None,
            work=_round_seconds(self._work.get(step.id)),
            started=run.started if run is not None else None,
            ended=run.ended if run is not None else None,
            worker=run.worker if run is not None else None,
            machine=run.machine if run is not None else None,
            origin=run.origin if run is not None else None,
            errors=tuple(self._errors.get(step.id, ())),
            log=self._logs.get(step.id),
        )

    def _find_all_ends(self) -> Iterator[StepEnd]:
        """Yield a `StepEnd` for each step of the actions with known results."""
        for ident, action in self._plan.actions.items():
            if isinstance(action, Emission):
                record = self._session.surveyor.outputs.last(action.path)
                if record is not None:
                    yield from find_ends(action, record.files)
            elif ident in self._results:
                yield from get_action_type(action).step_ends(action, self._results[ident])

    def _find_all_errors(self) -> Iterator[tuple[str, Sequence[ReportedError]]]:
        """Yield each failed step with its errors."""
        for ident, problems in self._problems.items():
            step = find_faulty_step(self._plan.actions[ident].steps, problems)
            yield step, [report_error(problem, step) for problem in problems]

    def _read_logs(self, workspace: Path) -> Iterator[tuple[str, str | None]]:
        """Yield the first failed steps, each with the end of its log."""
        actions = {step.id: step.action for step in self._plan.steps}
        for step in itertools.islice(self._errors, _MAX_LOGS):
            yield step, read_log_end(workspace, actions[step], self._found.configuration.recipe)

    def _list_failures(self) -> Sequence[ReportedFailure]:
        failures = FailureList()
        for step in self._found.plan.steps:
            if errors := self._errors.get(step.id):
                run = self._runs.get(step.id)
                problems = tuple(error.problem(step.id) for error in errors)
                failures.report(StepFailed(step.id, problems, allowed=run is not None and run.outcome == "allowed"))
        return failures.list_failures()

    def _report_sharing(self) -> Iterator[ReportedSharing]:
        for ident, group in self._plan.session_groups.items():
            result = self._results.get(ident)
            saved = compute_savings(group, result) if isinstance(result, CompileResult) else None
            if saved is not None:
                difference = saved.unshared - saved.shared
                yield ReportedSharing(
                    saved.step,
                    group.group,
                    group.target.name,
                    saved.unshared,
                    saved.shared,
                    difference,
                    saved.measured,
                    saved.made,
                )


def _get_group_and_target(action: Action) -> tuple[str | None, str | None]:
    """Return the group and the target of an action, or (None, None) if it does not belong to exactly one of each."""
    match action:
        case SessionGroup() | Verification() | ModelMeasurement():
            return action.group, action.target.name
        case Emission(parts=[part]):
            return part.group, part.target.name
    return None, None


def _find_seconds(run: StepRun | None, end: StepEnd | None, result: ActionResult | None) -> float | None:
    """Return the duration of the run that built a step's result, or else of the step's run in the last build, or None."""
    if end is not None and end.seconds is not None:
        return end.seconds
    if end is not None and result is not None:
        return result.measured.seconds
    return run.seconds if run is not None else None


def _report_build(record: BuildRecord) -> ReportedBuild:
    return ReportedBuild(
        began=_format_time(record.began),
        seconds=record.seconds,
        exit_code=record.exit_code,
        epbuild=record.epbuild,
        machine=record.machine,
        jobs=record.jobs,
        steps=record.steps,
        todo=record.todo,
        outcomes=Counter(run.outcome for run in record.runs),
        spans=record.spans,
        published=record.published,
        remote=record.remote,
    )


def _format_time(seconds: float) -> str:
    """Format a time in Unix seconds as RFC 3339 in UTC."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def _round_seconds(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)
