"""Does the actions of one build: makes what the store keeps, or finds that somebody has; publishes; keeps count of what came of each."""

from __future__ import annotations

import os
import posixpath
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from epbuild.archive.artifact import Copy
from epbuild.cache.errors import DamagedBlob, MissingBlob
from epbuild.cache.leases import Cancelled, lease
from epbuild.cache.logs import action_name, log_file
from epbuild.cache.memory import StepRecord
from epbuild.cache.workspace import Measurement
from epbuild.commands.coverage import covered_models
from epbuild.commands.kinds import kind_of
from epbuild.commands.removal import remove_output
from epbuild.compile.executor import Execution
from epbuild.compile.kind import KeyInputs
from epbuild.core.directory import unfinished
from epbuild.core.errors import BuildError, EpbuildError, Problem, StepId, StoreError, VerifyError
from epbuild.engine.events import (
    Outcome,
    Progress,
    RunFinished,
    StepFailed,
    StepFinished,
    StepOutput,
    StepStarted,
    Warned,
    shown_path,
)
from epbuild.engine.scheduler import Idle
from epbuild.engine.tally import Cost, Tally
from epbuild.output.existing import Written
from epbuild.plan.key import action_key, differences
from epbuild.plan.made import Made
from epbuild.plan.steps import Action, Emission, SessionGroup
from epbuild.plan.verification import verification_id
from epbuild.publish.action import Output, clear_away
from epbuild.publish.events import SharingSaved
from epbuild.publish.sizes import compared, last_files, savings
from epbuild.recipe.image_reference import ImageReference
from epbuild.recipe.model import Recipe
from epbuild.survey.orphans import PLACE, RESULTS, lease_name
from epbuild.survey.status import Survey, Surveyor
from epbuild.toolchain.environment import Environment

if TYPE_CHECKING:
    from epbuild.archive.oci import Image

_ATTEMPTS = 2
_BYTES_PER_SECOND = 50e6  # about what QNN's compiler gets through; it only orders the work
_MOST_STORING = 4  # when more than these wait for the disk, further compiles would only pile up
_COUNTED: Sequence[tuple[Outcome, ...]] = (
    ("built", "emitted"),
    ("restored",),
    ("current",),
    ("failed",),
    ("skipped",),
    ("allowed",),
)


class Actions:
    """The actions of one build, by id, and what has come of them so far. `perform` may be called from several threads."""

    def __init__(
        self,
        recipe: Recipe,
        found: Survey,
        environments: Mapping[str, Environment],
        surveyor: Surveyor,
        progress: Progress,
        cancelled: threading.Event,
        *,
        retry: bool = False,
    ) -> None:
        self.cancelled = cancelled
        self.idle = Idle()
        """The actions that wait for another build to do the same, and those whose compile is done and that store what it made."""
        self._recipe = recipe
        self._found = found
        self._plan = found.plan
        self._environments = dict(environments)
        self._surveyor = surveyor
        self._outputs = surveyor.outputs
        self._memory = surveyor.memory
        self._workspace = surveyor.workspace
        self._store = surveyor.store
        self._progress = progress
        self._retry = retry
        self._known_failures = surveyor.failures
        self._remembered: set[str] = set()
        """The actions that failed before, and were not tried again."""
        self._held_back: dict[str, str] = {}
        """The actions that cannot be done since one failed whose failure is allowed, with that one's id."""
        self._steps: dict[str, list[str]] = {}
        for step in found.plan.steps:
            self._steps.setdefault(step.action, []).append(step.id)
        self._made: dict[str, Made] = {}
        self._results: dict[str, Mapping[str, Any]] = {}
        """The results that are known, also those that are not as the recipe wants them."""
        self._failures: dict[str, Sequence[Problem]] = {}
        self._outcomes: dict[str, Outcome] = {}
        self._exit_code = 0
        self._tally = Tally({}, {}, 1)
        self._ending = threading.Lock()
        """Held while a step's end is counted and told, so that the counts are told in order."""

    @property
    def made(self) -> Mapping[str, Made]:
        """The actions whose results are in the store by now, or were found there, by id."""
        return self._made

    def take_over(self) -> None:
        """Count in what needs no work: results that are current, and results that the store already has."""
        known, recorded = [], self._memory.keys()
        for ident, status in self._found.actions.items():
            if status.made is None or ident in self._found.todo:
                continue
            self._made[ident] = status.made
            self._results[ident] = status.made.result
            if recorded.get(ident) != status.made.key:  # the store has it, or another configuration made it here
                known.append(_record(ident, status.made.key, status.document, status.made.result))
            for step in self._steps[ident]:
                self._ended(StepFinished(step, "restored" if status.state == "restorable" else "current", 0.0))
        if known:
            self._memory.record_steps(known)
        current = {ident: emission for ident, emission in self._plan.emissions.items() if ident not in self._found.todo}
        self._outputs.adopt(self._emitted(emission, self._found.actions[ident].document) for ident, emission in current.items())
        self._clear_away({emission.path: emission for emission in current.values()})
        for emission in current.values():
            self._stands(emission)

    def expect(self, jobs: int) -> float | None:
        """Count from now on what is to do, `jobs` actions at once; returns the seconds that it is likely to take, if that is known."""
        todo = self._found.todo
        self._tally = Tally(
            {action: self._steps[action] for action in todo}, {action: self.cost(action) for action in todo}, jobs
        )
        return self._tally.seconds_left()

    def cost(self, ident: str) -> Cost:
        """How long an action will take: as long as last time, else by the bytes that it works on; publishing comes cheap."""
        action = self._plan.actions[ident]
        if isinstance(action, Emission):
            return Cost(0.0, measured=True)
        measured = self._workspace.measurement(self._subject(ident))
        if measured is not None:
            return Cost(measured.seconds, measured=True)
        return Cost(1.0 + kind_of(action).size(action) / _BYTES_PER_SECOND, measured=False)

    def memory(self, ident: str) -> int:
        """How many bytes an action will take: as the recipe says, else as last time, else by the bytes that it works on."""
        action = self._plan.actions[ident]
        if isinstance(action, Emission):
            return 0
        measured = self._workspace.measurement(self._subject(ident))
        return kind_of(action).memory(action, measured.peak_rss_bytes if measured is not None else None)

    def _subject(self, action: str) -> str:
        """What the cost of an action is remembered under: that of another recipe's action of the same id is another."""
        return action_name(action, self._memory.configuration.recipe)

    def perform(self, action: str) -> None:
        """Do one action. Raises EpbuildError when it fails, Cancelled when the build is being stopped."""
        self._tally.begin(action)
        match self._plan.actions[action]:
            case Emission() as emission:
                self._lay_out(emission)
            case other:
                self._make(other)

    def failed(self, action: str, error: EpbuildError) -> bool:
        """Take note that an action failed: the step at fault is told, the others of its group count as skipped.

        Says whether the recipe allows that, so that others may go on.
        """
        allowed, remembered = action in self._plan.may_fail, action in self._remembered
        if not allowed:
            self._exit_code = max(self._exit_code, error.exit_code)
        self._failures[action] = error.problems
        at_fault = {problem.where for problem in error.problems}
        steps = self._steps[action]
        told = next((step for step in steps if step in at_fault), steps[-1])
        with self._ending:
            self._outcomes[told] = "allowed" if allowed else "failed"
            progress = self._tally.end(told, compiled=False)
            self._progress.report(StepFailed(told, error.problems, progress, allowed=allowed, remembered=remembered))
        for step in steps:
            if step != told:
                self._ended(StepFinished(step, "skipped", 0.0))
        if allowed:
            self._hold_back(action, told)
        return allowed

    def _hold_back(self, action: str, told: str) -> None:
        """Take note of what cannot be done without an action; outputs of it that are in place are of an earlier build."""
        held = {action}
        for ident, other in self._plan.actions.items():  # each after those that it needs
            if not held.intersection(other.needs) or ident in self._held_back:
                continue
            held.add(ident)
            self._held_back[ident] = told
            if isinstance(other, Emission) and self._outputs.last(other.path) is not None and os.path.lexists(other.path):
                message = f"{shown_path(other.path)} stays as an earlier build left it, since {told} failed, which is allowed"
                self._progress.report(
                    Warned(Problem("EPB460", message, StepId(other.id), "Remove it where it must not be used any more."))
                )

    def skipped(self, action: str) -> None:
        """Take note that an action was not started."""
        note = f"needs {self._held_back[action]}" if action in self._held_back else ""
        for step in self._steps[action]:
            self._ended(StepFinished(step, "skipped", 0.0, note))

    def finished(self, seconds: float, *, every_model: bool) -> RunFinished:
        """The sum of it all, once it is told how far the models were compiled that are new here, or all, and what sharing saves in them."""
        new = {ident for ident, group in self._plan.session_groups.items() if every_model or self._is_new(group)}
        for covered in covered_models(self._plan, self._results, self._failures, new):
            self._progress.report(covered)
        for saved in self._savings():
            self._progress.report(saved)
        counts = [sum(outcome in wanted for outcome in self._outcomes.values()) for wanted in _COUNTED]
        return RunFinished(self._exit_code, seconds, *counts)

    def _is_new(self, group: SessionGroup) -> bool:
        """Whether this build had to make a session group, brought it here out of the store, or checked its numbers."""
        checked = verification_id(group.group, group.target.name)
        return group.id in self._found.todo or checked in self._found.todo or self._outcomes.get(group.steps[-1]) == "restored"

    def _savings(self) -> Iterator[SharingSaved]:
        emitted = [emission for emission in self._plan.emissions.values() if self._outcomes.get(emission.id) == "emitted"]
        laid_out = {ident for emission in emitted for ident in emission.session_groups}
        for ident, made in ((ident, self._made[ident]) for ident in self._plan.session_groups if ident in self._made):
            if ident in laid_out or self._outcomes.get(made.group.steps[-1]) in ("built", "restored"):
                saved = savings(made.group, made.result)
                if saved is not None:
                    yield saved

    def _make(self, asked: Action, *, again: bool = False) -> None:
        """Make what the store keeps of an action, or find that it is there; `again`: although it was made, since the store has lost it."""
        kind, status = kind_of(asked), self._found.actions[asked.id]
        action, document, needed = self._keyed(asked)
        if needed and self._surveyor.result(action_key(document)) is None and self._restore(needed):
            action, document, needed = self._keyed(asked)
        key = action_key(document)
        self._progress.report(StepStarted(action.steps[0], kind.doing))
        result: Mapping[str, Any] | None
        outcome: Outcome = "restored"
        with self.alone(action.id, action.steps[0], self._store.root, key):
            begin = time.monotonic()  # to wait for another build is no work
            result = self._surveyor.result(key)
            if status.key is None and not again:
                # What it needs came out as before: then so has it, even where the store has lost it and its outputs are in place.
                here = self._memory.result(key)
                if here is not None:
                    outcome, result = "current", result or here
            if result is None:
                self._recall(action, key)
                kind.check(action)
                try:
                    with self.execution(action, needed, document, action.id) as execution:
                        result, outcome = kind.make(action, execution), "built"
                except EpbuildError as error:
                    with suppress(StoreError):  # what failed is worth more words than that
                        self._known_failures.remember(action.id, key, error)
                    raise
                self._surveyor.records.put(key, {"document": document, "result": result})
                self._known_failures.forget(action.id)
            self._results[action.id] = result
            self._check(action, result)  # what fails anyway is not finished

            def work(name: str) -> AbstractContextManager[Execution]:
                return self.execution(action, needed, document, f"{action.id}/{name}")

            for more in kind.finish(action, result, work):
                result = more
                # At once, since it may have taken as long as the action itself.
                self._surveyor.records.put(key, {"document": document, "result": result})
        self._check(action, result)
        seconds = time.monotonic() - begin
        self._memory.record_steps([_record(action.id, key, document, result)])
        if outcome == "built":
            measured = Measurement(seconds, result["measured"]["peak_memory"])
            self._workspace.record_measurement(self._subject(action.id), measured)
        self._made[action.id] = Made(action, key, document, result, needed)
        for end in kind.ends(action, result):
            took = end.seconds if outcome == "built" else None if end.step == action.id else 0.0
            self._ended(StepFinished(end.step, outcome, seconds if took is None else took, end.note, end.size))

    def _keyed(self, asked: Action) -> tuple[Action, Mapping[str, Any], tuple[Made, ...]]:
        """An action with all its files, the document of its key, and what it is made of."""
        status, runs_in = self._found.actions[asked.id], asked.runs_in
        if runs_in is None or runs_in.toolchain.name not in self._environments:
            raise BuildError(Problem("EPB414", "the toolchain is not there", StepId(asked.id)))
        needed = tuple(self._made[ident] for ident in asked.needs)
        if status.key is not None and not needed:
            return asked, status.document, needed
        # What it needs may have been made in this very build, and may have come out as another.
        return *self._surveyor.keyed(asked, needed, self._environments[runs_in.toolchain.name]), needed

    def _restore(self, needed: Iterable[Made]) -> bool:
        """Make again what the store has lost of results that something is about to be made of; says whether there was any."""
        lost = [made for made in needed if not self._surveyor.is_whole(made)]
        for made in lost:
            self._progress.report(StepOutput(made.action.steps[0], "the store has lost its result; it is made again"))
            self._make(self._plan.actions[made.action.id], again=True)
        return bool(lost)

    def _recall(self, action: Action, key: str) -> None:
        """Raises the error that the action failed with the last time, if nothing has changed since, and nobody wants it tried again."""
        failure = None if self._retry else self._known_failures.of(action.id, key)
        if failure is not None:
            self._remembered.add(action.id)
            raise failure.again()

    def _check(self, action: Action, result: Mapping[str, Any]) -> None:
        unmet = kind_of(action).unmet(action, result)
        if unmet:
            raise VerifyError(*unmet)

    @contextmanager
    def execution(self, action: Action, needed: Sequence[Made], document: Mapping[str, Any], name: str) -> Iterator[Execution]:
        """What one run of an action needs, while its files are what `document` says; the log is that of `name`."""
        inputs, kind = action.files, kind_of(action)
        environment = self._held_still(action, document)
        # A blob is what its name says, whatever its times: storing the same content once more touches it.
        own = set(inputs) - {self._store.place(digest) for made in needed for _, digest, _ in made.artifacts()}
        written = {path: _written(path) for path in own}
        log = log_file(self._workspace.directory, name, self._memory.configuration.recipe)
        log.parent.mkdir(exist_ok=True)

        def recheck() -> None:
            later = environment.now()
            digests = self._surveyor.digests.of_many(inputs)
            changes = differences(document, kind.document(action, KeyInputs(digests, kind.identity(action, later), needed)))
            # What was another for a while and is now what it was may have been read in between.
            touched = [str(path) for path in inputs if path in own and _written(path) != written[path]] + later.touched_since(
                environment
            )
            if not changes and touched:
                changes = [f"{shown_path(Path(path))} was touched, and may have been another for a while" for path in touched[:1]]
            if changes:
                message = f"an input changed while it was {kind.done}: {'; '.join(changes)}"
                raise BuildError(Problem("EPB415", message, StepId(action.id), "Nothing was kept; run the build again."))

        def compiled() -> None:
            # While this one is checked and stored, another may run; where the next process is its own, it keeps its place.
            if not kind.keeps_its_place(action) and len(self.idle) < _MOST_STORING:
                self.idle.add(action.id)

        with self._workspace.staging(name.replace("/", "-").replace(":", "-")) as staging:
            yield Execution(
                environment=environment,
                staging=staging,
                log=log,
                shown_log=shown_path(log),
                store=self._store,
                progress=self._progress,
                cancelled=self.cancelled,
                recheck=recheck,
                compiled=compiled,
                relinking=self._surveyor.digests.relinking,
            )

    def _held_still(self, action: Action, document: Mapping[str, Any]) -> Environment:
        """The action's toolchain as it is now; raises BuildError unless it is still what `document` says."""
        kind = kind_of(action)
        name = action.runs_in.toolchain.name if action.runs_in is not None else ""
        environment = self._environments[name] = self._environments[name].now()
        changes = differences({"toolchain": document["toolchain"]}, {"toolchain": kind.identity(action, environment)})
        if changes:
            message = f"the toolchain '{name}' changed before it was {kind.done}: {'; '.join(changes)}"
            raise BuildError(Problem("EPB415", message, StepId(action.id), "Nothing was kept; run the build again."))
        return environment

    def _lay_out(self, emission: Emission) -> None:
        self._progress.report(StepStarted(emission.steps[0], "laying out"))
        with self.alone(emission.id, emission.id, self._workspace.directory, lease_name(self._outputs.place(emission.path))):
            begin = time.monotonic()  # to wait for another build is no work
            there = self._outputs.last(emission.path)  # of this configuration or of another one, perhaps in another form
            output = self._output(emission)
            is_same = there is not None and there.action_key == output.key
            if there is not None and is_same and not self._surveyor.damage(emission.root, there.files):
                # Another build has done it since this one looked, or what was compiled again came out as before.
                with suppress(OSError):
                    clear_away(emission, self._surveyor.written(emission))
                self._outputs.adopt([self._emitted(emission, output.document)])
                self._stands(emission)
                return
            last = last_files(emission.path, there.files if there is not None else self._moved(emission))
            written = self._surveyor.written(emission)
            if there is not None and emission.path.is_dir() == emission.is_file and emission.path.exists():
                # No rename puts a folder in the place of a file, or a file in that of a folder.
                remove_output(there, self._outputs.base, self._surveyor.digests, ())
            output, files = self._publish(output, written)
            self._outputs.record(self._emitted(emission, output.document), files)
            written.settle()
        for problem in written.problems(emission):
            self._progress.report(Warned(problem))
        size = sum(file["size"] for file in files.values())
        for part in emission.parts:
            if part.merging is not None:
                merged = files.get(posixpath.join(part.folder, part.models[part.merging.name]))
                note = f"{len(part.merging.members)} models"
                self._ended(StepFinished(part.merging.step, "built", 0.0, note, merged["size"] if merged else 0))
        self._progress.report(compared(emission.id, shown_path(emission.path), last, files))
        note = shown_path(emission.path) + (f", pushed to {emission.push}" if emission.push is not None else "")
        self._ended(StepFinished(emission.id, "emitted", time.monotonic() - begin, note, size))

    def _emitted(self, emission: Emission, document: Mapping[str, Any]) -> StepRecord:
        """What is remembered of an emission that is in its place: where that is, and the results that it was made of."""
        made = [self._made.get(ident) or self._found.actions[ident].made for ident in emission.needs]
        results = sorted(item.key for item in made if item is not None)
        result = {PLACE: self._outputs.place(emission.path), RESULTS: results}
        return _record(emission.id, action_key(document), document, result)

    def _moved(self, emission: Emission) -> Mapping[str, Mapping[str, Any]]:
        """The files that the emission wrote to a place where the recipe wants them no longer, under the names that they have now."""
        left = next((orphan for orphan in self._found.orphans if orphan.step == emission.id), None)
        if left is None or not emission.is_file:
            return left.files if left is not None else {}
        # An archive, and what is said about it, are called as the output is.
        return {f"{emission.path.name}{name.removeprefix(left.directory.name)}": file for name, file in left.files.items()}

    def _stands(self, emission: Emission) -> None:
        """Take note that an emission is in place, with what it merged."""
        for step in emission.steps:
            self._ended(StepFinished(step, "current", 0.0))

    def _clear_away(self, current: Mapping[Path, Emission]) -> None:
        """Remove what killed builds left beside outputs that are in place, and so are not laid out again, unless a build is at it now."""
        for directory in unfinished(current):
            emission = current[directory]
            with suppress(OSError, StoreError), self._outputs.held_if_free(directory) as free:
                if free:
                    clear_away(emission, self._surveyor.written(emission))

    def _output(self, emission: Emission) -> Output:
        return self._surveyor.output(emission, [self._made[ident] for ident in emission.needs])

    def _publish(self, output: Output, written: Written) -> tuple[Output, dict[str, Any]]:
        """Write the files, where those lie that were `written` before; what the store has lost is made again, once.

        Returns the output that was published, which is another one where something was made again, and its files.
        """
        emission = output.emission

        def say(text: str) -> None:
            self._progress.report(StepOutput(emission.steps[0], text))

        def push(image: Image, reference: ImageReference, pour: Copy) -> None:
            self._push(emission.id, image, reference, pour)

        for attempt in range(1, _ATTEMPTS + 1):
            try:
                return output, output.publish(self._store, written, self._surveyor.digests, say, push)
            except (MissingBlob, DamagedBlob) as error:
                if attempt == _ATTEMPTS:
                    raise
                self._progress.report(StepOutput(emission.id, f"{error.problems[0].message} It is made again."))
                for ident in emission.needs:
                    self._make(self._plan.actions[ident], again=True)
                output = self._output(emission)
        raise AssertionError("the last attempt returns or raises")

    def _push(self, step: str, image: Image, reference: ImageReference, pour: Copy) -> None:
        from epbuild.publish.registry.client import push
        from epbuild.publish.registry.exchange import PushCancelled  # it speaks HTTP, which few builds do

        told = 0.0

        def sent(done: int, total: int) -> None:
            nonlocal told
            if time.monotonic() - told >= 1 or done == total:
                told = time.monotonic()
                self._progress.report(StepOutput(step, f"pushing to {reference.host}: {done:,} of {total:,} bytes"))

        try:
            pushed = push(image, reference, pour, sent, step=StepId(step), cancelled=self.cancelled)
        except PushCancelled as error:
            raise Cancelled(step) from error
        self._progress.report(
            StepOutput(step, f"pushed {reference} ({pushed.digest}): {pushed.sent} blobs sent, {pushed.there} there before")
        )

    @contextmanager
    def alone(self, action: str, step: str, root: Path, key: str) -> Iterator[None]:
        """Keep other builds from doing the same; while one is at it, wait, and let other actions of this build go on."""

        def wait() -> None:
            self.idle.add(action)
            self._progress.report(StepOutput(step, "another build is at it; waiting"))

        try:
            with lease(root, key, waiting=wait, cancelled=self.cancelled):
                self.idle.discard(action)
                yield
        finally:
            self.idle.discard(action)

    def _ended(self, event: StepFinished) -> None:
        with self._ending:
            self._outcomes[event.step] = event.outcome
            self._progress.report(replace(event, progress=self._tally.end(event.step, compiled=event.outcome == "built")))


def _written(path: Path) -> tuple[int, ...]:
    """What changes when somebody writes to a file, or puts another in its place; not when a link is made to it. Empty if it is gone."""
    try:
        seen = path.stat()
    except OSError:
        return ()
    return seen.st_size, seen.st_mtime_ns, seen.st_ino


def _record(step: str, key: str, document: Mapping[str, Any], result: Mapping[str, Any]) -> StepRecord:
    return StepRecord(step, key, document, result, time.time())
