"""The plan of a recipe, from its files."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Protocol

from msgspec.structs import replace

from epbuild.cache.blobs import BlobStore
from epbuild.cache.location import cache_directory
from epbuild.cache.workspace import Workspace
from epbuild.commands.locked import check_lock, locked_wheels
from epbuild.commands.remote import RemoteModels
from epbuild.commands.request import Request
from epbuild.core.defaults import WORKSPACE
from epbuild.core.errors import PlanError, Problem, RecipeError
from epbuild.core.redact import conceal
from epbuild.plan.planner import make_plan, problems_of_the_rest
from epbuild.plan.steps import Plan
from epbuild.recipe.load import BrokenRecipe, load
from epbuild.recipe.model import ModelSpec, Recipe
from epbuild.remote.settings import RemoteSettings, remote_settings


class FetchModels(Protocol):
    """Brings remote models here."""

    def fetch(self, remote: RemoteModels, model: ModelSpec) -> Path:
        """Where a model is, once it is here."""


class ReadVariables(Mapping[str, str]):
    """The environment of this process, with a note of every variable that was read."""

    def __init__(self) -> None:
        self.seen: dict[str, str | None] = {}

    def __getitem__(self, name: str) -> str:
        self.seen[name] = os.environ.get(name)
        value = os.environ[name]
        conceal(name, value)
        return value

    def __iter__(self) -> Iterator[str]:
        return iter(os.environ)

    def __len__(self) -> int:
        return len(os.environ)


def read_plan(
    request: Request, fetching: FetchModels | None = None, environment: Mapping[str, str] | None = None
) -> tuple[Recipe, Plan]:
    """The recipe and its plan; writes nothing.

    A remote model that is needed and not here goes through `fetching`; without it, its steps are planned with its files unknown. The recipe
    reads its variables in `environment` (None: this process's). Raises RecipeError, PlanError, and what `fetching` raises.
    """
    with Workspace.open(workspace_of(request.recipe), create=False) as workspace:
        recipe = read_recipe(request, environment)
        return recipe, plan_of(request, recipe, fetching, workspace)


def read_recipe(request: Request, environment: Mapping[str, str] | None) -> Recipe:
    """The recipe alone. Raises RecipeError."""
    try:
        return load(request.recipe, environment=environment, settings=request.settings)
    except BrokenRecipe as error:
        # Together, so that one run shows all that there is to mend.
        raise RecipeError(*error.problems, *problems_of_the_rest(error.rest)) from error


def plan_of(request: Request, recipe: Recipe, fetching: FetchModels | None, workspace: Workspace) -> Plan:
    """Return the plan of a recipe. Raises what `read_plan` does."""
    remote = RemoteModels(workspace, BlobStore(cache_directory()))
    remote_of(request, recipe)  # what is wrong with it is found before anything is fetched
    if request.locked:
        check_lock(recipe)  # before anything is fetched
    if fetching is not None:
        remote = replace(remote, wheels=locked_wheels(recipe))
    locate = remote.known if fetching is None else lambda model: fetching.fetch(remote, model)
    selection = request.selection
    if request.shard is not None:
        from epbuild.plan.shards import steps_of  # only CI asks for one

        selection = steps_of(make_plan(recipe, selection, places=request.places), request.shard)
        if not selection:
            return Plan((), {})
    plan = make_plan(recipe, selection, locate, request.places)
    if not request.emits:
        plan = plan.without_emissions()
    if request.push_only:
        plan = plan.of_pushed()
        if not plan.actions:
            message = "no output that is asked for is pushed"
            raise PlanError(Problem("EPB240", message, None, "Set `push` of an output with `pack: oci` in the recipe."))
    if any(part.genai is not None for emission in plan.emissions.values() for part in emission.parts):
        from epbuild.output.genai_files import check_pipelines  # few recipes have any

        check_pipelines(plan)
    return plan


def remote_of(request: Request, recipe: Recipe) -> RemoteSettings | None:
    """The remote cache that a request has for a recipe; None where there is none. Raises RecipeError for one that must not be used."""
    chosen = request.remote
    if chosen is None:
        return None
    mode = "off" if chosen.offline else chosen.mode
    found = remote_settings(recipe.cache, recipe.directory, os.environ, mode, insecure=chosen.insecure)
    return dataclasses.replace(found, provides=True) if found is not None and request.cluster is not None else found


def workspace_of(recipe: Path) -> Path:
    """The folder beside a recipe in which epbuild keeps what it remembers."""
    return recipe.absolute().parent / WORKSPACE
