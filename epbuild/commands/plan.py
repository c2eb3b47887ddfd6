"""What is out of date of the plan of a recipe."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from epbuild.cache.blobs import BlobStore
from epbuild.cache.location import cache_directory
from epbuild.cache.state import Configuration
from epbuild.cache.workspace import Workspace
from epbuild.commands.events import HashingEvents
from epbuild.commands.locked import HeldLock, hold_lock
from epbuild.commands.planning import FetchModels, ReadVariables, plan_of, read_recipe, remote_of, workspace_of
from epbuild.commands.request import Request
from epbuild.commands.shared_results import remote_cache, results_of
from epbuild.commands.toolchains import PlanToolchains, ToolchainSources
from epbuild.core.errors import Problem
from epbuild.engine.events import NoProgress, Progress
from epbuild.plan.result import action_records
from epbuild.plan.steps import Plan
from epbuild.recipe.model import Recipe
from epbuild.survey.orphans import Outputs
from epbuild.survey.scope import LastLook, Scope
from epbuild.survey.snapshot import variables_of
from epbuild.survey.status import Survey, Surveyor
from epbuild.toolchain.identity import toolchain_records

if TYPE_CHECKING:  # what speaks to a remote cache is loaded where one is used
    from epbuild.remote.cache import RemoteCache, Warn


class Planned(Struct, frozen=True):
    """A recipe and its plan, or, in a `scope`, the part of them that has to be looked at again."""

    recipe: Recipe
    plan: Plan
    scope: Scope | None = None


def plan_again(
    request: Request,
    variables: ReadVariables,
    fetching: FetchModels | None = None,
    wanted: Sequence[str] = (),
) -> Planned:
    """Return the recipe and its plan, or the part of them that files that changed since the last snapshot and `wanted` steps concern.

    A recipe whose text has changed is planned as a whole. The `variables` that the recipe reads are read. Raises what `read_plan` does.
    """
    last = None
    if request.emits_all and not request.rebuild_and_compare and not request.every_model and not request.writes:
        last = LastLook.at(request.recipe, request.settings)
    if last is None or last.has_shared_changes or (request.locked and last.look.facts.lock != "held"):
        return _planned_whole(request, variables, fetching)
    scope = last.scope(request.selection, wanted)
    if scope is None:
        return _planned_whole(request, variables, fetching)
    for name in variables_of(last.look.facts):
        variables.get(name)
    plan = Plan((), {})
    if scope.again:
        with Workspace.open(workspace_of(request.recipe), create=False) as workspace:
            plan = plan_of(replace(request, selection=scope.selection), scope.recipe, fetching, workspace, fits=True)
    return Planned(scope.recipe, replace(plan, warnings=scope.warnings(plan)), scope)


def _planned_whole(request: Request, variables: ReadVariables, fetching: FetchModels | None) -> Planned:
    """Read the recipe and plan all of it."""
    with Workspace.open(workspace_of(request.recipe), create=False) as workspace:
        recipe = read_recipe(request, variables)
        return Planned(recipe, plan_of(request, recipe, fetching, workspace))


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


def survey(request: Request, wanted: Sequence[str] = (), progress: Progress | None = None) -> Survey:
    """Return what is out of date. Nothing is made, not even a missing toolchain. Raises EpbuildError.

    The steps that match `wanted` are surveyed even where nothing has changed for them. `progress` gets events while files are hashed.
    """
    with surveyed(request, wanted, progress=progress) as looked:
        return looked.found


@contextmanager
def surveyed(
    request: Request,
    wanted: Sequence[str] = (),
    cancelled: threading.Event | None = None,
    warn: Warn | None = None,
    progress: Progress | None = None,
) -> Iterator[Surveyed]:
    """What `survey` returns, while workspace and remote cache are open. `warn` is given its warnings, rather than the plan."""
    variables = ReadVariables()
    counting = HashingEvents(NoProgress() if progress is None else progress).counting
    planned = plan_again(request, variables, wanted=wanted)
    recipe, plan, scope = planned.recipe, planned.plan, planned.scope
    lock = hold_lock(recipe, plan, strict=request.locked, fits=scope is not None)
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
        found = surveyor.survey(replace(plan, warnings=(*plan.warnings, *doubts)), known, scope)
        if results is not None:
            results.warn_of_the_rest()
        found = replace(found, plan=replace(found.plan, warnings=(*found.plan.warnings, *refused)))
        as_locked = not lock.warnings and not changed
        yield Surveyed(with_orphans(found, surveyor.outputs, request), surveyor, remote, known, lock, recipe, as_locked)


def with_orphans(found: Survey, outputs: Outputs, request: Request) -> Survey:
    """`found` with the outputs that nobody asks for any more; from some steps alone it is not known what the whole recipe asks for."""
    if not request.is_whole or found.scope is not None:  # a snapshot is only taken where there was no orphan
        return found
    return replace(found, orphans=outputs.orphans(emission.path for emission in found.plan.emissions.values()))
