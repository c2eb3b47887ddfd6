"""What is out of date of the plan of a recipe."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from epbuild.cache.blobs import BlobStore
from epbuild.cache.location import cache_directory, toolchain_directory
from epbuild.cache.memory import Configuration
from epbuild.cache.workspace import Workspace
from epbuild.commands.locked import hold_lock
from epbuild.commands.planning import ReadVariables, Request, read_plan, workspace_of
from epbuild.core.errors import Problem
from epbuild.core.shown import shown_path
from epbuild.plan.result import action_records
from epbuild.survey.orphans import Outputs
from epbuild.survey.scope import Scope, find_scope
from epbuild.survey.snapshot import variables_of
from epbuild.survey.status import Survey, Surveyor
from epbuild.toolchain.environment import prepare, ready


def scope_of(request: Request, variables: Mapping[str, str], wanted: Sequence[str] = ()) -> Scope | None:
    """The part of what is asked for that has to be looked at, and the steps that match `wanted`; None: all has to be.

    The `variables` that the recipe reads are read.
    """
    if request.rebuild_and_compare or request.every_model:
        return None
    scope = find_scope(request.recipe, request.settings, request.selection, wanted)
    if scope is None or (request.locked and not scope.is_locked):
        return None
    for name in variables_of(scope.look.facts):
        variables.get(name)
    return scope


def survey(request: Request, wanted: Sequence[str] = ()) -> Survey:
    """What is out of date, without making anything: not even a toolchain that is missing. Raises EpbuildError.

    The steps that match `wanted` are looked at even where nothing has changed for them.
    """
    variables = ReadVariables()
    scope = scope_of(request, variables, wanted)
    recipe, plan = read_plan(request, environment=variables, scope=scope)
    lock = hold_lock(recipe, plan, strict=request.locked, fits=scope is not None)
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
        found = surveyor.survey(replace(plan, warnings=(*plan.warnings, *doubts)), environments, scope)
        return with_orphans(found, surveyor.outputs, request)


def with_orphans(found: Survey, outputs: Outputs, request: Request) -> Survey:
    """`found` with the outputs that nobody asks for any more; from some steps alone it is not known what the whole recipe asks for."""
    if request.selection or found.scope is not None:  # a snapshot is only taken where there was no orphan
        return found
    return replace(found, orphans=outputs.orphans(emission.path for emission in found.plan.emissions.values()))


def _unreadable(workspace: Workspace) -> Iterator[Problem]:
    """That this user may not know what was built here, where it is so."""
    if workspace.unreadable:
        message = f"what was built here is not known: this user may not read {shown_path(workspace.state)}"
        yield Problem("EPB513", message, None, "Do this as the user whose workspace it is, or get permission to read it.")
