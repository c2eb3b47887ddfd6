"""What is out of date of the plan of a recipe."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from epbuild.cache.blobs import BlobStore
from epbuild.cache.location import cache_directory
from epbuild.cache.state import Configuration
from epbuild.cache.workspace import Workspace
from epbuild.core.errors import Problem, ProblemRecord
from epbuild.engine.events import NoProgress, Progress
from epbuild.plan.result import action_records
from epbuild.plan.steps import Plan, Step
from epbuild.recipe.model import Recipe
from epbuild.session.events import HashingEvents
from epbuild.session.lock import HeldLock, hold_lock
from epbuild.session.planning import ReadVariables, read_plan, remote_of, workspace_of
from epbuild.session.request import Request
from epbuild.session.shared_results import remote_cache, results_of
from epbuild.session.toolchains import PlanToolchains, ToolchainSources
from epbuild.survey.orphans import Outputs
from epbuild.survey.snapshot import Snapshot, read_unchanged, view_of
from epbuild.survey.status import StepStatus, Survey, Surveyor
from epbuild.toolchain.identity import toolchain_records

if TYPE_CHECKING:  # what speaks to a remote cache is loaded where one is used
    from epbuild.remote.cache import RemoteCache, Warn


class Surveyed(Struct, frozen=True):
    """What is out of date, with what it was compared with."""

    found: Survey
    surveyor: Surveyor
    remote: RemoteCache | None
    toolchains: PlanToolchains
    lock: HeldLock
    recipe: Recipe
    as_locked: bool
    """Whether nothing is another than its lock has it."""


def survey(request: Request, progress: Progress | None = None) -> Survey:
    """Return what is out of date. Nothing is made, not even a missing toolchain. Raises EpbuildError.

    If nothing has changed since the last run, the survey has the statuses of steps only. `progress` gets events while files are hashed.
    """
    found = read_last(request)
    if found is not None:
        return recorded_survey(found)
    with surveyed(request, progress=progress) as looked:
        return looked.found


def read_last(request: Request, *, refresh: bool = False) -> Snapshot | None:
    """Return the snapshot of the last run of a request if nothing has changed since, and it needs no other work; else None.

    With `refresh`, the new times of files that were only touched are kept.
    """
    asks_more = request.rebuild_and_compare or request.every_model or request.writes or request.shard is not None
    if asks_more or not request.emits_all:
        return None
    recipe = str(request.recipe)
    found = read_unchanged(recipe, request.settings, request.selection, refresh=refresh)
    # Messages and outputs name files as the recipe was named, and a doubted lock is checked again.
    if found is None or not found.is_current or found.view != view_of(recipe) or found.lock == "doubted":
        return None
    return None if request.locked and found.lock != "held" else found


def recorded_survey(found: Snapshot) -> Survey:
    """Return the survey in a snapshot: all steps are current."""
    records = msgspec.convert(found.warnings, tuple[ProblemRecord, ...])
    statuses = [
        StepStatus(Step(*step), "current", (), key, outputs, on_real_device=on_device)
        for *step, key, outputs, on_device in found.step_rows()
    ]
    return Survey(Plan((), {}, tuple(record.problem for record in records)), {}, (), recorded=tuple(statuses))


@contextmanager
def surveyed(
    request: Request,
    cancelled: threading.Event | None = None,
    warn: Warn | None = None,
    progress: Progress | None = None,
) -> Iterator[Surveyed]:
    """What `survey` returns, while workspace and remote cache are open. `warn` is given its warnings, rather than the plan."""
    variables = ReadVariables()
    counting = HashingEvents(NoProgress() if progress is None else progress).counting
    recipe, plan = read_plan(request, environment=variables)
    lock = hold_lock(recipe, plan, strict=request.locked)
    cache = cache_directory()
    refused: list[Problem] = []
    with (
        remote_cache(remote_of(request, recipe), warn or refused.append, cancelled) as remote,
        Workspace.open(workspace_of(request.recipe), create=False) as workspace,
    ):
        store = BlobStore(cache)
        results = results_of(remote, store, warn or refused.append)
        configuration = Configuration.of(recipe.file, request.settings, variables.seen)
        known = PlanToolchains(
            plan, recipe.directory, lock, ToolchainSources(request.toolchains, toolchain_records(cache), results)
        )
        surveyor = Surveyor(workspace, store, action_records(cache), recipe, configuration, results, counting)
        changed = lock.deviations(plan, known.environments, surveyor.digests)
        doubts = (*workspace.problems(), *lock.warnings, *changed)
        found = surveyor.survey(replace(plan, warnings=(*plan.warnings, *doubts)), known)
        if results is not None:
            results.warn_of_the_rest()
        found = replace(found, plan=replace(found.plan, warnings=(*found.plan.warnings, *refused)))
        as_locked = not lock.warnings and not changed
        yield Surveyed(with_orphans(found, surveyor.outputs, request), surveyor, remote, known, lock, recipe, as_locked)


def with_orphans(found: Survey, outputs: Outputs, request: Request) -> Survey:
    """Return `found` with outputs that the recipe no longer asks for. Selected steps do not show what the whole recipe asks for."""
    if not request.is_whole:
        return found
    return replace(found, orphans=outputs.orphans(emission.path for emission in found.plan.emissions.values()))
