"""Does the actions of one build: makes session groups, or finds that somebody has; lays artifacts out; keeps count of what came of each."""

from __future__ import annotations

import itertools
import re
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from epbuild.build.emission import Made, emission_document, emit
from epbuild.build.events import Listener, Outcome, RunFinished, StepFailed, StepFinished, StepOutput, StepStarted
from epbuild.build.executor import Execution, execute
from epbuild.build.logs import log_file
from epbuild.build.sharing import measure_alone, shared_bytes, unmeasured, with_alone
from epbuild.build.status import Survey, Surveyor
from epbuild.errors import BuildError, EpbuildError, Problem, VerifyError
from epbuild.plan import Emission, SessionGroup, action_key, differences, key_document
from epbuild.recipe import Recipe
from epbuild.store import DamagedBlob, Measurement, MissingBlob, StepRecord, lease
from epbuild.toolchain import Environment

_ATTEMPTS = 2
_BYTES_PER_SECOND = 50e6  # about what QNN's compiler gets through; it only orders the work
_COUNTED: Sequence[tuple[Outcome, ...]] = (("built", "emitted"), ("restored",), ("current",), ("failed",), ("skipped",))


class Actions:
    """The actions of one build, by id, and what has come of them so far. `perform` may be called from several threads."""

    def __init__(
        self,
        recipe: Recipe,
        found: Survey,
        environments: Mapping[str, Environment],
        surveyor: Surveyor,
        tell: Listener,
        cancelled: threading.Event,
    ) -> None:
        self.cancelled = cancelled
        self._recipe = recipe
        self._found = found
        self._plan = found.plan
        self._environments = environments
        self._surveyor = surveyor
        self._workspace = surveyor.workspace
        self._store = surveyor.store
        self._tell = tell
        self._steps: dict[str, list[str]] = {}
        for step in found.plan.steps:
            self._steps.setdefault(step.action, []).append(step.id)
        self._made: dict[str, Made] = {}
        self._outcomes: dict[str, Outcome] = {}
        self._exit_code = 0

    def take_over(self) -> None:
        """Count in what needs no work: results that are current, and results that the store already has."""
        restored = []
        for ident, status in self._found.groups.items():
            if status.made is None or ident in self._found.todo:
                continue
            self._made[ident] = status.made
            if status.state == "restorable":
                restored.append(_record(ident, status.made.key, status.document, status.made.result))
            for step in self._steps[ident]:
                self._ended(StepFinished(step, "restored" if status.state == "restorable" else "current", 0.0))
        if restored:
            self._workspace.record_steps(restored)
        for ident, status in self._found.emissions.items():
            if status.state == "current":
                self._ended(StepFinished(ident, "current", 0.0))

    def cost(self, action: str) -> float:
        """How long an action will take, in seconds: as long as last time, else by the size of its models; emitting comes cheap."""
        if action in self._plan.emissions:
            return 0.0
        measured = self._workspace.measurement(action)
        if measured is not None:
            return measured.seconds
        files = self._plan.session_groups[action].files
        return 1.0 + sum(path.stat().st_size for path in files) / _BYTES_PER_SECOND

    def perform(self, action: str) -> None:
        """Do one action. Raises EpbuildError when it fails, Cancelled when the build is being stopped."""
        emission = self._plan.emissions.get(action)
        if emission is None:
            self._make(self._plan.session_groups[action])
        else:
            self._lay_out(emission)

    def failed(self, action: str, error: EpbuildError) -> None:
        """Take note that an action failed: the step at fault is told, the others of its group count as skipped."""
        self._exit_code = max(self._exit_code, error.exit_code)
        at_fault = {problem.where for problem in error.problems}
        steps = self._steps[action]
        told = next((step for step in steps if step in at_fault), steps[-1])
        self._outcomes[told] = "failed"
        self._tell(StepFailed(told, error.problems))
        for step in steps:
            if step != told:
                self._ended(StepFinished(step, "skipped", 0.0))

    def skipped(self, action: str) -> None:
        """Take note that an action was not started."""
        for step in self._steps[action]:
            self._ended(StepFinished(step, "skipped", 0.0))

    def finished(self, seconds: float) -> RunFinished:
        """The sum of it all."""
        counts = [sum(outcome in wanted for outcome in self._outcomes.values()) for wanted in _COUNTED]
        return RunFinished(self._exit_code, seconds, *counts)

    def _make(self, group: SessionGroup) -> None:
        status = self._found.groups[group.id]
        if status.key is None:
            raise BuildError(Problem("EPB414", "the toolchain is not there", group.id))
        begin = time.monotonic()
        self._tell(StepStarted(group.steps[0], "staging"))
        with lease(self._store.root, status.key, waiting=lambda: self._wait(group.steps[0]), cancelled=self.cancelled):
            result = self._surveyor.result(status.key)
            built = result is None
            if result is None:
                with self._execution(group, status.document, group.id) as execution:
                    result = execute(group, execution)
                self._surveyor.records.put(status.key, {"document": status.document, "result": result})
            self._check(group, result)  # what fails anyway is not measured
            for member in unmeasured(group, result):
                with self._execution(group, status.document, f"{group.id}/{member.name}") as execution:
                    result = with_alone(result, member, measure_alone(group, member, execution))
                # At once, since it may have taken as long as the group itself.
                self._surveyor.records.put(status.key, {"document": status.document, "result": result})
        self._check(group, result)
        seconds = time.monotonic() - begin
        self._workspace.record_steps([_record(group.id, status.key, status.document, result)])
        if built:
            self._workspace.record_measurement(group.id, Measurement(seconds, result["measured"]["peak_memory"]))
        self._made[group.id] = Made(group, status.key, status.document, result)
        members = result["measured"]["members"] if built else {}
        for step, member in itertools.zip_longest(group.steps, group.members):
            name = member.name if member else None
            note, size = _note(group, result, name)
            took = members.get(name, seconds if step == group.steps[-1] else 0.0)
            self._ended(StepFinished(step, "built" if built else "restored", took, note, size))

    def _check(self, group: SessionGroup, result: Mapping[str, Any]) -> None:
        unmet = self._surveyor.unmet(group, result)
        if unmet:
            raise VerifyError(*unmet)

    @contextmanager
    def _execution(self, group: SessionGroup, document: Mapping[str, Any], name: str) -> Iterator[Execution]:
        """What one compile of models of the group needs, while their files are what `document` says; the log is that of `name`."""
        inputs = group.files
        log = log_file(self._workspace.directory, name)
        log.parent.mkdir(exist_ok=True)

        def recheck() -> None:
            now = key_document(group, self._surveyor.digests.of_many(inputs), document["toolchain"])
            changes = differences(document, now)
            if changes:
                message = f"an input changed while it was compiled: {'; '.join(changes)}"
                raise BuildError(Problem("EPB415", message, group.id, "Nothing was kept; run the build again."))

        with self._workspace.staging(name.replace("/", "-").replace(":", "-")) as staging:
            yield Execution(
                environment=self._environments[group.target.toolchain.name],
                staging=staging,
                log=log,
                shown_log=_shown(log),
                store=self._store,
                tell=self._tell,
                cancelled=self.cancelled,
                recheck=recheck,
                relinking=lambda: self._surveyor.digests.relinking(inputs),
            )

    def _lay_out(self, emission: Emission) -> None:
        begin = time.monotonic()
        self._tell(StepStarted(emission.id, "laying out"))
        name = re.sub(r"[^A-Za-z0-9._-]+", ".", emission.id)
        with lease(self._workspace.directory, name, waiting=lambda: self._wait(emission.id), cancelled=self.cancelled):
            before = self._workspace.step(emission.id)
            files = before.result["files"] if before else {}
            key = action_key(self._document(emission))
            if before is not None and before.action_key == key and not self._surveyor.damage(emission.directory, files):
                # Another build has done it since this one looked.
                self._ended(StepFinished(emission.id, "current", 0.0))
                return
            files = self._emit(emission, files)
            document = self._document(emission)
            self._workspace.record_steps([_record(emission.id, action_key(document), document, {"files": files})])
        size = sum(file["size"] for file in files.values())
        self._ended(StepFinished(emission.id, "emitted", time.monotonic() - begin, _shown(emission.directory), size))

    def _document(self, emission: Emission) -> dict[str, Any]:
        return emission_document(emission, [self._made[ident] for ident in emission.session_groups], self._recipe.name)

    def _emit(self, emission: Emission, before: Mapping[str, Any]) -> dict[str, Any]:
        """Write the files; what the store has lost is made again, once."""
        for attempt in range(1, _ATTEMPTS + 1):
            made = [self._made[ident] for ident in emission.session_groups]
            try:
                return emit(emission, made, self._recipe.name, self._store, before.keys(), self._surveyor.digests.of)
            except (MissingBlob, DamagedBlob) as error:
                if attempt == _ATTEMPTS:
                    raise
                self._tell(StepOutput(emission.id, f"{error.problems[0].message} It is made again."))
                for ident in emission.session_groups:
                    self._make(self._plan.session_groups[ident])
        raise AssertionError("the last attempt returns or raises")

    def _wait(self, step: str) -> None:
        self._tell(StepOutput(step, "another build is at it; waiting"))

    def _ended(self, event: StepFinished) -> None:
        self._outcomes[event.step] = event.outcome
        self._tell(event)


def _record(step: str, key: str, document: Mapping[str, Any], result: Mapping[str, Any]) -> StepRecord:
    return StepRecord(step, key, document, result, time.time())


def _note(group: SessionGroup, result: Mapping[str, Any], member: str | None) -> tuple[str, int]:
    """What a finished compile or share step is worth telling, and the bytes that it wrote: a shared binary is the share step's."""
    models = [model for model in result["models"] if member in (None, model["member"])]
    files = {model["file"] for model in models if member}
    if member is None or not group.share:
        files |= {name for model in models for name in model["binaries"]}
    size = sum(result["artifacts"][name]["size"] for name in files)
    if member is None:
        note = f"{len(models)} models"
        if group.min_shared_ratio is not None:
            found = shared_bytes(result)
            note += f", sharing saves {found.saved:,} of {found.alone:,} bytes (ratio {found.shown_ratio})"
        return note, size
    nodes, others = len(models[0]["nodes"]), models[0]["fallback_nodes"]
    return ("" if (nodes, others) == (1, 0) else f"{nodes} EPContext nodes, {others} nodes left outside the EP"), size


def _shown(path: Path) -> str:
    """A path as short as it can be told: relative to the current directory when it is below it."""
    try:
        return path.relative_to(Path.cwd()).as_posix()
    except ValueError:
        return str(path)
