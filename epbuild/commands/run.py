"""One build from start to end: plan the recipe, make what is out of date, report."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from epbuild.cache.blobs import BlobStore
from epbuild.cache.leases import Cancelled
from epbuild.cache.location import cache_directory, tag_cache, toolchain_directory
from epbuild.cache.memory import Configuration
from epbuild.cache.roots import Roots
from epbuild.cache.workspace import Workspace
from epbuild.commands.actions import Actions
from epbuild.commands.events import OutputRemoved, ToolchainReady, ToolchainStarted
from epbuild.commands.locked import HeldLock, check_lock, hold_lock, locked_wheels
from epbuild.commands.remote import RemoteModels
from epbuild.commands.removal import remove_orphan
from epbuild.core.defaults import WORKSPACE
from epbuild.core.errors import EnvironmentFailure, Problem, RecipeError, StoreError
from epbuild.engine.action import Runnable
from epbuild.engine.capacity import memory_here
from epbuild.engine.events import Progress, RunStarted, Serialised, Warned, shown_path
from epbuild.engine.loop import drive
from epbuild.engine.scheduler import Scheduler
from epbuild.plan.planner import make_plan, problems_of_the_rest
from epbuild.plan.possible import obstacles
from epbuild.plan.preparing import Preparation
from epbuild.plan.result import action_records
from epbuild.plan.steps import Plan
from epbuild.recipe.load import BrokenRecipe, load
from epbuild.recipe.model import ModelSource, Recipe
from epbuild.survey.kinds import is_stored
from epbuild.survey.orphans import Outputs
from epbuild.survey.snapshot import SnapshotInputs, clock, forget, own_files, take
from epbuild.survey.status import Survey, Surveyor
from epbuild.toolchain.environment import Environment, prepare, ready

_VALID = "valid recipe"
_PUBLISHING = frozenset({"emit", "merge"})


Fetch = Callable[[RemoteModels, ModelSource], Path]
"""Brings a remote model here."""


@dataclass(frozen=True)
class Request:
    """What a user asked for: a recipe, the steps of it (globs over ids; none: all), and how to go about it."""

    recipe: Path
    selection: tuple[str, ...] = ()
    jobs: int = field(default_factory=lambda: os.cpu_count() or 1)
    keep_going: bool = False
    settings: tuple[str, ...] = ()
    """Variables of the recipe to set, as `vars.name=value`."""
    memory: int | None = None
    """Bytes of memory for all that runs at once; None: what there is."""
    locked: bool = False
    """Whether only what the recipe's lock has may be built with."""
    rebuild_and_compare: bool = False
    """Whether to make everything again afterwards, and compare."""
    every_model: bool = False
    """Whether to report of every model how far it is compiled, and not only of those that were to do."""
    retry: bool = False
    """Whether to try again what failed before, although nothing that it depends on has changed."""


class ReadVariables(Mapping[str, str]):
    """The environment of this process, with a note of every variable that was read."""

    def __init__(self) -> None:
        self.seen: dict[str, str | None] = {}

    def __getitem__(self, name: str) -> str:
        self.seen[name] = os.environ.get(name)
        return os.environ[name]

    def __iter__(self) -> Iterator[str]:
        return iter(os.environ)

    def __len__(self) -> int:
        return len(os.environ)


def read_plan(request: Request, fetch: Fetch | None = None, environment: Mapping[str, str] | None = None) -> tuple[Recipe, Plan]:
    """The recipe and its plan; writes nothing but the memory, in a workspace that is there, that the recipe fits its schema.

    A remote model that is needed and not here goes through `fetch`; without it, its steps are planned with its files unknown. The recipe
    reads its variables in `environment` (None: this process's). Raises RecipeError, PlanError, and what `fetch` raises.
    """
    with Workspace.open(workspace_of(request.recipe), create=False) as workspace:
        remote = RemoteModels(workspace, BlobStore(cache_directory()))
        valid = f"{_VALID} {request.recipe.name!a}"
        try:
            recipe = load(
                request.recipe,
                is_known_valid=lambda digest: workspace.fact(valid) == digest,
                environment=environment,
                settings=request.settings,
            )
        except BrokenRecipe as error:
            # Together, so that one run shows all that there is to mend.
            raise RecipeError(*error.problems, *problems_of_the_rest(error.rest)) from error
        if request.locked:
            check_lock(recipe)  # before anything is fetched
        if fetch is not None:
            remote = replace(remote, wheels=locked_wheels(recipe))
        plan = make_plan(recipe, request.selection, remote.known if fetch is None else lambda model: fetch(remote, model))
        if any(part.genai is not None for emission in plan.emissions.values() for part in emission.parts):
            from epbuild.output.genai_files import check_pipelines  # few recipes have any

            check_pipelines(plan)
        if recipe.digest and workspace.fact(valid) != recipe.digest:
            workspace.record_fact(valid, recipe.digest)
    return recipe, plan


def survey(request: Request) -> Survey:
    """What is out of date, without making anything: not even a toolchain that is missing. Raises EpbuildError."""
    variables = ReadVariables()
    recipe, plan = read_plan(request, environment=variables)
    lock = hold_lock(recipe, plan, strict=request.locked)
    cache, home = cache_directory(), toolchain_directory()
    environments = {
        name: prepare(toolchain, recipe.directory, home, entries, lock.environments.get(name), packages)
        for name, (toolchain, entries, packages) in plan.toolchains().items()
        if ready(toolchain, recipe.directory, home, lock.environments.get(name))
    }
    with Workspace.open(workspace_of(request.recipe), create=False) as workspace:
        configuration = Configuration.of(recipe.file, request.settings, variables.seen)
        surveyor = Surveyor(workspace, BlobStore(cache), action_records(cache), recipe, configuration)
        doubts = (*_unreadable(workspace), *lock.warnings, *lock.deviations(plan, environments, surveyor.digests))
        found = surveyor.survey(replace(plan, warnings=(*plan.warnings, *doubts)), environments)
        return _with_orphans(found, surveyor.outputs, request)


def run(request: Request, progress: Progress, cancelled: threading.Event | None = None) -> int:
    """Build what is out of date, reporting every event to `progress`; returns the exit code.

    Raises EpbuildError when nothing could be started, KeyboardInterrupt when the user stopped it. Failed steps are events.
    """
    begin = time.monotonic()
    progress = Serialised(progress)
    stop = cancelled or threading.Event()

    def fetch(remote: RemoteModels, model: ModelSource) -> Path:
        known = remote.known(model)
        if known is not None:
            return known
        # The plan is read without making a workspace: a model that is fetched has to be remembered in one that lasts.
        with lasting_workspace(request.recipe) as workspace:
            return replace(remote, workspace=workspace).fetched(model, progress, stop)

    began, variables = clock(request.recipe), ReadVariables()
    recipe, plan = read_plan(request, fetch, variables)
    lock = hold_lock(recipe, plan, strict=request.locked)
    for warning in (*plan.warnings, *lock.warnings):
        progress.report(Warned(warning))
    impossible = obstacles([group for group in plan.session_groups.values() if not group.may_fail], sys.platform)
    if impossible and not request.keep_going:
        raise EnvironmentFailure(*impossible)  # before anything is installed
    cache = cache_directory()
    environments = _environments(recipe, plan, lock, progress)
    with lasting_workspace(request.recipe) as workspace:
        workspace.sweep()
        configuration = Configuration.of(recipe.file, request.settings, variables.seen)
        surveyor = Surveyor(workspace, BlobStore(cache), action_records(cache), recipe, configuration)
        doubts = lock.deviations(plan, environments, surveyor.digests)
        for warning in doubts:
            progress.report(Warned(warning))
        lock = replace(lock, warnings=(*lock.warnings, *doubts))
        plan = replace(plan, warnings=(*plan.warnings, *lock.warnings))
        found = _with_orphans(surveyor.survey(plan, environments), surveyor.outputs, request)
        todo = set(found.todo)
        if todo:
            forget(request.recipe)  # should this build be killed, the next one has to clean up
            # What killed builds left half-written; a build with nothing to do writes nothing, not even this.
            surveyor.store.sweep()
            surveyor.records.sweep()
        actions = Actions(found, environments, surveyor, progress, stop, retry=request.retry)
        steps = sum(step.action in todo for step in plan.steps)
        progress.report(RunStarted(recipe.name, len(plan.steps), steps, actions.expect(request.jobs), request.keep_going))
        actions.take_over()
        # Held as long as there is work, so that nobody removes the workspace meanwhile.
        with workspace.staging("run") if todo else nullcontext():
            _drive(actions, found, request)
        ended = actions.finished(time.monotonic() - begin, every_model=request.every_model)
        if todo:
            surveyor.memory.forget_superseded()
        if ended.exit_code == 0 and not request.selection:
            _remove_orphans(found, surveyor, progress, stop)
        if request.rebuild_and_compare and (ended.exit_code == 0 or request.keep_going):
            code = _rebuild_and_compare(request, actions, surveyor, progress)
            ended = replace(ended, exit_code=max(ended.exit_code, code), seconds=time.monotonic() - begin)
        progress.report(ended)
        if began is not None and found.up_to_date:
            files = _inputs(recipe, found.plan, environments.values(), surveyor.outputs, lock)
            inputs = SnapshotInputs(files, variables.seen, () if lock.exists else (lock.path,))
            _leave_snapshot(request, found.plan, inputs, began, lock)
        return ended.exit_code


def cover(request: Request, progress: Progress) -> None:
    """Compile what is asked for and not compiled yet, publish nothing, and report to `progress` how far each model is compiled.

    What fails, or stays outside an EP against the recipe's word, keeps nothing else from being tried. Raises what `run` does.
    """
    _, plan = read_plan(request)
    steps = tuple(step.id for step in plan.steps if step.kind not in _PUBLISHING)
    if steps:
        run(replace(request, selection=steps, keep_going=True, every_model=True), progress)


@contextmanager
def lasting_workspace(recipe: Path) -> Iterator[Workspace]:
    """The workspace beside a recipe, made where it is not, and known to the store as one that builds with it."""
    with Workspace.open(workspace_of(recipe)) as workspace:
        with suppress(StoreError):  # where nothing can be written, what has to write fails
            tag_cache(cache_directory())
            Roots(cache_directory()).register(workspace.directory)
        yield workspace


def workspace_of(recipe: Path) -> Path:
    """The folder beside a recipe in which epbuild keeps what it remembers."""
    return recipe.absolute().parent / WORKSPACE


def _leave_snapshot(request: Request, plan: Plan, inputs: SnapshotInputs, began: tuple[int, int], lock: HeldLock) -> None:
    """Have the next run recognise by stats alone that there is nothing to do; not where a result lives in the store only."""
    needed = {ident for action in plan.actions.values() for ident in action.needs}
    if any(is_stored(action) and ident not in needed for ident, action in plan.actions.items()):
        return
    take(
        request.recipe,
        (request.selection, request.settings),
        inputs,
        steps=len(plan.steps),
        began=began,
        locked=lock.exists and not lock.warnings,
        warnings=[warning.plain for warning in plan.warnings],
    )


def _inputs(recipe: Recipe, plan: Plan, environments: Iterable[Environment], outputs: Outputs, lock: HeldLock) -> Iterator[Path]:
    """All files and folders that a build with nothing to do came from."""
    yield from map(Path, own_files())
    yield from recipe.names
    yield from (lock.path,) if lock.exists else ()
    yield from (recipe.directory / catalog.name for catalog in recipe.catalogs)
    yield from (path for environment in environments for path in environment.watched())
    yield from (path for action in plan.actions.values() for path in action.files)
    yield from (folder for preparation in plan.of(Preparation).values() for folder in preparation.folders)
    for emission in plan.emissions.values():
        output = outputs.last(emission.path)
        yield from (emission.root / name for name in output.files) if output is not None else ()


def _rebuild_and_compare(request: Request, actions: Actions, surveyor: Surveyor, progress: Progress) -> int:
    """What is made again, and compared, comes to: an exit code."""
    from epbuild.commands.rebuild import rebuild_and_compare

    forget(request.recipe)  # should it be killed, the next build has to clean up
    memory = request.memory or memory_here()
    with surveyor.workspace.staging("run"):
        return rebuild_and_compare(
            actions, surveyor.workspace, surveyor.store, progress, jobs=request.jobs, keep_going=request.keep_going, memory=memory
        )


def _drive(actions: Actions, found: Survey, request: Request) -> None:
    todo = [Runnable(ident, found.plan.actions[ident].needs, actions.cost(ident), actions.memory(ident)) for ident in found.todo]
    scheduler = Scheduler(todo, request.memory or memory_here())
    drive(
        scheduler,
        actions,
        jobs=request.jobs,
        keep_going=request.keep_going,
        cancelled=actions.cancelled,
        idle=actions.idle,
    )


def _with_orphans(found: Survey, outputs: Outputs, request: Request) -> Survey:
    """`found` with the outputs that nobody asks for any more; from some steps alone it is not known what the whole recipe asks for."""
    if request.selection:
        return found
    return replace(found, orphans=outputs.orphans(emission.path for emission in found.plan.emissions.values()))


def _remove_orphans(found: Survey, surveyor: Surveyor, progress: Progress, cancelled: threading.Event) -> None:
    outputs = surveyor.outputs
    for left in outputs.release(emission.path for emission in found.plan.emissions.values()):
        place = shown_path(surveyor.workspace.base / left.place)
        message = f"the recipe no longer asks for {place}; it stays, as {outputs.writer(left)} has it too"
        progress.report(
            Warned(Problem("EPB514", message, None, "A build of that removes it, if it is not asked for there either."))
        )
    claimed = outputs.claimed(orphan.directory for orphan in found.orphans) if found.orphans else ()
    for orphan in found.orphans:
        try:
            gone = remove_orphan(outputs, orphan, surveyor.digests, claimed, cancelled)
        except Cancelled as error:
            raise KeyboardInterrupt from error
        if gone is not None:
            changed, foreign = (tuple(map(shown_path, gone.kept_as(why))) for why in ("changed since", "not made by epbuild"))
            progress.report(
                OutputRemoved(orphan.step, shown_path(orphan.directory), len(gone.removed), changed, foreign, gone.size)
            )


def _unreadable(workspace: Workspace) -> Iterator[Problem]:
    """That this user may not know what was built here, where it is so."""
    if workspace.unreadable:
        message = f"what was built here is not known: this user may not read {shown_path(workspace.state)}"
        yield Problem("EPB513", message, None, "Do this as the user whose workspace it is, or get permission to read it.")


def _environments(recipe: Recipe, plan: Plan, lock: HeldLock, progress: Progress) -> dict[str, Environment]:
    home = toolchain_directory()
    environments = {}
    for name, (toolchain, entries, packages) in plan.toolchains().items():
        begin = time.monotonic()
        locked = lock.environments.get(name)
        there = ready(toolchain, recipe.directory, home, locked)
        if not there:
            tag_cache(cache_directory())
            progress.report(ToolchainStarted(name, f"making an environment with {', '.join(toolchain.packages)}"))
        environment = prepare(toolchain, recipe.directory, home, entries, locked, packages)
        if not there:
            progress.report(ToolchainReady(name, environment.onnxruntime, time.monotonic() - begin))
        environments[name] = environment
    return environments
