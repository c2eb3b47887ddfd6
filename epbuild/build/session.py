"""One build from start to end: read the recipe, plan it, see what is out of date, make that, and say what came of it."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from epbuild.build.actions import Actions
from epbuild.build.events import Event, Listener, RunStarted, ToolchainReady, ToolchainStarted, Warned
from epbuild.build.remote import RemoteModels
from epbuild.build.scheduler import Scheduler, drive
from epbuild.build.status import Survey, Surveyor
from epbuild.errors import RecipeError
from epbuild.plan import Plan, make_plan, problems_of_the_rest
from epbuild.recipe import BrokenRecipe, ModelSource, Recipe, load
from epbuild.store import ActionRecords, BlobStore, Workspace, cache_directory, toolchain_directory
from epbuild.toolchain import Environment, prepare, ready

WORKSPACE = ".epbuild"
_VALID = "valid recipe"


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


def read_plan(request: Request, fetch: Fetch | None = None) -> tuple[Recipe, Plan]:
    """The recipe and its plan; writes nothing but the memory, in a workspace that is there, that the recipe fits its schema.

    A remote model that is needed and not here goes through `fetch`; without it, its steps are planned with its files unknown. Raises
    RecipeError, PlanError, and what `fetch` raises.
    """
    with Workspace.open(workspace_of(request.recipe), create=False) as workspace:
        remote = RemoteModels(workspace, BlobStore(cache_directory()))
        try:
            recipe = load(
                request.recipe, is_known_valid=lambda digest: workspace.fact(_VALID) == digest, settings=request.settings
            )
        except BrokenRecipe as error:
            # Told together, so that one run shows all that there is to mend.
            raise RecipeError(*error.problems, *problems_of_the_rest(error.rest)) from error
        plan = make_plan(recipe, request.selection, remote.known if fetch is None else lambda model: fetch(remote, model))
        if workspace.fact(_VALID) != recipe.digest:
            workspace.record_fact(_VALID, recipe.digest)
    return recipe, plan


def survey(request: Request) -> Survey:
    """What is out of date, without making anything: not even a toolchain that is missing. Raises EpbuildError."""
    recipe, plan = read_plan(request)
    cache, home = cache_directory(), toolchain_directory()
    environments = {
        name: prepare(toolchain, recipe.directory, home, entries)
        for name, (toolchain, entries) in plan.toolchains().items()
        if ready(toolchain, recipe.directory, home)
    }
    with Workspace.open(workspace_of(request.recipe), create=False) as workspace:
        return Surveyor(workspace, BlobStore(cache), ActionRecords(cache), recipe.name).survey(plan, environments)


def run(request: Request, listener: Listener, cancelled: threading.Event | None = None) -> int:
    """Build what is out of date, telling `listener` of every event; returns the exit code.

    Raises EpbuildError when nothing could be started, KeyboardInterrupt when the user stopped it. Failed steps are told as events.
    """
    begin = time.monotonic()
    tell = _serialised(listener)
    stop = cancelled or threading.Event()

    def fetch(remote: RemoteModels, model: ModelSource) -> Path:
        known = remote.known(model)
        if known is not None:
            return known
        # The plan is read without making a workspace: a model that is fetched has to be remembered in one that lasts.
        with Workspace.open(workspace_of(request.recipe)) as workspace:
            return replace(remote, workspace=workspace).fetched(model, tell, stop)

    recipe, plan = read_plan(request, fetch)
    for warning in plan.warnings:
        tell(Warned(warning))
    cache = cache_directory()
    environments = _environments(recipe, plan, tell)
    with Workspace.open(workspace_of(request.recipe)) as workspace:
        workspace.sweep()
        surveyor = Surveyor(workspace, BlobStore(cache), ActionRecords(cache), recipe.name)
        found = surveyor.survey(plan, environments)
        todo = set(found.todo)
        if todo:
            # What killed builds left half-written; a build with nothing to do writes nothing, not even this.
            surveyor.store.sweep()
            surveyor.records.sweep()
        tell(RunStarted(recipe.name, len(plan.steps), sum(step.action in todo for step in plan.steps)))
        actions = Actions(recipe, found, environments, surveyor, tell, stop)
        actions.take_over()
        _drive(actions, found, request)
        ended = actions.finished(time.monotonic() - begin)
        tell(ended)
        return ended.exit_code


def workspace_of(recipe: Path) -> Path:
    """The folder beside a recipe in which epbuild keeps what it remembers."""
    return recipe.absolute().parent / WORKSPACE


def _drive(actions: Actions, found: Survey, request: Request) -> None:
    emissions = found.plan.emissions
    scheduler = Scheduler(
        {action: emissions[action].session_groups if action in emissions else () for action in found.todo},
        {action: actions.cost(action) for action in found.todo},
    )
    drive(
        scheduler,
        actions.perform,
        jobs=request.jobs,
        keep_going=request.keep_going,
        cancelled=actions.cancelled,
        failed=actions.failed,
        skipped=actions.skipped,
    )


def _environments(recipe: Recipe, plan: Plan, tell: Listener) -> dict[str, Environment]:
    home = toolchain_directory()
    environments = {}
    for name, (toolchain, entries) in plan.toolchains().items():
        begin = time.monotonic()
        there = ready(toolchain, recipe.directory, home)
        if not there:
            tell(ToolchainStarted(name, f"making an environment with {', '.join(toolchain.packages)}"))
        environment = prepare(toolchain, recipe.directory, home, entries)
        if not there:
            tell(ToolchainReady(name, environment.onnxruntime, time.monotonic() - begin))
        environments[name] = environment
    return environments


def _serialised(listener: Listener) -> Listener:
    """`listener`, which then hears one event at a time, whatever thread they come from."""
    lock = threading.Lock()

    def tell(event: Event) -> None:
        with lock:
            listener(event)

    return tell
