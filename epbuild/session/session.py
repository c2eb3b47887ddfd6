"""Build session: everything that one command opens for a recipe, and its phases."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from epbuild.actions.types import is_stored
from epbuild.cache.blobs import BlobStore
from epbuild.cache.digests import UnchangedFiles
from epbuild.cache.location import find_cache_directory
from epbuild.cache.memo import Memo
from epbuild.cache.state import Configuration, OutputRecord
from epbuild.cache.workspace import Workspace
from epbuild.core.directory import find_interrupted_swaps
from epbuild.core.errors import EnvironmentFailure, Problem
from epbuild.engine.capacity import get_memory
from epbuild.engine.events import NoProgress, Progress, RunFinished, RunStarted, Warned
from epbuild.engine.loop import drive
from epbuild.engine.scheduler import Runnable, Scheduler
from epbuild.plan.possible import find_obstacles
from epbuild.plan.result import open_action_records
from epbuild.plan.steps import Plan, SessionGroup
from epbuild.recipe.model import Recipe
from epbuild.session.events import HashingEvents
from epbuild.session.lock import HeldLock, hold_lock
from epbuild.session.planning import (
    ModelFetcher,
    NeededModels,
    ReadVariables,
    get_workspace_folder,
    open_workspace,
    read_plan,
    resolve_remote,
)
from epbuild.session.provisioning import Provisioning, ProvisionPolicy
from epbuild.session.request import Request
from epbuild.session.shared_results import SharedResults
from epbuild.session.snapshot import (
    collect_ends,
    estimate_clock,
    find_last_outputs,
    find_unchanged_files,
    list_observed_files,
    list_touched_files,
)
from epbuild.session.toolchains import PlanToolchains, ToolchainSources
from epbuild.survey.disk import find_disk_problems
from epbuild.survey.snapshot import forget, get_memo_path, read_clock
from epbuild.survey.snapshot_writer import Observations, write_snapshot
from epbuild.survey.status import Survey, Surveyor
from epbuild.toolchain.identity import open_toolchain_records

if TYPE_CHECKING:
    from epbuild.remote.cache import RemoteCache, Warn
    from epbuild.session.build import BuildExecutor
    from epbuild.session.remote_build import RemoteMachines
    from epbuild.survey.snapshot import Moment


class Session(Struct, kw_only=True):
    """One recipe with everything that a command opens for it: plan, lock, toolchains, workspace, store and remote cache."""

    request: Request
    recipe: Recipe
    plan: Plan
    lock: HeldLock
    """The lock, with a warning for each deviation."""
    provisioning: Provisioning
    surveyor: Surveyor
    shared: SharedResults
    progress: Progress
    cancelled: threading.Event
    variables: ReadVariables
    memo: Memo
    begin: float
    """Time when the session was opened, as `time.monotonic` returns it."""
    unchanged: UnchangedFiles
    """Files that were unchanged when the session was opened."""
    began: Moment | None
    """Time when the session was opened, as `read_clock` returns it. None if nothing is built, or if there was no workspace yet."""
    refused: list[Problem] | None
    """Warnings about the remote cache to add to the plan; None if they are reported as events."""

    @property
    def toolchains(self) -> PlanToolchains:
        """The toolchains of the plan, with their known identities."""
        return self.provisioning.known

    @property
    def workspace(self) -> Workspace:
        """The workspace beside the recipe."""
        return self.surveyor.workspace

    @property
    def remote(self) -> RemoteCache | None:
        """The remote cache, if the request uses one."""
        return self.shared.cache

    def survey(self) -> Survey:
        """Return the state of every step, why it is out of date, and the orphans. Raises PlanError and StoreError."""
        found = self.surveyor.survey(self.plan, self.toolchains.identify(self.plan), self.memo, self.unchanged)
        full = tuple(find_disk_problems(found.disk, self.surveyor.store.root))
        if self.refused is not None:
            if self.shared.results is not None:
                self.shared.results.warn_of_the_rest()
            found = replace(found, plan=replace(found.plan, warnings=(*found.plan.warnings, *self.refused, *full)))
        else:
            _report(self.progress, full)
        if not self.request.is_whole:  # a selection does not show which outputs the whole recipe requests
            return found
        orphans = self.surveyor.outputs.orphans(emission.path for emission in found.plan.emissions.values())
        return replace(found, orphans=orphans)

    def build(self, found: Survey) -> BuildExecutor:
        """Run the outdated actions and emit outputs, in dependency order. Return the executor, which `finish` needs.

        Failed steps are reported as events.

        Raises EnvironmentFailure if a step cannot run on this machine, and KeyboardInterrupt.
        """
        from epbuild.session.build import BuildExecutor  # `plan` and `explain` never load the compiler and the publisher
        from epbuild.session.execution import ActionRunner

        request, todo = self.request, found.todo
        must_run = [found.plan.actions[ident] for ident in todo if not found.actions[ident].remote]
        _refuse_obstacles(request, (action for action in must_run if isinstance(action, SessionGroup)))
        if todo:
            forget(str(request.recipe))  # if this build is killed, the next one has to clean up
            # A build with nothing to do writes nothing, and removes no half-written files of killed builds.
            self.surveyor.store.sweep()
            self.surveyor.records.sweep()
        with self._open_machines() if todo else nullcontext() as machines:
            runner = ActionRunner(request.compiles, request.retry, machines)
            actions = BuildExecutor(
                found, self.provisioning, self.surveyor, self.progress, self.cancelled, runner=runner, shared=self.shared
            )
            actions.emitter.check_keys()
            to_do = set(todo)
            steps = sum(step.action in to_do for step in found.plan.steps)
            seconds = actions.expect(request.jobs)
            for needed in found.disk:
                self.progress.report(needed)
            self.progress.report(RunStarted(self.recipe.name, len(found.plan.steps), steps, seconds, request.keep_going))
            actions.adopt_current()
            if request.writes:
                self.shared.offer([made.key for made in self.surveyor.stored(found).values()], self.surveyor.records)
            # The staging folder exists until the work ends, so that no other process removes the workspace.
            with self.workspace.staging("run") if todo else nullcontext():
                self._drive(actions, found)
        self.shared.finish(sum(map(is_stored, found.plan.actions.values())))
        return actions

    def finish(self, found: Survey, actions: BuildExecutor) -> tuple[int, Mapping[str, OutputRecord]]:
        """Remove orphans, rebuild and compare if requested, and write the snapshot.

        Return the exit code, and the record of the last output of each emission.
        """
        from epbuild.session.emitting import remove_orphans

        request = self.request
        ended = actions.finished(time.monotonic() - self.begin, every_model=request.every_model)
        if found.todo:
            self.surveyor.memory.forget_superseded()
        if ended.exit_code == 0 and request.is_whole:
            remove_orphans(found, self.surveyor, self.progress, self.cancelled)
        if request.rebuild_and_compare and (ended.exit_code == 0 or request.keep_going):
            code = self._rebuild_and_compare(actions)
            ended = replace(ended, exit_code=max(ended.exit_code, code), seconds=time.monotonic() - self.begin)
        self.progress.report(ended)
        self.memo.write(get_memo_path(str(request.recipe), request.settings), is_whole=request.is_whole)
        outputs = find_last_outputs(found.plan, self.surveyor)
        self._write_snapshot(found, actions, ended, outputs)
        return ended.exit_code, outputs

    def _drive(self, actions: BuildExecutor, found: Survey) -> None:
        request = self.request
        if not request.compiles and not request.keep_going and found.unmade:
            actions.give_up(set(found.unmade))
            return
        todo = [
            Runnable(ident, found.plan.actions[ident].needs, actions.cost(ident), actions.memory(ident)) for ident in found.todo
        ]
        scheduler = Scheduler(todo, request.memory or get_memory())
        drive(
            scheduler,
            actions,
            jobs=request.jobs,
            keep_going=request.keep_going,
            cancelled=self.cancelled,
            idle=actions.idle,
        )

    @contextmanager
    def _open_machines(self) -> Iterator[RemoteMachines | None]:
        """Connect to the request's cluster, and yield its machines. Yield None if the request names no cluster."""
        if self.request.cluster is None:
            yield None
            return
        from epbuild.session.remote_build import open_cluster

        with open_cluster(self.request.cluster, self.shared, self.surveyor, self.progress, self.toolchains) as machines:
            yield machines

    def _rebuild_and_compare(self, actions: BuildExecutor) -> int:
        """Rebuild all results and compare them with the store. Return the exit code."""
        from epbuild.session.rebuild import rebuild_and_compare

        request = self.request
        forget(str(request.recipe))  # if this process is killed, the next build has to clean up
        memory = request.memory or get_memory()
        with self.workspace.staging("run"):
            return rebuild_and_compare(
                actions,
                self.workspace,
                self.surveyor.store,
                self.progress,
                jobs=request.jobs,
                keep_going=request.keep_going,
                memory=memory,
            )

    def _write_snapshot(
        self, found: Survey, actions: BuildExecutor, ended: RunFinished, outputs: Mapping[str, OutputRecord]
    ) -> None:
        """Write the snapshot for the fast path of the next run, unless the next run has work in any case."""
        request, lock = self.request, self.lock
        began = self.began or estimate_clock(self.begin, request.recipe)
        is_complete = request.emits_all and request.shard is None and not self.provisioning.warnings
        if not is_complete or began is None or (ended.exit_code != 0 and found.orphans):
            return
        places = [*(output.path for output in found.plan.emissions.values()), *(orphan.directory for orphan in found.orphans)]
        if self.workspace.has_own_staging() or find_interrupted_swaps(places):
            return  # temporary files are left, for example because another program on Windows uses them; the next run removes them
        ends = collect_ends(found, actions.made, actions.outcomes, outputs, self.surveyor)
        observations = Observations(
            recipe=self.recipe,
            began=began,
            variables=self.variables.seen,
            lock="none" if not lock.exists else "doubted" if lock.warnings else "held",
            warnings=found.plan.warnings,
            files=list_observed_files(self.recipe, self.toolchains, lock, found.plan, outputs, ends, self.surveyor),
            unchanged=self.unchanged.without(list_touched_files(found, outputs)),
            absent=(*self.toolchains.list_absent_files(), *(() if lock.exists else (lock.path,))),
            steps=[status._replace(key=ends[status.step.action].key) for status in found.steps()],
            is_current=all(end.is_current for end in ends.values()),
            drivers=self.toolchains.drivers(),
        )
        write_snapshot(observations, request.settings, request.selection)


@contextmanager
def open_session(
    request: Request,
    progress: Progress | None = None,
    cancelled: threading.Event | None = None,
    *,
    builds: bool = False,
    fetcher: ModelFetcher | None = None,
    warn: Warn | None = None,
) -> Iterator[Session]:
    """Open the recipe, lock, remote cache, toolchains and workspace of a request, in that order.

    With `builds`, fetch missing models with `fetcher`, provision toolchains whose identity is unknown, create the workspace, and report
    warnings. Without `builds`, nothing is written, and warnings are added to the plan. Warnings about the remote cache are passed to
    `warn` instead, if it is given. Raises EpbuildError or Cancelled.
    """
    begin, variables = time.monotonic(), ReadVariables()
    began = read_clock(str(request.recipe)) if builds else None  # reading the clock touches a file in the workspace
    progress = NoProgress() if progress is None else progress  # an empty list of events is falsy
    cancelled = cancelled or threading.Event()
    memo, unchanged = Memo.read(get_memo_path(str(request.recipe), request.settings)), find_unchanged_files(request)
    fetching = NeededModels(request, progress, cancelled, fetcher) if builds else None
    recipe, plan = read_plan(request, fetching, variables, memo, unchanged)
    lock = hold_lock(recipe, plan, strict=request.locked)
    if builds:
        _report(progress, (*plan.warnings, *lock.warnings))
    refused: list[Problem] = []
    store = BlobStore(find_cache_directory())
    shared = SharedResults(store, progress, cancelled, None if builds else warn or refused.append)
    reads = not (builds and request.rebuild_and_compare)
    with shared.opened(resolve_remote(request, recipe), reads=reads), ExitStack() as stack:
        sources = ToolchainSources(request.toolchains, open_toolchain_records(store.root), shared.results)
        known = PlanToolchains(plan, recipe.directory, lock, sources)
        found_here = dict(known.environments)
        policy = ProvisionPolicy(lock, request.is_offline, shared.results is not None)
        provisioning = stack.enter_context(Provisioning(known, policy, shared, progress, cancelled))
        if builds:
            _identify_elsewhere(request, known, plan, shared, progress)
            _refuse_obstacles(request, (group for group in plan.session_groups.values() if known.of(group) is None))
            provisioning.provision_unknown(plan.actions.values())  # other toolchains are provisioned when an action needs them
        workspace = stack.enter_context(
            open_workspace(request.recipe) if builds else Workspace.open(get_workspace_folder(request.recipe), create=False)
        )
        if builds:
            _report(progress, workspace.problems())
            workspace.sweep()
        configuration = Configuration.of(recipe.file, request.settings, variables.seen)
        counting = HashingEvents(progress).counting
        surveyor = Surveyor(workspace, store, open_action_records(store.root), recipe, configuration, shared.results, counting)
        deviations = lock.deviations(plan, found_here, surveyor.digests)
        if builds:
            _report(progress, deviations)
            if not deviations:
                provisioning.record()
        problems = () if builds else workspace.problems()
        lock = replace(lock, warnings=(*lock.warnings, *deviations))
        plan = replace(plan, warnings=(*plan.warnings, *problems, *lock.warnings))
        yield Session(
            request=request,
            recipe=recipe,
            plan=plan,
            lock=lock,
            provisioning=provisioning,
            surveyor=surveyor,
            shared=shared,
            progress=progress,
            cancelled=cancelled,
            variables=variables,
            memo=memo,
            unchanged=unchanged,
            begin=begin,
            began=began,
            refused=None if builds else refused,
        )


def _report(progress: Progress, warnings: Iterable[Problem]) -> None:
    for warning in warnings:
        progress.report(Warned(warning))


def _refuse_obstacles(request: Request, groups: Iterable[SessionGroup]) -> None:
    """Raise EnvironmentFailure if this machine cannot compile one of `groups`, unless the build can continue without the group."""
    impossible = find_obstacles([group for group in groups if not group.may_fail], sys.platform)
    if impossible and not request.keep_going and request.cluster is None:
        raise EnvironmentFailure(*impossible)


def _identify_elsewhere(request: Request, known: PlanToolchains, plan: Plan, shared: SharedResults, progress: Progress) -> None:
    """Request that other machines publish the identities of toolchains that are unknown here."""
    if request.cluster is None or not request.compiles or shared.results is None:
        return
    unknown = known.list_unidentified(plan.actions.values())
    if unknown:
        from epbuild.cluster.dask_client import DaskExecutor
        from epbuild.session.remote_build import IdentityRequests

        executor = DaskExecutor(request.cluster, shared.cancelled)
        try:
            IdentityRequests(executor, known, progress).fetch(unknown)
        finally:
            executor.close()
