"""The actions of one build: results that the cache keeps, and outputs."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import msgspec

from epbuild.actions.types import action_type, read_result
from epbuild.cache.leases import Cancelled
from epbuild.cache.state import Measurement
from epbuild.core.errors import EpbuildError, Problem, StepId, StoreError, VerifyError
from epbuild.core.shown import shown_path
from epbuild.engine.action import Cost, Runnable
from epbuild.engine.events import Origin, Outcome, Progress, RunFinished, StepFinished, StepOutput, StepStarted, Warned
from epbuild.engine.leases import Leases
from epbuild.engine.ledger import Ledger
from epbuild.engine.loop import Idle
from epbuild.plan.key import action_key, differences
from epbuild.plan.made import Made
from epbuild.plan.result import ActionResult
from epbuild.plan.steps import Action, Emission, SessionGroup
from epbuild.plan.verification import verification_id
from epbuild.publish.events import SharingSaved
from epbuild.publish.sizes import savings
from epbuild.session.coverage import covered_models
from epbuild.session.emitting import Publishing, step_record
from epbuild.session.execution import Executions, KeyedAction
from epbuild.session.provisioning import Provisioning, name_of
from epbuild.session.runner import ActionRunner, NotMade
from epbuild.session.shared_results import SharedResults
from epbuild.survey.costs import expected_cost, subject_of
from epbuild.survey.status import Survey, Surveyor


class Actions:
    """The executor of the actions of one build, with what has come of them so far."""

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
        self.idle = Idle()
        """The actions that wait for another build to do the same, and those whose compile is done and that store what it made."""
        self.leases = Leases(progress, cancelled, self.idle)
        self.executions = Executions(surveyor, toolchains, progress, cancelled, self.idle)
        self._found = found
        self._plan = found.plan
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
        """The actions that failed before, and were not tried again."""
        self._held_back: dict[str, str] = {}
        """The actions that cannot be done since one failed whose failure is allowed, with that one's id."""
        steps: dict[str, list[str]] = {}
        for step in found.plan.steps:
            steps.setdefault(step.action, []).append(step.id)
        self._made: dict[str, Made] = {}
        self._remaking = threading.RLock()  # what is made beside the plan has its memory counted by nobody: one at a time
        self._results: dict[str, ActionResult] = {}
        """The results that are known, also those that are not as the recipe wants them."""
        self._failures: dict[str, Sequence[Problem]] = {}
        self._ledger = Ledger(steps, progress)
        self._publishing = Publishing(found, surveyor, self, progress, self._ledger)

    @property
    def made(self) -> Mapping[str, Made]:
        """The actions whose results are in the store by now, or were found there, by id."""
        return self._made

    @property
    def outcomes(self) -> Mapping[str, Outcome]:
        """What came of each step so far, by id."""
        return self._ledger.outcomes

    def take_over(self) -> None:
        """Count in what needs no work: results that are current, and results that the store already has."""
        current: list[str] = []
        known, recorded = [], self._memory.keys(self._found.actions)
        for ident, status in self._found.actions.items():
            if status.made is None or ident in self._found.todo:
                continue
            self._made[ident] = status.made
            self._results[ident] = status.made.result
            if recorded.get(ident) != status.made.key:  # the store has it, or another configuration made it here
                known.append(step_record(ident, status.made.key, status.document, msgspec.to_builtins(status.made.result)))
            if status.state == "restorable":
                self._ledger.end_current(current)  # in the order of the steps
                current = []
                self._ledger.end_all(ident, "restored", from_="remote" if status.remote else None)
            else:
                current += self._ledger.steps[ident]
        self._ledger.end_current(current)
        if known:
            self._memory.record_steps(known)
        self._publishing.adopt()

    def expect(self, jobs: int) -> float | None:
        """Count from now on what is to do, `jobs` actions at once; returns the seconds that it is likely to take, if that is known."""
        return self._ledger.expect({action: self.cost(action) for action in self._found.todo}, jobs)

    def cost(self, ident: str) -> Cost:
        """How long an action will take; what is only fetched comes cheap."""
        if self._found.actions[ident].remote:
            return Cost(0.0, measured=True)
        return expected_cost(self._plan.actions[ident], self._workspace, self._memory)

    def memory(self, ident: str) -> int:
        """How many bytes of this machine's memory an action will take: none of what another machine executes."""
        action = self._plan.actions[ident]
        if isinstance(action, Emission) or self._runner.is_for_others(action):
            return 0
        return self._needed_memory(ident)

    def _needed_memory(self, ident: str) -> int:
        """As the recipe has it, else as last time, else by the bytes that it works on."""
        action = self._plan.actions[ident]
        measured = self._workspace.measurement(subject_of(ident, self._memory))
        return action_type(action).memory(action, measured.peak_rss_bytes if measured is not None else None)

    def execute(self, action: str) -> None:
        """Do one action. Raises EpbuildError when it fails, Cancelled when the build is being stopped."""
        if self.cancelled.is_set():
            raise Cancelled(action)
        self._ledger.begin(action)
        found = self._plan.actions[action]
        if isinstance(found, Emission):
            self._publishing.publish(found)
        else:
            self._make(found)

    def fail(self, action: str, error: EpbuildError) -> bool:
        """Take note that an action failed; returns whether others may go on: where the recipe allows it, or it concerns no others."""
        allowed = action in self._plan.may_fail
        if not isinstance(error, NotMade):  # of which it is not known how far it can be compiled
            self._failures[action] = error.problems
        step = self._ledger.fail(action, error, allowed=allowed, remembered=action in self._remembered)
        if allowed:
            self._hold_back(action, step)
        return allowed or not error.stops_others

    def _hold_back(self, action: str, failed: str) -> None:
        """Take note of what cannot be done without an action; outputs of it that are in place are of an earlier build."""
        held = {action}
        for ident, other in self._plan.actions.items():  # each after those that it needs
            if not held.intersection(other.needs) or ident in self._held_back:
                continue
            held.add(ident)
            self._held_back[ident] = failed
            if isinstance(other, Emission) and self._outputs.last(other.path) is not None and os.path.lexists(other.path):
                message = f"{shown_path(other.path)} stays as an earlier build left it, since {failed} failed, which is allowed"
                hint = "Remove it where it must not be used any more."
                self._progress.report(Warned(Problem("EPB460", message, StepId(other.id), hint)))

    def skip(self, action: str) -> None:
        note = f"needs {self._held_back[action]}" if action in self._held_back else ""
        self._ledger.end_all(action, "skipped", note)

    def give_up(self, missing: Collection[str]) -> None:
        """Do nothing, as results are `missing` that may not be made."""
        for ident in self._found.todo:
            if ident in missing:
                self.fail(ident, NotMade(self._plan.actions[ident]))
            else:
                self.skip(ident)

    def finished(self, seconds: float, *, every_model: bool) -> RunFinished:
        """The sum of it all, once it is reported how far the models were compiled that are new here, or all, and what sharing saves."""
        new = {ident for ident, group in self._plan.session_groups.items() if every_model or self._is_new(group)}
        for event in (*covered_models(self._plan, self._results, self._failures, new), *self._savings()):
            self._progress.report(event)
        return self._ledger.finished(seconds)

    def _is_new(self, group: SessionGroup) -> bool:
        """Whether this build had to make a session group, brought it here out of the store, or checked its numbers."""
        its = {group.id, verification_id(group.group, group.target.name)}
        return not its.isdisjoint(self._found.todo) or self._ledger.outcomes.get(group.steps[-1]) == "restored"

    def _savings(self) -> Iterator[SharingSaved]:
        emitted = [emission for emission in self._plan.emissions.values() if self._ledger.outcomes.get(emission.id) == "emitted"]
        published = {ident for emission in emitted for ident in emission.session_groups}
        for ident, made in ((ident, self._made[ident]) for ident in self._plan.session_groups if ident in self._made):
            if ident in published or self._ledger.outcomes.get(made.group.steps[-1]) in ("built", "restored"):
                saved = savings(made.group, made.compiled)
                if saved is not None:
                    yield saved

    def _make(self, asked: Action, *, again: bool = False) -> None:
        """Make what the store keeps of an action, or find that it is there; `again`: although it was made, since the store has lost it."""
        kind = action_type(asked)
        action, document, needed = self._keyed(asked)
        origin = self._bring(action, document)
        if needed and self._surveyor.result(action, action_key(document)) is None and self._restore(needed):
            action, document, needed = self._keyed(asked)
            origin = self._bring(action, document)
        key, subject = action_key(document), KeyedAction(action, needed, document)
        if self._result(action, key, again=again)[1] is None:
            self._check_possible(action, key)
            if not self._runner.is_for_others(action) and not self._has_toolchain(action, document):
                self._make(asked, again=again)
                return
        self._progress.report(StepStarted(action.steps[0], kind.doing))
        machine, work = None, self.executions.workplace(subject)
        with self.leases.hold(action.id, action.steps[0], self._store.root, key):
            begin = time.monotonic()  # to wait for another build is no work
            outcome, result = self._result(action, key, again=again)
            if result is None:
                self._check_possible(action, key)
                try:
                    expected = Runnable(action.id, (), self.cost(action.id), self._needed_memory(action.id))
                    made = self._runner.run(subject, key, expected, self.idle, work)
                except EpbuildError as error:
                    with suppress(StoreError):  # what failed is worth more words than that
                        self._known_failures.remember(action.id, key, error)
                    raise
                result, outcome, machine = made
                self._put(key, document, result)
                self._known_failures.forget(action.id)
            self._results[action.id] = result
            self._check(action, result)  # what fails anyway is not finished

            finished = False
            for more in self._runner.finish(action, result, work):
                result, finished = more, True
                # At once, since it may have taken as long as the action itself.
                self._put(key, document, result)
        self._check(action, result)
        for doubt in kind.warnings(action, result):
            self._progress.report(Warned(doubt))
        seconds = time.monotonic() - begin
        self._memory.record_steps([step_record(action.id, key, document, msgspec.to_builtins(result))])
        # What another machine made, it has published.
        is_new_there = machine is None and (origin is None or finished)
        if self._shared is not None and is_new_there and self._surveyor.result(action, key) is not None:
            self._shared.add(key, _record(document, result), more=finished)
        if outcome == "built":
            measured = Measurement(seconds if machine is None else result.measured.seconds, result.measured.peak_memory)
            self._workspace.record_measurement(subject_of(action.id, self._memory), measured)
        self._made[action.id] = Made(action, key, document, result, needed)
        for end in kind.step_ends(action, result):
            peak = result.measured.peak_memory if outcome == "built" and end.step == action.id else None
            took = end.seconds if outcome == "built" else None if end.step == action.id else 0.0
            took, of = seconds if took is None else took, origin if outcome == "restored" else None
            self._ledger.end(StepFinished(end.step, outcome, took, end.note, end.size, from_=of, machine=machine, memory=peak))

    def _bring(self, action: Action, document: Mapping[str, Any]) -> Origin | None:
        """Have the result of an action in the store, where the remote cache has it and the store has not; returns where it came from."""
        remote, key = self._surveyor.remote, action_key(document)
        if remote is None or self._surveyor.result(action, key) is not None:
            return None
        if self._found.actions[action.id].remote:
            self._progress.report(StepStarted(action.steps[0], "fetching"))
        found = remote.bring(key, action.id)
        result = read_result(action, found) if found is not None else None
        if result is None:
            return None
        self._put(key, document, result)
        return "remote"

    def remake(self, ident: str) -> None:
        """Make an action again whose result the store has lost. Raises what `execute` does."""
        with self._remaking:
            self._make(self._plan.actions[ident], again=True)

    def _keyed(self, asked: Action) -> tuple[Action, Mapping[str, Any], tuple[Made, ...]]:
        """An action with all its files, the document of its key, and what it is made of."""
        status, toolchain = self._found.actions[asked.id], self._toolchains.known.of(asked)
        if toolchain is None:
            toolchain = self._toolchains.environment(asked)
        needed = tuple(self._made[ident] for ident in asked.needs)
        if status.key is not None and not needed and not self._toolchains.is_refused(asked):
            return asked, status.document, needed
        # What it needs may have been made in this very build, and may have come out as another.
        return *self._surveyor.keyed(asked, needed, toolchain), needed

    def _result(self, action: Action, key: str, *, again: bool) -> tuple[Outcome, ActionResult | None]:
        """The result of an action that is known, and what that means for its steps."""
        result = self._surveyor.result(action, key)
        if self._found.actions[action.id].key is None and not again:
            # What it needs came out as before: then so has it, even where the store has lost it and its outputs are in place.
            here = self._surveyor.result_here(action, key)
            if here is not None:
                return "current", result or here
        return "restored", result

    def _has_toolchain(self, action: Action, document: Mapping[str, Any]) -> bool:
        """Have the toolchain of an action here; returns whether it is the one that the document of its key has."""
        name = name_of(action)
        if name not in self._toolchains.known.environments:
            self._progress.report(StepStarted(action.steps[0], f"waiting for the toolchain {name}"))
            self.idle.add(action.id)
        try:
            environment = self._toolchains.environment(action)
        finally:
            self.idle.discard(action.id)
        return not differences(
            {"toolchain": document["toolchain"]}, {"toolchain": action_type(action).identity(action, environment)}
        )

    def _restore(self, needed: Iterable[Made]) -> bool:
        """Make again what the store has lost of results that something is about to be made of; returns whether there was any."""
        lost = [made for made in needed if not self._surveyor.is_whole(made)]
        for made in lost:
            self._progress.report(StepOutput(made.action.steps[0], "the store has lost its result; it is made again"))
            self.remake(made.action.id)
        return bool(lost)

    def _check_possible(self, action: Action, key: str) -> None:
        """Raises the error that an action failed with the last time, if nothing has changed since and nobody wants it tried again.

        Raises EpbuildError, too, where it cannot be made here.
        """
        failure = None if self._runner.retry else self._known_failures.of(action.id, key)
        if failure is not None:
            self._remembered.add(action.id)
            raise failure.again()
        self._runner.check(action)

    def _put(self, key: str, document: Mapping[str, Any], result: ActionResult) -> None:
        self._surveyor.records.put(key, _record(document, result))

    def _check(self, action: Action, result: ActionResult) -> None:
        unmet = action_type(action).unmet_expectations(action, result)
        if unmet:
            raise VerifyError(*unmet)


def _record(document: Mapping[str, Any], result: ActionResult) -> dict[str, Any]:
    """The action record of a result."""
    return {"document": document, "result": msgspec.to_builtins(result)}
