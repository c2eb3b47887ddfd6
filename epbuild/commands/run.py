"""One build from start to end: plan the recipe, make what is out of date, report."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from epbuild.cache.blobs import BlobStore
from epbuild.cache.leases import Cancelled
from epbuild.cache.location import cache_directory, tag_cache
from epbuild.cache.roots import Roots
from epbuild.cache.state import Configuration
from epbuild.cache.workspace import Workspace
from epbuild.commands.plan import read_last, recorded_survey, with_orphans
from epbuild.commands.reporting.recording import Recording, recorded
from epbuild.core.entries import HiddenFolders
from epbuild.core.errors import EnvironmentFailure, PlanError, Problem, StoreError
from epbuild.core.shown import shown_path
from epbuild.engine.action import Runnable
from epbuild.engine.capacity import memory_here
from epbuild.engine.events import Progress, RunStarted, Serialised, Warned
from epbuild.engine.ledger import Ledger
from epbuild.engine.loop import drive
from epbuild.engine.scheduler import Scheduler
from epbuild.plan.possible import obstacles
from epbuild.plan.preparing import Preparation
from epbuild.plan.result import action_records
from epbuild.plan.steps import Emission, Plan, SessionGroup
from epbuild.recipe.model import ModelSpec, Recipe
from epbuild.session.build import Actions
from epbuild.session.emitting import remove_orphan
from epbuild.session.events import HashingEvents, OutputRemoved
from epbuild.session.lock import HeldLock, hold_lock
from epbuild.session.making import Making
from epbuild.session.planning import ModelFetcher, ReadVariables, RemoteModels, read_plan, remote_of, workspace_of
from epbuild.session.provisioning import ONLINE, Circumstances, Provisioning
from epbuild.session.request import Request
from epbuild.session.shared_results import SharedResults
from epbuild.session.toolchains import PlanToolchains, ToolchainSources
from epbuild.survey.kinds import is_stored
from epbuild.survey.snapshot import Snapshot, clock, forget, own_files
from epbuild.survey.status import Survey, Surveyor
from epbuild.survey.taking import Observations, take
from epbuild.toolchain.identity import toolchain_records

if TYPE_CHECKING:
    from epbuild.cluster.address import ClusterAddress
    from epbuild.session.remote_build import Elsewhere
    from epbuild.survey.snapshot import Moment

_SETTLED = frozenset({"built", "emitted", "restored", "current"})
"""How the last step of an action has ended that need not be looked at before something changes."""


class _NeededModels(Struct, frozen=True):
    """Fetches what a build needs and is not here."""

    request: Request
    progress: Progress
    cancelled: threading.Event
    fetcher: ModelFetcher | None

    def fetch(self, remote: RemoteModels, model: ModelSpec) -> Path:
        known = remote.known(model)
        if known is not None:
            return known
        if _is_offline(self.request):
            raise PlanError(Problem("EPB525", f"the model '{model.name}' is not here yet", model.path_where, ONLINE))
        # The plan is read without making a workspace: a model that is fetched has to be remembered in one that lasts.
        with lasting_workspace(self.request.recipe) as workspace:
            lasting = replace(remote, workspace=workspace, fetcher=self.fetcher)
            return lasting.fetched(model, self.progress, self.cancelled)


def run(
    request: Request, progress: Progress, cancelled: threading.Event | None = None, fetcher: ModelFetcher | None = None
) -> int:
    """Build what is out of date, reporting every event to `progress`; returns the exit code. `fetcher`: that of remote models.

    Raises EpbuildError when nothing could be started, KeyboardInterrupt when the user stopped it. Failed steps are events.
    """
    begin = time.monotonic()
    with recorded(request, progress) as recording:
        last = read_last(request, refresh=True)
        if last is not None:
            code = _report_unchanged(request, recording, last, begin)
        else:
            code = _build(request, recording, cancelled or threading.Event(), fetcher)
        recording.end(code)
    return code


def _report_unchanged(request: Request, progress: Progress, last: Snapshot, begin: float) -> int:
    """Report a run that has nothing to do, since nothing has changed; returns the exit code."""
    found = recorded_survey(last)
    for warning in found.plan.warnings:
        progress.report(Warned(warning))
    steps = [status.step.id for status in found.steps()]
    progress.report(RunStarted(last.name, len(steps), 0, keep_going=request.keep_going))
    ledger = Ledger({}, progress)
    ledger.end_current(steps)
    progress.report(ledger.finished(time.monotonic() - begin))
    return 0


def _build(request: Request, recording: Recording, stop: threading.Event, fetcher: ModelFetcher | None) -> int:
    """What `run` does, with what is recorded of it."""
    begin = time.monotonic()
    progress: Progress = Serialised(recording)
    began, variables = clock(str(request.recipe)), ReadVariables()
    recipe, plan = read_plan(request, _NeededModels(request, progress, stop, fetcher), variables)
    lock = hold_lock(recipe, plan, strict=request.locked)
    for warning in (*plan.warnings, *lock.warnings):
        progress.report(Warned(warning))
    cache = cache_directory()
    store = BlobStore(cache)
    shared = SharedResults(store, progress, stop)
    with shared.opened(remote_of(request, recipe), reads=not request.rebuild_and_compare), ExitStack() as open_workspace:
        sources = ToolchainSources(request.toolchains, toolchain_records(cache), shared.results)
        under = Circumstances(lock, _is_offline(request), shared.results is not None)
        with _interruptible():
            known = PlanToolchains(plan, recipe.directory, lock, sources)
            here = dict(known.environments)
            provisioning = open_workspace.enter_context(Provisioning(known, under, shared, progress, stop))
            if request.cluster is not None and request.compiles:
                _identify(request.cluster, known, plan, shared, progress)
            _refuse_obstacles(request, (group for group in plan.session_groups.values() if known.of(group) is None))
            provisioning.make_unknown(plan.actions.values())  # else nothing is installed before it is known what to do
        workspace = open_workspace.enter_context(lasting_workspace(request.recipe))
        for warning in workspace.problems():
            progress.report(Warned(warning))
        workspace.sweep()
        configuration = Configuration.of(recipe.file, request.settings, variables.seen)
        counting = HashingEvents(progress).counting
        surveyor = Surveyor(workspace, store, action_records(cache), recipe, configuration, shared.results, counting)
        doubts = lock.deviations(plan, here, surveyor.digests)
        for warning in doubts:
            progress.report(Warned(warning))
        if not doubts:
            provisioning.record()
        lock = replace(lock, warnings=(*lock.warnings, *doubts))
        plan = replace(plan, warnings=(*plan.warnings, *lock.warnings))
        with _interruptible():
            found = with_orphans(surveyor.survey(plan, known), surveyor.outputs, request)
        recording.expect(found, workspace)
        todo = set(found.todo)
        must_run = [found.plan.actions[ident] for ident in found.todo if not found.actions[ident].remote]
        _refuse_obstacles(request, (action for action in must_run if isinstance(action, SessionGroup)))
        if todo:
            forget(str(request.recipe))  # should this build be killed, the next one has to clean up
            # What killed builds left half-written; a build with nothing to do writes nothing, not even this.
            surveyor.store.sweep()
            surveyor.records.sweep()
        others = _elsewhere(request, shared, surveyor, progress, known) if todo else nullcontext()
        machines = open_workspace.enter_context(others)
        making = Making(request.compiles, request.retry, machines)
        actions = Actions(found, provisioning, surveyor, progress, stop, making=making, shared=shared)
        steps = sum(step.action in todo for step in plan.steps)
        progress.report(RunStarted(recipe.name, len(plan.steps), steps, actions.expect(request.jobs), request.keep_going))
        actions.take_over()
        if request.writes:
            shared.offer([made.key for made in surveyor.stored(found).values()], surveyor.records)
        # Held as long as there is work, so that nobody removes the workspace meanwhile.
        with workspace.staging("run") if todo else nullcontext():
            _drive(actions, found, request)
        shared.finish(sum(map(is_stored, plan.actions.values())))
        ended = actions.finished(time.monotonic() - begin, every_model=request.every_model)
        if todo:
            surveyor.memory.forget_superseded()
        if ended.exit_code == 0 and request.is_whole:
            _remove_orphans(found, surveyor, progress, stop)
        if request.rebuild_and_compare and (ended.exit_code == 0 or request.keep_going):
            code = _rebuild_and_compare(request, actions, surveyor, progress)
            ended = replace(ended, exit_code=max(ended.exit_code, code), seconds=time.monotonic() - begin)
        progress.report(ended)
        began = began or _clock_at(begin, request.recipe)
        # Toolchains with warnings are looked at again by every run.
        is_complete = request.emits_all and request.shard is None and not provisioning.warnings
        if is_complete and began is not None and (ended.exit_code == 0 or not found.orphans):
            ends = _ended(found, actions, surveyor)
            observations = Observations(
                recipe=recipe,
                began=began,
                variables=variables.seen,
                lock="none" if not lock.exists else "doubted" if lock.warnings else "held",
                warnings=found.plan.warnings,
                files={**_shared(recipe, known, lock), **_files(found.plan, surveyor)},
                absent=(*known.absent(), *(() if lock.exists else (lock.path,))),
                steps=[status._replace(key=ends[status.step.action].key) for status in found.steps()],
                is_current=all(end.is_current for end in ends.values()),
                drivers=known.drivers(),
            )
            take(observations, request.settings, request.selection)
        return ended.exit_code


def cover(request: Request, progress: Progress) -> None:
    """Compile what is asked for and not compiled yet, publish nothing, and report to `progress` how far each model is compiled.

    What fails, or stays outside an EP against the recipe's word, keeps nothing else from being tried. Raises what `run` does.
    """
    request = replace(request, emits=False, keep_going=True, every_model=True)
    # The recording is not kept: `report` is about the last build.
    _build(request, Recording(request, progress), threading.Event(), None)


@contextmanager
def lasting_workspace(recipe: Path) -> Iterator[Workspace]:
    """The workspace beside a recipe, made where it is not, and known to the store as one that builds with it."""
    with Workspace.open(workspace_of(recipe)) as workspace:
        with suppress(StoreError):  # where nothing can be written, what has to write fails
            tag_cache(cache_directory())
            Roots(cache_directory()).register(workspace.directory)
        yield workspace


@contextmanager
def _interruptible() -> Iterator[None]:
    """Raises KeyboardInterrupt for what was cancelled."""
    try:
        yield
    except Cancelled as error:
        raise KeyboardInterrupt from error


def _clock_at(begin: float, recipe: Path) -> Moment | None:
    """What the clock of a workspace would have given at the moment `begin` of this process's, when there was no workspace yet."""
    now = clock(str(recipe))
    return (now[0] - int((time.monotonic() - begin) * 1e9), now[1]) if now is not None else None


class _End(NamedTuple):
    """Key of an action at the end of a run, and whether the action is current until a file changes."""

    key: str | None
    is_current: bool


def _ended(found: Survey, actions: Actions, surveyor: Surveyor) -> dict[str, _End]:
    """Return how each action of the plan ended."""
    needed = {need for action in found.plan.actions.values() for need in action.needs}
    recorded = surveyor.memory.keys(found.plan.emissions)
    ends = {}
    for ident, action in found.plan.actions.items():
        made, key = actions.made.get(ident), found.actions[ident].key
        if isinstance(action, Emission):
            output = surveyor.outputs.last(action.path)
            key = output.action_key if output is not None else key
            # Another recipe's build may have published something else there in the meantime.
            lasts = output is not None and key == recorded.get(ident)
        else:
            lasts = ident in needed  # a result that nothing is made of lies in the store only, where it is looked up each time
        ends[ident] = _End(made.key if made is not None else key, lasts and actions.outcomes.get(ident) in _SETTLED)
    return ends


def _files(plan: Plan, surveyor: Surveyor) -> dict[str | Path, str]:
    """Return the files that the actions of a plan read and write, and the folders, with their SHA-256 where it is known."""
    files: dict[str | Path, str] = {}
    for action in plan.actions.values():
        files |= {path: surveyor.digests.seen.get(path, "") for path in action.files}
        if isinstance(action, Emission) and (output := surveyor.outputs.last(action.path)) is not None:
            root = os.path.join(action.root, "")  # noqa: PTH118 - each of tens of thousands of files, once
            files |= {f"{root}{name.replace('/', os.sep)}": str(file["digest"]) for name, file in output.files.items()}
        if isinstance(action, Preparation):
            files |= dict.fromkeys(action.folders, "")
    return files


def _shared(recipe: Recipe, known: PlanToolchains, lock: HeldLock) -> dict[str | Path, str]:
    """Return the files and folders that concern every action, with their SHA-256 where it is known."""
    files = [*map(Path, own_files()), *((lock.path,) if lock.exists else ())]
    files += (recipe.directory / catalog.name for catalog in recipe.catalogs)
    return {**dict.fromkeys(files, ""), **known.watched(), **dict.fromkeys(recipe.names, ""), **recipe.digests}


def _rebuild_and_compare(request: Request, actions: Actions, surveyor: Surveyor, progress: Progress) -> int:
    """What is made again, and compared, comes to: an exit code."""
    from epbuild.session.rebuild import rebuild_and_compare

    forget(str(request.recipe))  # should it be killed, the next build has to clean up
    memory = request.memory or memory_here()
    with surveyor.workspace.staging("run"):
        return rebuild_and_compare(
            actions, surveyor.workspace, surveyor.store, progress, jobs=request.jobs, keep_going=request.keep_going, memory=memory
        )


def _drive(actions: Actions, found: Survey, request: Request) -> None:
    if not request.compiles and not request.keep_going and found.unmade:
        actions.give_up(found.unmade)
        return
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
    hidden = HiddenFolders()
    claimed = outputs.claimed(orphan.directory for orphan in found.orphans) if found.orphans else ()
    for orphan in found.orphans:
        try:
            gone = remove_orphan(outputs, orphan, surveyor.digests, claimed, cancelled, hidden)
        except Cancelled as error:
            raise KeyboardInterrupt from error
        if gone is not None:
            changed, foreign = (tuple(map(shown_path, gone.kept_as(why))) for why in ("changed since", "not made by epbuild"))
            progress.report(
                OutputRemoved(orphan.step, shown_path(orphan.directory), len(gone.removed), changed, foreign, gone.size)
            )


def _is_offline(request: Request) -> bool:
    return request.remote is not None and request.remote.offline


def _refuse_obstacles(request: Request, groups: Iterable[SessionGroup]) -> None:
    """Raises EnvironmentFailure where some of these groups, which have to be compiled, cannot be on this machine."""
    impossible = obstacles([group for group in groups if not group.may_fail], sys.platform)
    if impossible and not request.keep_going and request.cluster is None:
        raise EnvironmentFailure(*impossible)


def _identify(address: ClusterAddress, known: PlanToolchains, plan: Plan, shared: SharedResults, progress: Progress) -> None:
    """Have other machines publish what toolchains are of which nothing is known here."""
    unknown = known.unidentified(plan.actions.values())
    if unknown and shared.results is not None:
        from epbuild.cluster.dask_client import DaskExecutor
        from epbuild.session.remote_build import IdentityRequests

        executor = DaskExecutor(address, shared.cancelled)
        try:
            IdentityRequests(executor, known, progress).bring(unknown)
        finally:
            executor.close()


@contextmanager
def _elsewhere(
    request: Request, shared: SharedResults, surveyor: Surveyor, progress: Progress, toolchains: PlanToolchains
) -> Iterator[Elsewhere | None]:
    """The other machines that a build has, if it has any."""
    if request.cluster is None:
        yield None
        return
    from epbuild.session.remote_build import open_cluster

    with open_cluster(request.cluster, shared, surveyor, progress, toolchains) as found:
        yield found
