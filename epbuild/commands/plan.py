"""What is out of date of the plan of a recipe."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from epbuild.cache.blobs import BlobStore
from epbuild.cache.location import cache_directory
from epbuild.cache.memory import Configuration
from epbuild.cache.workspace import Workspace
from epbuild.commands.locked import HeldLock, hold_lock
from epbuild.commands.planning import FetchModels, ReadVariables, plan_of, read_recipe, remote_of, workspace_of
from epbuild.commands.request import Request
from epbuild.commands.shared_results import remote_cache, results_of
from epbuild.commands.toolchains import PlanToolchains, ToolchainSources
from epbuild.core.errors import Problem
from epbuild.core.shown import shown_path
from epbuild.core.values import dataclass
from epbuild.plan.result import action_records
from epbuild.plan.steps import Plan
from epbuild.recipe.model import Recipe
from epbuild.survey.hashed_ahead import HashedAhead
from epbuild.survey.orphans import Outputs
from epbuild.survey.scope import LastLook, Scope
from epbuild.survey.snapshot import variables_of
from epbuild.survey.status import Survey, Surveyor
from epbuild.toolchain.identity import toolchain_records

if TYPE_CHECKING:  # what speaks to a remote cache is loaded where one is used
    from epbuild.remote.attempts import Warn
    from epbuild.remote.cache import RemoteCache


@dataclass(frozen=True)
class Planned:
    """A recipe and its plan, or, in a `scope`, the part of them that has to be looked at again."""

    recipe: Recipe
    plan: Plan
    scope: Scope | None = None


def plan_again(
    request: Request,
    variables: ReadVariables,
    ahead: HashedAhead,
    fetching: FetchModels | None = None,
    wanted: Sequence[str] = (),
) -> Planned:
    """The recipe and its plan, or the part of them that has to be looked at since the last snapshot, and the steps that match `wanted`.

    The `variables` that the recipe reads are read. Where nothing is known of any file, models are hashed `ahead`. Raises what `read_plan`
    does.
    """
    last = None
    if request.emits_all and not request.rebuild_and_compare and not request.every_model and not request.writes:
        last = LastLook.at(request.recipe, request.settings)
    if last is None or (request.locked and last.look.facts.lock != "held"):
        with Workspace.open(workspace_of(request.recipe), create=False) as workspace:
            recipe = read_recipe(request, variables)
            if workspace.files.is_empty and not request.selection and request.shard is None:
                ahead.begin(recipe)
            return Planned(recipe, plan_of(request, recipe, fetching, workspace))
    whole = read_recipe(request, variables) if last.shared_changes else None
    if whole is None:
        for name in variables_of(last.look.facts):
            variables.get(name)
    scope = _scope(request, last, whole, wanted)
    with Workspace.open(workspace_of(request.recipe), create=False) as workspace:
        if scope is not None:
            plan = Plan((), {})
            if scope.again:
                plan = plan_of(replace(request, selection=scope.selection), scope.recipe, fetching, workspace, fits=True)
            if scope.is_complete(plan):
                return Planned(scope.recipe, replace(plan, warnings=scope.warnings(plan)), scope)
        recipe = whole if whole is not None else read_recipe(request, variables)
        return Planned(recipe, plan_of(request, recipe, fetching, workspace))


def _scope(request: Request, last: LastLook, whole: Recipe | None, wanted: Sequence[str]) -> Scope | None:
    """The part to look at; `whole` is the recipe, read again, where a file has changed that concerns everything."""
    if whole is None:
        return last.scope(request.selection, wanted)
    texts = {os.path.relpath(path, whole.directory) for path in (*whole.files, *whole.names)}
    if request.selection or not texts.issuperset(last.shared_changes):
        return None
    return last.scope_of_changes(whole, wanted)


@dataclass(frozen=True)
class Surveyed:
    """What is out of date, with what it was compared with."""

    found: Survey
    surveyor: Surveyor
    remote: RemoteCache | None
    toolchains: PlanToolchains
    lock: HeldLock
    recipe: Recipe
    as_locked: bool
    """Whether nothing is another than its lock has it."""


def survey(request: Request, wanted: Sequence[str] = ()) -> Survey:
    """What is out of date, without making anything: not even a toolchain that is missing. Raises EpbuildError.

    The steps that match `wanted` are looked at even where nothing has changed for them.
    """
    with surveyed(request, wanted) as looked:
        return looked.found


@contextmanager
def surveyed(
    request: Request, wanted: Sequence[str] = (), cancelled: threading.Event | None = None, warn: Warn | None = None
) -> Iterator[Surveyed]:
    """What `survey` returns, while workspace and remote cache are open. `warn` is given its warnings, rather than the plan."""
    variables = ReadVariables()
    with HashedAhead() as ahead:
        planned = plan_again(request, variables, ahead, wanted=wanted)
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
            ahead.remember(workspace.files)
            surveyor = Surveyor(workspace, store, action_records(cache), recipe, configuration, results)
            changed = lock.deviations(plan, known.environments, surveyor.digests)
            doubts = (*_unreadable(workspace), *lock.warnings, *changed)
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


def _unreadable(workspace: Workspace) -> Iterator[Problem]:
    """That this user may not know what was built here, where it is so."""
    if workspace.unreadable:
        message = f"what was built here is not known: this user may not read {shown_path(workspace.state)}"
        yield Problem("EPB513", message, None, "Do this as the user whose workspace it is, or get permission to read it.")
