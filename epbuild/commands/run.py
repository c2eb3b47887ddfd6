"""One build from start to end: plan the recipe, make what is out of date, report."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path

from epbuild.cache.blobs import BlobStore
from epbuild.cache.leases import Cancelled
from epbuild.cache.location import cache_directory, tag_cache, toolchain_directory
from epbuild.cache.memory import Configuration
from epbuild.cache.roots import Roots
from epbuild.cache.workspace import Workspace
from epbuild.commands.actions import Actions
from epbuild.commands.events import OutputRemoved, ToolchainReady, ToolchainStarted
from epbuild.commands.locked import HeldLock, hold_lock
from epbuild.commands.plan import ReadVariables, Request, read_plan, with_orphans, workspace_of
from epbuild.commands.remote import RemoteModels
from epbuild.commands.removal import remove_orphan
from epbuild.core.errors import EnvironmentFailure, Problem, StoreError
from epbuild.engine.action import Runnable
from epbuild.engine.capacity import memory_here
from epbuild.engine.events import Progress, RunStarted, Serialised, Warned, shown_path
from epbuild.engine.loop import drive
from epbuild.engine.scheduler import Scheduler
from epbuild.plan.possible import obstacles
from epbuild.plan.preparing import Preparation
from epbuild.plan.result import action_records
from epbuild.plan.steps import Plan
from epbuild.recipe.model import ModelSpec, Recipe
from epbuild.survey.kinds import is_stored
from epbuild.survey.orphans import Outputs
from epbuild.survey.snapshot import SnapshotInputs, clock, forget, own_files, take
from epbuild.survey.status import Survey, Surveyor
from epbuild.toolchain.environment import Environment, prepare, ready

_PUBLISHING = frozenset({"emit", "merge"})


def run(request: Request, progress: Progress, cancelled: threading.Event | None = None) -> int:
    """Build what is out of date, reporting every event to `progress`; returns the exit code.

    Raises EpbuildError when nothing could be started, KeyboardInterrupt when the user stopped it. Failed steps are events.
    """
    begin = time.monotonic()
    progress = Serialised(progress)
    stop = cancelled or threading.Event()

    def fetch(remote: RemoteModels, model: ModelSpec) -> Path:
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
        found = with_orphans(surveyor.survey(plan, environments), surveyor.outputs, request)
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
