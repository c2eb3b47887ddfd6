"""The plan of a recipe, and what of it is out of date."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from epbuild.cache.blobs import BlobStore
from epbuild.cache.location import cache_directory, toolchain_directory
from epbuild.cache.memory import Configuration
from epbuild.cache.workspace import Workspace
from epbuild.commands.locked import check_lock, hold_lock, locked_wheels
from epbuild.commands.remote import RemoteModels
from epbuild.core.defaults import WORKSPACE
from epbuild.core.errors import Problem, RecipeError
from epbuild.engine.events import shown_path
from epbuild.plan.planner import make_plan, problems_of_the_rest
from epbuild.plan.result import action_records
from epbuild.plan.steps import Plan
from epbuild.recipe.load import BrokenRecipe, load
from epbuild.recipe.model import ModelSpec, Recipe
from epbuild.survey.orphans import Outputs
from epbuild.survey.status import Survey, Surveyor
from epbuild.toolchain.environment import prepare, ready

_VALID = "valid recipe"

Fetch = Callable[[RemoteModels, ModelSpec], Path]
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
        return with_orphans(found, surveyor.outputs, request)


def with_orphans(found: Survey, outputs: Outputs, request: Request) -> Survey:
    """`found` with the outputs that nobody asks for any more; from some steps alone it is not known what the whole recipe asks for."""
    if request.selection:
        return found
    return replace(found, orphans=outputs.orphans(emission.path for emission in found.plan.emissions.values()))


def workspace_of(recipe: Path) -> Path:
    """The folder beside a recipe in which epbuild keeps what it remembers."""
    return recipe.absolute().parent / WORKSPACE


def _unreadable(workspace: Workspace) -> Iterator[Problem]:
    """That this user may not know what was built here, where it is so."""
    if workspace.unreadable:
        message = f"what was built here is not known: this user may not read {shown_path(workspace.state)}"
        yield Problem("EPB513", message, None, "Do this as the user whose workspace it is, or get permission to read it.")
