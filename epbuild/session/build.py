"""Executor that looks up, runs, records and reports the actions of one build."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import AbstractContextManager, suppress
from functools import partial
from pathlib import PurePosixPath

import msgspec

from epbuild.actions.types import get_action_type, read_result
from epbuild.cache.errors import DamagedBlob, MissingBlob
from epbuild.cache.state import Measurement, StepRecord
from epbuild.cache.workspace import get_log_path
from epbuild.core.digest import Count, hash_file
from epbuild.core.errors import Cancelled, EpbuildError, Position, Problem, StepId, StoreError, VerifyError
from epbuild.core.safepath import is_inside
from epbuild.core.shown import format_path
from epbuild.engine.events import (
    Origin,
    Outcome,
    Progress,
    RunFinished,
    StepFinished,
    StepOutput,
    StepStarted,
    Warned,
    count_step_bytes,
)
from epbuild.engine.leases import Leases
from epbuild.engine.ledger import Ledger
from epbuild.engine.loop import IdleActions
from epbuild.engine.scheduler import Cost, Runnable
from epbuild.plan.key import describe_differences
from epbuild.plan.made import KeyedAction, Made
from epbuild.plan.measuring import ModelMeasurement, make_measurement_id
from epbuild.plan.preparing import Preparation
from epbuild.plan.result import DIAGNOSTICS, ActionResult, get_diagnostics, make_action_record
from epbuild.plan.steps import Action, Emission, Plan, SessionGroup
from epbuild.plan.verification import Verification, make_verification_id
from epbuild.publish.sizes import SharingSaved, compute_savings
from epbuild.recipe.model import Recipe
from epbuild.session.coverage import find_covered_models, list_all_models
from epbuild.session.emitting import Emitter
from epbuild.session.events import ModelCovered
from epbuild.session.execution import ActionRunner, Executions, MissingResultError, NewResult
from epbuild.session.provisioning import Provisioning, get_toolchain_name
from epbuild.session.shared_results import SharedResults
from epbuild.survey.costs import estimate_cost, get_cost_name
from epbuild.survey.status import Survey, Surveyor


class BuildExecutor:
    """Executor of the actions of one build, with their results so far. Any number of threads may use it."""

    def __init__(
        self,
        found: Survey,
        toolchains: Provisioning,
        surveyor: Surveyor,
        progress: Progress,
        cancelled: threading.Event,
        *,
        runner: ActionRunner,
        shared: SharedResults | None = None,
    ) -> None:
        self.cancelled = cancelled
        self.idle = IdleActions()
        """Actions that wait for another build of the same action, or that only store their results."""
        self.leases = Leases(progress, cancelled, self.idle)
        self.executions = Executions(surveyor, toolchains, progress, cancelled, self.idle)
        self._found = found
        self._plan = found.plan
        self._todo = frozenset(found.todo)
        self._toolchains = toolchains
        self._surveyor = surveyor
        self._outputs = surveyor.outputs
        self._memory = surveyor.memory
        self._workspace = surveyor.workspace
        self._store = surveyor.store
        self._progress = progress
        self._runner = runner
        self._shared = shared
        self._known_failures = surveyor.failures
        self._remembered: set[str] = set()
        """Actions that failed in an earlier build and are not retried."""
        self._held_back: dict[str, str] = {}
        """Id of the failed step for each action that cannot run because of an allowed failure."""
        steps: dict[str, list[str]] = {}
        for step in found.plan.steps:
            steps.setdefault(step.action, []).append(step.id)
        self.made: dict[str, Made] = {}
        """Actions with a known result, by id."""
        self._remaking = (
            threading.RLock()
        )  # one rebuild of a lost result at a time, as the scheduler does not count the memory of rebuilds
        self.results: dict[str, ActionResult] = {}
        """All known results, by action, even if they do not meet expectations."""
        self._failures: dict[str, Sequence[Problem]] = {}
        self._begun: dict[str, float] = {}
        """Time when the work on each action began, as `time.monotonic` returns it."""
        self._ledger = Ledger(steps, progress, find_definitions(found.plan, surveyor.recipe))
        self.emitter = Emitter(found, surveyor, self, progress, self._ledger)

    @property
    def outcomes(self) -> Mapping[str, Outcome]:
        """Outcomes of the steps that have ended, by id."""
        return self._ledger.outcomes

    def adopt_current(self) -> None:
        """Record and report the actions that need no work: current actions, and actions whose results need not be built or fetched."""
        current: list[str] = []
        known, recorded = [], self._memory.keys(self._found.actions)
        for ident, status in self._found.actions.items():
            if status.made is None or ident in self._todo:
                continue
            self.made[ident] = status.made
            self.results[ident] = status.made.result
            if recorded.get(ident) != status.made.key:  # found in the store, or built here by another configuration
                known.append(StepRecord(ident, status.made.key, status.document, msgspec.to_builtins(status.made.result)))
            self._write_diagnostics(ident, status.made.result)
            if status.state == "restorable":
                self._ledger.end_current(current)  # in the order of the steps
                current = []
                self._ledger.end_all(ident, "restored", from_="remote" if status.remote else None)
            else:
                current += self._ledger.steps[ident]
        self._ledger.end_current(current)
        if known:
            self._memory.record_steps(known)
        self.emitter.adopt_current()

    def expect(self, jobs: int) -> float | None:
        """Start counting progress with `jobs` parallel actions. Return the expected seconds, or None if they are unknown."""
        return self._ledger.expect({action: self.cost(action) for action in self._found.todo}, jobs)

    def cost(self, ident: str) -> Cost:
        """Return the expected cost of an action. The cost is zero if the action's result only has to be fetched."""
        if self._found.actions[ident].remote:
            return Cost(0.0, measured=True)
        return estimate_cost(self._plan.actions[ident], self._workspace, self._memory)

    def memory(self, ident: str) -> int:
        """Return the memory in bytes that an action needs on this machine, or 0 if another machine runs the action."""
        action = self._plan.actions[ident]
        if isinstance(action, Emission) or self._runner.is_for_others(action):
            return 0
        return self._needed_memory(ident)

    def _needed_memory(self, ident: str) -> int:
        """Return the memory in bytes that an action needs, on this or another machine."""
        action = self._plan.actions[ident]
        measured = self._workspace.measurement(get_cost_name(ident, self._memory))
        return get_action_type(action).memory(action, measured.peak_rss_bytes if measured is not None else None)

    def execute(self, action: str) -> None:
        """Run one action. Raises EpbuildError if it fails, Cancelled if the build is being stopped."""
        if self.cancelled.is_set():
            raise Cancelled(action)
        self._ledger.begin(action)
        found = self._plan.actions[action]
        if isinstance(found, Emission):
            self.emitter.emit(found)
        else:
            self._build(found)

    def fail(self, action: str, error: EpbuildError) -> bool:
        """Report that an action failed. Return whether other actions may continue."""
        allowed = action in self._plan.may_fail
        if not isinstance(error, MissingResultError):  # the coverage of a missing result is unknown
            self._failures[action] = error.problems
        seconds = time.monotonic() - self._begun[action] if action in self._begun else 0.0
        step = self._ledger.fail(action, error, seconds, allowed=allowed, remembered=action in self._remembered)
        if allowed:
            self._hold_back(action, step)
        return allowed or not error.stops_others

    def _hold_back(self, action: str, failed: str) -> None:
        """Mark all actions that need a failed action as held back. Warn about outputs of these actions from an earlier build."""
        held = {action}
        for ident, other in self._plan.actions.items():  # in dependency order
            if not held.intersection(other.needs) or ident in self._held_back:
                continue
            held.add(ident)
            self._held_back[ident] = failed
            if isinstance(other, Emission) and self._outputs.last(other.path) is not None and os.path.lexists(other.path):
                message = (
                    f"{format_path(other.path)} is out of date but was kept: {failed} failed, and the recipe allows this failure"
                )
                hint = "Delete this output if it must not be used."
                self._progress.report(Warned(Problem("EPB460", message, StepId(other.id), hint)))

    def skip(self, action: str) -> None:
        """Report that an action was not run because another action failed."""
        note = f"needs {self._held_back[action]}" if action in self._held_back else ""
        self._ledger.end_all(action, "skipped", note)

    def give_up(self, missing: Set[str]) -> None:
        """Report the actions `missing` as failed, because their results may not be built. Report all other actions as skipped."""
        for ident in self._found.todo:
            if ident in missing:
                self.fail(ident, MissingResultError(self._plan.actions[ident]))
            else:
                self.skip(ident)

    def finished(self, seconds: float, *, every_model: bool) -> RunFinished:
        """Report the coverage of new models (of all models if `every_model` is true) and the bytes saved by sharing. Return the totals."""
        new = {ident for ident, group in self._plan.session_groups.items() if every_model or self._is_new(group)}
        for event in (*find_covered_models(self._plan, self.results, self._failures, new), *self._find_savings()):
            self._progress.report(event)
        return self._ledger.finished(seconds)

    def list_models(self) -> list[ModelCovered]:
        """Return the coverage of all models, including models that were not built."""
        return list_all_models(self._plan, self.results, self._failures)

    def _is_new(self, group: SessionGroup) -> bool:
        """Return whether this build compiled a session group, restored it, verified it, or measured it."""
        where = group.group, group.target.name
        its = {group.id, make_verification_id(*where), make_measurement_id(*where)}
        return not its.isdisjoint(self._todo) or self._ledger.outcomes.get(group.steps[-1]) == "restored"

    def _find_savings(self) -> Iterator[SharingSaved]:
        emitted = [emission for emission in self._plan.emissions.values() if self._ledger.outcomes.get(emission.id) == "emitted"]
        published = {ident for emission in emitted for ident in emission.session_groups}
        for ident, made in ((ident, self.made[ident]) for ident in self._plan.session_groups if ident in self.made):
            if ident in published or self._ledger.outcomes.get(made.group.steps[-1]) in ("built", "restored"):
                saved = compute_savings(made.group, made.compiled)
                if saved is not None:
                    yield saved

    def remake(self, ident: str) -> None:
        """Rebuild an action whose result the store has lost. Raises the same errors as `execute`."""
        with self._remaking:
            self._build(self._plan.actions[ident], again=True)

    def _build(self, planned: Action, *, again: bool = False) -> None:
        """Look up the result of an action or run the action. Then check, record and report the result.

        With `again`, rebuild a current action whose result the store has lost.
        """
        subject, origin = self._look_up(planned)
        action, key, kind = subject.action, subject.key, get_action_type(planned)
        if self._find_known(subject, again=again)[1] is None:
            self._check_runnable(subject)
            if not self._runner.is_for_others(action) and not self._provision_toolchain(subject):
                self._build(planned, again=again)  # with a new key, as the toolchain differs
                return
        self._progress.report(StepStarted(action.steps[0], kind.doing))
        with self.leases.hold(action.id, action.steps[0], self._store.root, key):
            begin = self._begun[action.id] = time.monotonic()  # waiting for another build does not count as work
            outcome, result = self._find_known(subject, again=again)
            machine, is_finished = None, False
            if result is None:
                result, outcome, machine = self._run(subject)
            self.results[action.id] = result
            self._check_expectations(action, result)  # a result that fails here need not be finished
            for more in self._runner.finish(subject, result, self.executions):
                result, is_finished = more, True
                self._store_result(subject, result)  # stored at once, because adding a part may take as long as the action itself
        self._check_expectations(action, result)
        for warning in kind.warnings(action, result):
            self._progress.report(Warned(warning))
        seconds = time.monotonic() - begin
        self._memory.record_steps([StepRecord(action.id, key, subject.document, msgspec.to_builtins(result))])
        is_new = machine is None and (origin is None or is_finished)  # other machines publish their results themselves
        if self._shared is not None and is_new and self._surveyor.result(action, key) is not None:
            self._shared.add(key, make_action_record(subject.document, result), more=is_finished)
        if outcome == "built":
            measured = Measurement(seconds if machine is None else result.measured.seconds, result.measured.peak_memory)
            self._workspace.record_measurement(get_cost_name(action.id, self._memory), measured)
        self.made[action.id] = Made(action, key, subject.document, result, tuple(subject.needed))
        self._write_diagnostics(action.id, result)
        self._end_steps(action, NewResult(result, outcome, machine), seconds, origin if outcome == "restored" else None)

    def _write_diagnostics(self, action: str, result: ActionResult) -> None:
        """Write the missing diagnostic files of a result beside the action's log. Skip files that are missing in the store."""
        names = get_diagnostics(result)
        if not names:
            return
        # Beside the action's log.
        folder = get_log_path(self._workspace.directory, action, self._memory.configuration.recipe).with_suffix("")
        for name in names:
            place, blob = folder / PurePosixPath(name).relative_to(DIAGNOSTICS), result.artifacts[name]
            if not is_inside(place, self._workspace.directory) or (place.is_file() and hash_file(place) == blob.digest):
                continue  # a checkout may contain a link to another folder
            place.unlink(missing_ok=True)
            with suppress(MissingBlob, DamagedBlob):
                self._store.materialize(blob.digest, place)

    def _end_steps(self, action: Action, new: NewResult, seconds: float, origin: Origin | None) -> None:
        """Report the end of each step of an action."""
        result, outcome, machine = new
        for end in get_action_type(action).step_ends(action, result):
            is_last = end.step == action.id
            took = end.seconds if outcome == "built" else None if is_last else 0.0
            took = seconds if took is None else took
            peak = result.measured.peak_memory if outcome == "built" and is_last else None
            self._ledger.end(
                StepFinished(end.step, outcome, took, end.note, end.size, from_=origin, machine=machine, memory=peak)
            )

    def _look_up(self, planned: Action) -> tuple[KeyedAction, Origin | None]:
        """Compute the key of an action, and fetch the result if only the remote cache has it.

        If the action has no result, rebuild the results that it needs and that the store has lost, and look up the result again. Return
        the action with its key, and the origin of the result. The origin is None if nothing was fetched.
        """
        subject = self._compute_key(planned)
        origin = self._fetch(subject)
        if subject.needed and self._surveyor.result(subject.action, subject.key) is None and self._restore(subject.needed):
            subject = self._compute_key(planned)
            origin = self._fetch(subject)
        return subject, origin

    def _compute_key(self, planned: Action) -> KeyedAction:
        """Return an action with all its files, its key, and the results that it needs."""
        status, toolchain = self._found.actions[planned.id], self._toolchains.known.of(planned)
        if toolchain is None:
            toolchain = self._toolchains.environment(planned)
        needed = tuple(self.made[ident] for ident in planned.needs)
        if status.key is not None and not needed and not self._toolchains.is_refused(planned):
            return KeyedAction(planned, status.key, dict(status.document), needed)
        # This build may have rebuilt needed results, which may differ from the survey's.
        return KeyedAction(*self._surveyor.keyed(planned, needed, toolchain), needed)

    def _fetch(self, subject: KeyedAction) -> Origin | None:
        """Fetch the result of an action if only the remote cache has it. Return "remote" if the result was fetched, or else None."""
        remote, action, key = self._surveyor.remote, subject.action, subject.key
        if remote is None or self._surveyor.result(action, key) is not None:
            return None
        if self._found.actions[action.id].remote:
            self._progress.report(StepStarted(action.steps[0], "fetching"))
        record = remote.fetch(key, action.id, partial(self._count_fetched, action.steps[0]))
        result = read_result(action, record) if record is not None else None
        if result is None:
            return None
        self._store_result(subject, result)
        return "remote"

    def _count_fetched(self, step: str, total: int, files: str) -> AbstractContextManager[Count]:
        return count_step_bytes(self._progress, step, f"fetching {files}", total)

    def _find_known(self, subject: KeyedAction, *, again: bool) -> tuple[Outcome, ActionResult | None]:
        """Find the known result of an action. Return the outcome of the action's steps if the result is used, and the result or None."""
        action, key = subject.action, subject.key
        result = self._surveyor.result(action, key)
        if self._found.actions[action.id].key is None and not again:
            # The needed results are unchanged, so this result is unchanged too, even if the store has lost it.
            here = self._surveyor.result_here(action, key)
            if here is not None:
                return "current", result or here
        return "restored", result

    def _run(self, subject: KeyedAction) -> NewResult:
        """Run an action, and store its result. A failure is recorded under the action's key."""
        action = subject.action
        self._check_runnable(subject)
        try:
            expected = Runnable(action.id, (), self.cost(action.id), self._needed_memory(action.id))
            new = self._runner.run(subject, expected, self.executions)
        except EpbuildError as error:
            with suppress(StoreError):  # the failure itself is more important
                self._known_failures.remember(action.id, subject.key, error)
            raise
        self._store_result(subject, new.result)
        self._known_failures.forget(action.id)
        return new

    def _provision_toolchain(self, subject: KeyedAction) -> bool:
        """Provision the toolchain of an action. Return whether the toolchain's identity matches the action's key document."""
        action, name = subject.action, get_toolchain_name(subject.action)
        if name not in self._toolchains.known.environments:
            self._progress.report(StepStarted(action.steps[0], f"waiting for the toolchain {name}"))
            self.idle.add(action.id)
        try:
            environment = self._toolchains.environment(action)
        finally:
            self.idle.discard(action.id)
        identity = get_action_type(action).identity(action, environment)
        return not describe_differences({"toolchain": subject.document["toolchain"]}, {"toolchain": identity})

    def _restore(self, needed: Iterable[Made]) -> bool:
        """Rebuild those of the `needed` results that the store has lost. Return whether any result was lost."""
        lost = [made for made in needed if not self._surveyor.is_whole(made)]
        for made in lost:
            self._progress.report(StepOutput(made.action.steps[0], "the store has lost the result; rebuilding it"))
            self.remake(made.action.id)
        return bool(lost)

    def _check_runnable(self, subject: KeyedAction) -> None:
        """Raise the recorded error of an action whose last run failed with the same key, unless failures are retried.

        Also raises EpbuildError if the action cannot run here.
        """
        action = subject.action
        failure = None if self._runner.retry else self._known_failures.of(action.id, subject.key)
        if failure is not None:
            self._remembered.add(action.id)
            raise failure.as_error()
        self._runner.check(action)

    def _store_result(self, subject: KeyedAction, result: ActionResult) -> None:
        self._surveyor.records.put(subject.key, make_action_record(subject.document, result))

    def _check_expectations(self, action: Action, result: ActionResult) -> None:
        unmet = get_action_type(action).unmet_expectations(action, result)
        if unmet:
            raise VerifyError(*unmet)


def find_definitions(plan: Plan, recipe: Recipe) -> dict[str, Position]:
    """Return the position of the group, model or output that defines each action, by action. Some groups are not in the recipe."""
    found = {}
    for ident, action in plan.actions.items():
        if isinstance(action, Preparation | Emission):
            found[ident] = action.where
        elif isinstance(action, SessionGroup | Verification | ModelMeasurement) and action.group in recipe.groups:
            found[ident] = recipe.groups[action.group].where
    return found
