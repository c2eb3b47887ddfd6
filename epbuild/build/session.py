"""One build from start to end: read the recipe, plan it, see what is out of date, make that, and say what came of it."""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from epbuild.build.emission import Made, emission_document, emit
from epbuild.build.events import (
    Event,
    Listener,
    RunFinished,
    RunStarted,
    StepFailed,
    StepFinished,
    StepOutput,
    StepStarted,
    ToolchainReady,
    ToolchainStarted,
    Warned,
)
from epbuild.build.executor import Execution, execute
from epbuild.build.logs import log_file
from epbuild.build.scheduler import Scheduler, drive
from epbuild.build.status import ActionStatus, Survey, Surveyor
from epbuild.errors import BuildError, EpbuildError, Problem
from epbuild.plan import Emission, Plan, SessionGroup, action_key, differences, key_document, make_plan
from epbuild.recipe import Recipe, load, validation_digest
from epbuild.store import (
    ActionRecords,
    BlobStore,
    DamagedBlob,
    Measurement,
    MissingBlob,
    StepRecord,
    Workspace,
    cache_directory,
    lease,
)
from epbuild.toolchain import Environment, prepare, ready

WORKSPACE = ".epbuild"
_VALID = "valid recipe"


@dataclass(frozen=True)
class Request:
    """What a user asked for: a recipe, the steps of it (globs over ids; none: all), and how to go about it."""

    recipe: Path
    selection: tuple[str, ...] = ()
    jobs: int = field(default_factory=lambda: os.cpu_count() or 1)
    keep_going: bool = False


def read_plan(request: Request) -> tuple[Recipe, Plan]:
    """The recipe and its plan; writes nothing but the memory, in a workspace that is there, that the recipe fits its schema.

    Raises RecipeError and PlanError.
    """
    with Workspace.open(workspace_of(request.recipe), create=False) as workspace:
        recipe = load(request.recipe, is_known_valid=lambda digest: workspace.fact(_VALID) == digest)
        plan = make_plan(recipe, request.selection)
        digest = validation_digest(request.recipe.read_bytes())
        if workspace.fact(_VALID) != digest:
            workspace.record_fact(_VALID, digest)
    return recipe, plan


def survey(request: Request) -> Survey:
    """What is out of date, without making anything: not even a toolchain that is missing. Raises EpbuildError."""
    recipe, plan = read_plan(request)
    cache = cache_directory()
    environments = {
        name: prepare(toolchain, recipe.directory, cache, modules, lambda text: None)
        for name, (toolchain, modules) in plan.toolchains().items()
        if ready(toolchain, recipe.directory, cache)
    }
    with Workspace.open(workspace_of(request.recipe), create=False) as workspace:
        return Surveyor(workspace, BlobStore(cache), ActionRecords(cache), recipe.name).survey(plan, environments)


def run(request: Request, listener: Listener, cancelled: threading.Event | None = None) -> int:
    """Build what is out of date, telling `listener` of every event; returns the exit code.

    Raises EpbuildError when nothing could be started, KeyboardInterrupt when the user stopped it. Failed steps are told as events.
    """
    begin = time.monotonic()
    recipe, plan = read_plan(request)
    tell = _serialised(listener)
    for warning in plan.warnings:
        tell(Warned(warning))
    cache = cache_directory()
    environments = _environments(recipe, plan, cache, tell)
    with Workspace.open(workspace_of(request.recipe)) as workspace:
        workspace.sweep()
        build = _Build(recipe, plan, environments, workspace, cache, tell, cancelled or threading.Event())
        return build.run(request, begin)


def workspace_of(recipe: Path) -> Path:
    """The folder beside a recipe in which epbuild keeps what it remembers."""
    return recipe.absolute().parent / WORKSPACE


def _environments(recipe: Recipe, plan: Plan, cache: Path, tell: Listener) -> dict[str, Environment]:
    environments = {}
    for name, (toolchain, modules) in plan.toolchains().items():
        begin = time.monotonic()
        there = ready(toolchain, recipe.directory, cache)
        if not there:
            tell(ToolchainStarted(name, f"making an environment with {', '.join(toolchain.packages)}"))
        environment = prepare(toolchain, recipe.directory, cache, modules, lambda text: None)
        if not there:
            packages = environment.fingerprint.distributions
            version = next((packages[package] for package in sorted(packages) if package.startswith("onnxruntime")), "?")
            tell(ToolchainReady(name, version, time.monotonic() - begin))
        environments[name] = environment
    return environments


def _serialised(listener: Listener) -> Listener:
    """`listener`, which then hears one event at a time, whatever thread they come from."""
    lock = threading.Lock()

    def tell(event: Event) -> None:
        with lock:
            listener(event)

    return tell


class _Build:
    """The state of one run: what has been made so far, and the counts of the summary."""

    def __init__(
        self,
        recipe: Recipe,
        plan: Plan,
        environments: Mapping[str, Environment],
        workspace: Workspace,
        cache: Path,
        tell: Listener,
        cancelled: threading.Event,
    ) -> None:
        self._recipe = recipe
        self._plan = plan
        self._environments = environments
        self._workspace = workspace
        self._cache = cache
        self._tell = tell
        self._cancelled = cancelled
        self._store = BlobStore(cache)
        self._records = ActionRecords(cache)
        self._surveyor = Surveyor(workspace, self._store, self._records, recipe.name)
        self._steps: dict[str, list[str]] = {}
        for step in plan.steps:
            self._steps.setdefault(step.action, []).append(step.id)
        self._made: dict[str, Made] = {}
        self._outcomes: dict[str, str] = {}
        self._exit_code = 0

    def run(self, request: Request, begin: float) -> int:
        found = self._surveyor.survey(self._plan, self._environments)
        self._found = found
        todo = sum(len(self._steps[action]) for action in found.todo)
        self._tell(RunStarted(self._recipe.name, len(self._plan.steps), todo))
        self._take_over(found)
        emissions = self._plan.emissions
        scheduler = Scheduler(
            {action: emissions[action].session_groups if action in emissions else () for action in found.todo},
            {action: self._cost(action) for action in found.todo},
        )
        drive(
            scheduler,
            self._perform,
            jobs=request.jobs,
            keep_going=request.keep_going,
            cancelled=self._cancelled,
            failed=self._failed,
            skipped=self._skipped,
        )
        counts = [sum(outcome in wanted for outcome in self._outcomes.values()) for wanted in _COUNTED]
        self._tell(RunFinished(self._exit_code, time.monotonic() - begin, *counts))
        return self._exit_code

    def _take_over(self, found: Survey) -> None:
        """Count in what needs no work: results that are current, and results that the store already has."""
        restored = []
        for ident, status in found.groups.items():
            if status.made is None or ident in found.todo:
                continue
            self._made[ident] = status.made
            outcome = "restored" if status.state == "restorable" else "current"
            if outcome == "restored":
                restored.append(self._record(ident, status.made.key, status.document, status.made.result))
            for step in self._steps[ident]:
                self._ended(StepFinished(step, "restored" if outcome == "restored" else "current", 0.0))
        if restored:
            self._workspace.record_steps(restored)
        for ident, status in found.emissions.items():
            if status.state == "current":
                self._ended(StepFinished(ident, "current", 0.0))

    def _cost(self, action: str) -> float:
        """How long an action will take, in seconds: as long as last time, else by the size of its models; emitting comes cheap."""
        if action in self._plan.emissions:
            return 0.0
        measured = self._workspace.measurement(action)
        if measured is not None:
            return measured.seconds
        files = {path for member in self._plan.session_groups[action].members for path in member.files}
        return 1.0 + sum(path.stat().st_size for path in files) / _BYTES_PER_SECOND

    def _perform(self, action: str) -> None:
        emission = self._plan.emissions.get(action)
        if emission is None:
            self._make(self._plan.session_groups[action])
        else:
            self._emit(emission)

    def _make(self, group: SessionGroup) -> None:
        status = self._found.groups[group.id]
        if status.key is None:
            raise BuildError(Problem("EPB414", "the toolchain is not there", group.id))
        begin = time.monotonic()
        for step in group.steps:
            self._tell(StepStarted(step, "waiting for its turn" if step != group.steps[0] else "staging"))
        with self._lease(status.key, group.steps[0]):
            result = self._surveyor.result(status.key)
            built = result is None
            if result is None:
                result = self._execute(group, status)
                self._records.put(status.key, {"document": status.document, "result": result})
        seconds = time.monotonic() - begin
        self._workspace.record_steps([self._record(group.id, status.key, status.document, result)])
        if built:
            self._workspace.record_measurement(group.id, Measurement(seconds, result["measured"]["peak_memory"]))
        self._made[group.id] = Made(group, status.key, status.document, result)
        members = result["measured"]["members"] if built else {}
        for step, member in itertools.zip_longest(group.steps, group.members):
            name = member.name if member else None
            note, size = _note(result, name)
            self._ended(StepFinished(step, "built" if built else "restored", members.get(name, seconds), note, size))

    def _execute(self, group: SessionGroup, status: ActionStatus) -> dict[str, Any]:
        inputs = {path for member in group.members for path in member.files}
        log = log_file(self._workspace.directory, group.id)
        log.parent.mkdir(exist_ok=True)

        def recheck() -> None:
            now = key_document(group, self._surveyor.digests.of_many(inputs), status.document["toolchain"])
            changes = differences(status.document, now)
            if changes:
                message = f"an input changed while it was compiled: {'; '.join(changes)}"
                raise BuildError(Problem("EPB415", message, group.id, "Nothing was kept; run the build again."))

        with self._workspace.staging(group.id.replace("/", "-").replace(":", "-")) as staging:
            execution = Execution(
                environment=self._environments[group.target.toolchain.name],
                staging=staging,
                log=log,
                shown_log=_shown(log),
                store=self._store,
                tell=self._tell,
                cancelled=self._cancelled,
                recheck=recheck,
            )
            return execute(group, execution)

    def _emit(self, emission: Emission) -> None:
        begin = time.monotonic()
        self._tell(StepStarted(emission.id, "laying out"))
        before = self._workspace.step(emission.id)
        for attempt in range(_ATTEMPTS):
            made = [self._made[ident] for ident in emission.session_groups]
            document = emission_document(emission, made, self._recipe.name)
            try:
                result = emit(
                    emission, made, self._recipe.name, self._store, before.result if before else {}, self._surveyor.digests.of
                )
                break
            except (MissingBlob, DamagedBlob) as error:
                if attempt == _ATTEMPTS - 1:
                    raise
                self._tell(StepOutput(emission.id, f"{error.problems[0].message} Making it again."))
                for ident in emission.session_groups:
                    self._make(self._plan.session_groups[ident])
        self._workspace.record_steps([self._record(emission.id, action_key(document), document, result)])
        size = sum(file["size"] for file in result["files"].values())
        folder = emission.directory.relative_to(self._recipe.directory).as_posix()
        self._ended(StepFinished(emission.id, "emitted", time.monotonic() - begin, folder, size))

    @contextmanager
    def _lease(self, key: str, step: str) -> Iterator[None]:
        def waiting() -> None:
            self._tell(StepOutput(step, "another build is making this; waiting for it"))

        with lease(self._cache, key, waiting=waiting, cancelled=self._cancelled):
            yield

    def _failed(self, action: str, error: EpbuildError) -> None:
        self._exit_code = max(self._exit_code, error.exit_code)
        at_fault = {problem.where for problem in error.problems}
        steps = self._steps[action]
        told = next((step for step in steps if step in at_fault), steps[-1])
        for step in steps:
            if step != told:
                self._skipped_step(step)
        self._outcomes[told] = "failed"
        self._tell(StepFailed(told, error.problems, 0.0))

    def _skipped(self, action: str) -> None:
        for step in self._steps[action]:
            self._skipped_step(step)

    def _skipped_step(self, step: str) -> None:
        self._ended(StepFinished(step, "skipped", 0.0))

    def _ended(self, event: StepFinished) -> None:
        self._outcomes[event.step] = event.outcome
        self._tell(event)

    @staticmethod
    def _record(step: str, key: str, document: Mapping[str, Any], result: Mapping[str, Any]) -> StepRecord:
        return StepRecord(step, key, document, result, time.time())


_ATTEMPTS = 2
_BYTES_PER_SECOND = 50e6  # about what QNN's compiler gets through; it only orders the work
_COUNTED: Sequence[tuple[str, ...]] = (("built", "emitted"), ("restored",), ("current",), ("failed",), ("skipped",))


def _note(result: Mapping[str, Any], member: str | None) -> tuple[str, int]:
    """What a finished compile or share step is worth telling, and the bytes that it wrote."""
    models = [model for model in result["models"] if member in (None, model["member"])]
    names = {name for model in models for name in model["binaries"]} | {model["file"] for model in models if member}
    size = sum(result["artifacts"][name]["size"] for name in names)
    if member is None:
        return f"{len(models)} models share one context binary", size
    nodes, others = len(models[0]["nodes"]), models[0]["fallback_nodes"]
    told = f"{nodes} EPContext node{'s' if nodes != 1 else ''}"
    return (f"{told}, {others} left outside the EP" if others else told), size


def _shown(path: Path) -> str:
    """A path as short as it can be told: relative to the current directory when it is below it."""
    try:
        return path.relative_to(Path.cwd()).as_posix()
    except ValueError:
        return str(path)
