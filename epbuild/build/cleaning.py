"""Takes back what builds laid out: outputs go, what is not epbuild's stays, and the steps are forgotten. The store keeps what it has."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from epbuild.build.emission import lease_name
from epbuild.build.orphans import Outputs
from epbuild.build.removal import Cleaned, Emitted
from epbuild.build.session import Request, read_plan, workspace_of
from epbuild.errors import Problem, StoreError
from epbuild.plan import Emission, Plan
from epbuild.snapshot import forget
from epbuild.store import Digests, Roots, Workspace, cache_directory, files_below, lease


@dataclass(frozen=True)
class Forgotten:
    """The workspace that was removed as a whole, and its bytes."""

    directory: Path
    size: int


def clean(request: Request, *, force: bool = False, dry_run: bool = False) -> Iterator[Cleaned]:
    """Remove the outputs of the steps that were asked for, and forget these steps; yields each output when it is done.

    Only files that epbuild made go, and only as it made them: one that was changed since stays, unless `force`. With `dry_run` nothing is
    changed. Raises RecipeError, PlanError, EnvironmentFailure and StoreError.
    """
    recipe, plan = read_plan(request)
    wanted = _wanted(plan, request.selection)
    if not dry_run:
        forget(request.recipe)  # should this be killed, the next build has to clean up
    with Workspace.open(workspace_of(request.recipe), create=False) as workspace:
        outputs = Outputs(workspace, recipe.file, request.settings, {})
        for ident in wanted:
            emission = plan.emissions.get(ident)
            if emission is not None:
                with _held(emission, workspace, dry_run=dry_run):
                    output = Emitted(ident, emission.path, _recorded(workspace, ident), Digests(workspace.files), force=force)
                    found = output.sort_out() if dry_run else output.remove(recipe.directory)
                    # The record alone tells that a file which stays is not as epbuild made it: the next `clean` has to know as well.
                    if not dry_run and not found.kept_as("changed since"):
                        workspace.forget_steps([ident])
                        outputs.forget(emission.path)
                yield found
        if not dry_run:
            workspace.forget_steps(ident for ident in wanted if ident in plan.session_groups)


def remove_workspace(recipe: Path, *, dry_run: bool = False) -> Forgotten:
    """Remove all that epbuild remembers beside a recipe. Raises StoreError, also while a build is at work there."""
    directory = workspace_of(recipe)
    size = sum(status.st_size for _, status in files_below(directory))
    if directory.is_dir() and not dry_run:
        check_idle(recipe)
        try:
            shutil.rmtree(directory)
        except OSError as error:
            message = f"Cannot remove {directory}: {error.strerror or error}."
            raise StoreError(
                Problem("EPB507", message, hint="Check the permissions there, and that nothing has it open.")
            ) from error
        Roots(cache_directory()).forget(directory)
    return Forgotten(directory, size)


def check_idle(recipe: Path) -> None:
    """Raises StoreError if a build is at work in the workspace beside a recipe."""
    directory = workspace_of(recipe)
    with Workspace.open(directory, create=False) as workspace:
        if workspace.busy():
            message = f"A build is at work in {directory}."
            raise StoreError(Problem("EPB509", message, hint="Wait until it has ended, or stop it."))


def _wanted(plan: Plan, selection: Collection[str]) -> list[str]:
    """The actions of the steps that were asked for: not of those that these need."""
    return list(
        dict.fromkeys(
            step.action for step in plan.steps if not selection or any(fnmatchcase(step.id, glob) for glob in selection)
        )
    )


def _recorded(workspace: Workspace, step: str) -> dict[str, str]:
    record = workspace.step(step)
    return {name: file["digest"] for name, file in record.result["files"].items()} if record else {}


def _held(emission: Emission, workspace: Workspace, *, dry_run: bool) -> AbstractContextManager[None]:
    """The lease under which a build lays the output out."""
    if dry_run or not workspace.lasting:
        return nullcontext()
    return lease(workspace.directory, lease_name(emission))
