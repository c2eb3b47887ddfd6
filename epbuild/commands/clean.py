"""Removal of emitted outputs and of the records of their steps.

Files that epbuild did not write are kept. The cache keeps its results.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

from msgspec import Struct

from epbuild.actions.types import is_stored
from epbuild.cache.digests import Digests
from epbuild.cache.entries import list_files_below
from epbuild.cache.errors import translate_os_errors
from epbuild.cache.location import find_cache_directory
from epbuild.cache.roots import Roots
from epbuild.cache.state import Configuration
from epbuild.cache.workspace import Workspace
from epbuild.core.entries import HiddenFolders
from epbuild.core.errors import Problem, StoreError
from epbuild.core.file_use import retry_in_use
from epbuild.core.shown import format_path
from epbuild.engine.events import NoProgress, Progress
from epbuild.plan.selection import match_ids
from epbuild.publish.removal import Cleaned, EmittedFiles, Reason
from epbuild.session.events import HashingEvents
from epbuild.session.planning import ReadVariables, get_workspace_folder, read_plan
from epbuild.session.request import Request
from epbuild.survey.orphans import Outputs
from epbuild.survey.snapshot import forget


class Forgotten(Struct, frozen=True):
    """Workspace that was removed as a whole, with its size in bytes."""

    directory: Path
    size: int


def clean(request: Request, progress: Progress | None = None, *, force: bool = False, dry_run: bool = False) -> Iterator[Cleaned]:
    """Remove the outputs and the records of the requested steps, and yield each output after its removal.

    Only unchanged files that epbuild wrote are removed. With `force`, changed files are removed too. With `dry_run`,
    nothing is removed.

    Raises RecipeError, PlanError, EnvironmentFailure and StoreError.
    """
    variables = ReadVariables()
    recipe, plan = read_plan(request, environment=variables)
    globs = request.selection or ("*",)
    # The plan also contains the dependencies of the requested steps. Exclude them.
    ids = {step.id: step.action for step in plan.steps}
    asked = {ident for glob in globs for ident in match_ids(ids, glob)}
    wanted = dict.fromkeys(action for ident, action in ids.items() if ident in asked)
    emissions = [plan.emissions[ident] for ident in wanted if ident in plan.emissions]
    if not dry_run:
        forget(str(request.recipe))  # If this process is killed, the next build cleans up.
    with Workspace.open(get_workspace_folder(request.recipe), create=False) as workspace:
        memory = workspace.memory(Configuration.of(recipe.file, request.settings, variables.seen))
        outputs = Outputs(workspace, memory)
        hidden = HiddenFolders()
        claimed = outputs.claimed(emission.path for emission in emissions)
        for emission in emissions:
            with nullcontext() if dry_run or not workspace.is_on_disk else outputs.held(emission.path):
                output = outputs.last(emission.path)
                others = outputs.others(output, recipes=True) if output is not None else ()
                if others:
                    why: Reason = "of another recipe"
                    found = Cleaned(emission.id, emission.path, emission.path, (), 0, {"": why}, others[0].recipe)
                else:
                    recorded = {name: file["digest"] for name, file in output.files.items()} if output is not None else {}
                    digests = Digests(workspace.files, HashingEvents(NoProgress() if progress is None else progress).counting)
                    emitted = EmittedFiles(emission.id, emission.path, recorded, digests, force=force, claimed=claimed)
                    found = emitted.plan_removal() if dry_run else emitted.remove(recipe.directory, hidden)
                # Keep the record of changed files. The next `clean` needs the record to recognize the files.
                if not dry_run and not found.kept_for("changed since"):
                    memory.forget_steps([emission.id])
                    if output is not None:
                        # Release the output for all settings of the recipe.
                        memory.release(output.place, [owner for owner in output.owners if owner not in others])
            yield found
        if not dry_run:
            memory.forget_steps(ident for ident in wanted if is_stored(plan.actions[ident]))


def remove_workspace(recipe: Path, *, dry_run: bool = False) -> Forgotten:
    """Remove the workspace of a recipe. Raises StoreError, for example while a build runs in it."""
    directory = get_workspace_folder(recipe)
    size = sum(status.st_size for _, status in list_files_below(directory))
    if directory.is_dir() and not dry_run:
        check_idle(recipe)
        with translate_os_errors("remove {}", directory, code="EPB507", elsewhere=None):
            retry_in_use(lambda: shutil.rmtree(directory))
        Roots(find_cache_directory()).forget(directory)
    return Forgotten(directory, size)


def check_idle(recipe: Path) -> None:
    """Raise StoreError if a build runs in the workspace of a recipe."""
    directory = get_workspace_folder(recipe)
    with Workspace.open(directory, create=False) as workspace:
        if workspace.is_busy():
            message = f"a build is running in {format_path(directory)}"
            raise StoreError(Problem("EPB509", message, hint="Wait until it has finished, or stop it."))
