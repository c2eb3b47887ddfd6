"""Snapshots of a session: the answer for a run that finds nothing changed."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from epbuild.cache.state import OutputRecord
from epbuild.core.errors import ProblemRecord
from epbuild.core.own_files import own_files
from epbuild.core.records import convert
from epbuild.engine.events import Outcome
from epbuild.plan.made import Made
from epbuild.plan.preparing import Preparation
from epbuild.plan.steps import Emission, Plan, Step
from epbuild.recipe.model import Recipe
from epbuild.session.lock import HeldLock
from epbuild.session.request import Request
from epbuild.session.toolchains import PlanToolchains
from epbuild.survey.snapshot import Snapshot, clock, read_unchanged, view_of
from epbuild.survey.status import StepStatus, Survey, Surveyor

if TYPE_CHECKING:
    from epbuild.survey.snapshot import Moment

_SETTLED = frozenset({"built", "emitted", "restored", "current"})
"""Outcomes after which an action stays current until an input changes."""


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
    records = convert(found.warnings, tuple[ProblemRecord, ...])
    statuses = [
        StepStatus(Step(*step), "current", (), key, outputs, on_real_device=on_device)
        for *step, key, outputs, on_device in found.step_rows()
    ]
    return Survey(Plan((), {}, tuple(record.problem for record in records)), {}, (), recorded=tuple(statuses))


class ActionEnd(NamedTuple):
    """Key of an action at the end of a run, and whether the action is current until a file changes."""

    key: str | None
    is_current: bool


def last_outputs(plan: Plan, surveyor: Surveyor) -> dict[str, OutputRecord]:
    """Return what was last written to the place of each emission, by its id.

    It is read once for a snapshot: another recipe's build may write to the place at any moment. If it does so later, the files do not have
    the digests in these records.
    """
    emissions = [action for action in plan.actions.values() if isinstance(action, Emission)]
    return {one.id: output for one in emissions if (output := surveyor.outputs.last(one.path)) is not None}


def ends_of_actions(
    found: Survey,
    made: Mapping[str, Made],
    outcomes: Mapping[str, Outcome],
    outputs: Mapping[str, OutputRecord],
    surveyor: Surveyor,
) -> dict[str, ActionEnd]:
    """Return how each action of the plan ended."""
    needed = {need for action in found.plan.actions.values() for need in action.needs}
    recorded = surveyor.memory.keys(found.plan.emissions)
    ends = {}
    for ident, action in found.plan.actions.items():
        key = made[ident].key if ident in made else found.actions[ident].key
        if isinstance(action, Emission):
            output = outputs.get(ident)
            key = output.action_key if output is not None else key
            # Another recipe's build may have emitted something else there.
            lasts = output is not None and key == recorded.get(ident)
        else:
            lasts = ident in needed  # a result that no output is made of is in the store only, and is looked up each time
        ends[ident] = ActionEnd(key, lasts and outcomes.get(ident) in _SETTLED)
    return ends


def observed_files(
    recipe: Recipe,
    toolchains: PlanToolchains,
    lock: HeldLock,
    plan: Plan,
    outputs: Mapping[str, OutputRecord],
    surveyor: Surveyor,
) -> dict[str | Path, str]:
    """Return all files and folders that a run read or emitted, with their SHA-256 where it is known."""
    shared = [*map(Path, own_files()), *((lock.path,) if lock.exists else ())]
    shared += (recipe.directory / catalog.name for catalog in recipe.catalogs)
    known = {**dict.fromkeys(shared, ""), **toolchains.watched(), **dict.fromkeys(recipe.names, ""), **recipe.digests}
    files: dict[str | Path, str] = {**known}
    for action in plan.actions.values():
        files |= {path: surveyor.digests.seen.get(path, "") for path in action.files}
        if isinstance(action, Emission) and (output := outputs.get(action.id)) is not None:
            root = os.path.join(action.root, "")  # noqa: PTH118 - each of tens of thousands of files, once
            files |= {f"{root}{name.replace('/', os.sep)}": str(file["digest"]) for name, file in output.files.items()}
        if isinstance(action, Preparation):
            files |= dict.fromkeys(action.folders, "")
    return files


def clock_at(begin: float, recipe: Path) -> Moment | None:
    """Return the time of a workspace's clock at the moment `begin` of this process, when there was no workspace yet."""
    now = clock(str(recipe))
    return (now[0] - int((time.monotonic() - begin) * 1e9), now[1]) if now is not None else None
