"""Snapshots of a session, for the fast path of a run in which nothing has changed."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from epbuild.cache.digests import NONE_UNCHANGED, UnchangedFiles
from epbuild.cache.state import OutputRecord
from epbuild.core.errors import ProblemRecord
from epbuild.core.own_files import list_own_files
from epbuild.core.records import convert
from epbuild.engine.events import Outcome
from epbuild.plan.made import Made
from epbuild.plan.steps import Emission, Plan, Step
from epbuild.recipe.model import Defaults, Recipe
from epbuild.session.lock import HeldLock
from epbuild.session.request import Request
from epbuild.session.toolchains import PlanToolchains
from epbuild.survey.snapshot import (
    UNREADABLE,
    Snapshot,
    describe_identity,
    describe_view,
    get_snapshot_path,
    read,
    read_clock,
    read_unchanged,
)
from epbuild.survey.status import StepStatus, Survey, Surveyor

if TYPE_CHECKING:
    from epbuild.survey.snapshot import Moment

_CURRENT_OUTCOMES = frozenset({"built", "emitted", "restored", "current"})
"""Outcomes after which an action stays current until an input changes."""


def read_last(request: Request, *, refresh: bool = False) -> Snapshot | None:
    """Return the snapshot of a request's last run, or None if anything has changed or the request has work in any case.

    With `refresh`, record the new times of files that were only touched.
    """
    needs_more = request.rebuild_and_compare or request.every_model or request.writes or request.shard is not None
    if needs_more or not request.emits_all:
        return None
    recipe = str(request.recipe)
    snapshot = read_unchanged(recipe, request.settings, request.selection, refresh=refresh)
    # Messages and outputs name files relative to the recipe's path as given, and a doubted lock is checked again.
    if snapshot is None or not snapshot.is_current or snapshot.view != describe_view(recipe) or snapshot.lock == "doubted":
        return None
    return None if request.locked and snapshot.lock != "held" else snapshot


def read_survey(snapshot: Snapshot) -> Survey:
    """Return the survey in a snapshot: all steps are current."""
    records = convert(snapshot.warnings, tuple[ProblemRecord, ...])
    statuses = [
        StepStatus(Step(*step), "current", (), key, outputs, on_real_device=on_device)
        for *step, key, outputs, on_device in snapshot.step_rows()
    ]
    plan = Plan((), {}, tuple(record.problem for record in records), defaults=convert(snapshot.defaults, Defaults))
    return Survey(plan, {}, (), recorded=tuple(statuses))


def find_unchanged_files(request: Request) -> UnchangedFiles:
    """Return the files that are unchanged since the last run of a request. Return no files if that run left no valid snapshot."""
    recipe = str(request.recipe)
    place = get_snapshot_path(recipe, request.settings, request.selection)
    try:
        snapshot = read(place) if place is not None else None
        if snapshot is None or snapshot.identity != describe_identity(recipe):
            return NONE_UNCHANGED
        unchanged = snapshot.list_unchanged()
    except UNREADABLE:
        return NONE_UNCHANGED
    # A plan writes paths relative to the current folder if the path of the recipe is relative.
    named = os.path.join(request.recipe.parent, "").removeprefix(os.path.join(os.curdir, ""))  # noqa: PTH118
    # With an absolute recipe, the current folder is not needed, and may have been deleted.
    absolute = named if os.path.isabs(named) else os.path.join(os.getcwd(), named)  # noqa: PTH109, PTH117, PTH118
    stats, digests = {}, {}
    for seen, digest in unchanged:
        path = seen[0]
        name = named + path[len(absolute) :] if path.startswith(absolute) else path
        stats[name], digests[name] = seen, digest
    return UnchangedFiles(stats, digests)


class ActionEnd(NamedTuple):
    """Key of an action at the end of a run, and whether the action is current until a file changes."""

    key: str | None
    is_current: bool


def find_last_outputs(plan: Plan, surveyor: Surveyor) -> dict[str, OutputRecord]:
    """Return the record of the last output at the path of each emission, by the id of the emission.

    The records are read once for a snapshot, as another recipe's build may write to a path at any moment.
    Files that such a build writes later do not match the digests in these records.
    """
    emissions = [action for action in plan.actions.values() if isinstance(action, Emission)]
    places = {emission.id: surveyor.outputs.place(emission.path) for emission in emissions}
    records = surveyor.memory.read_outputs_at(places.values())
    return {ident: records[place] for ident, place in places.items() if place in records}


def collect_ends(
    found: Survey,
    made: Mapping[str, Made],
    outcomes: Mapping[str, Outcome],
    outputs: Mapping[str, OutputRecord],
    surveyor: Surveyor,
) -> dict[str, ActionEnd]:
    """Return an `ActionEnd` for each action of the plan, by id."""
    needed = {need for action in found.plan.actions.values() for need in action.needs}
    recorded = surveyor.memory.keys(found.plan.emissions)
    ends = {}
    for ident, action in found.plan.actions.items():
        key = made[ident].key if ident in made else found.actions[ident].key
        if isinstance(action, Emission):
            output = outputs.get(ident)
            key = output.action_key if output is not None else key
            # Another recipe's build may have emitted another output to the path.
            stays_current = output is not None and key == recorded.get(ident)
        else:
            stays_current = ident in needed  # a result outside all outputs is only in the store, which must be read each time
        ends[ident] = ActionEnd(key, stays_current and outcomes.get(ident) in _CURRENT_OUTCOMES)
    return ends


def list_observed_files(
    recipe: Recipe,
    toolchains: PlanToolchains,
    lock: HeldLock,
    plan: Plan,
    outputs: Mapping[str, OutputRecord],
    ends: Mapping[str, ActionEnd],
    surveyor: Surveyor,
) -> dict[str, str]:
    """Return all files and folders that a run read or emitted, with their SHA-256, or an empty string if it is unknown.

    The digests in the record of an output count only if the run checked or wrote the output. Otherwise, users may have changed its files.
    """
    shared = [*map(Path, list_own_files()), *((lock.path,) if lock.exists else ())]
    shared += (recipe.directory / catalog.name for catalog in recipe.catalogs)
    read = {**dict.fromkeys(shared, ""), **toolchains.watched(), **dict.fromkeys(recipe.names, ""), **recipe.digests}
    files = {str(path): digest for path, digest in read.items()}
    for action in plan.actions.values():
        files |= {name: surveyor.digests.seen.get(name, "") for name in map(str, action.files)}
        if isinstance(action, Emission) and (output := outputs.get(action.id)) is not None:
            emitted = _list_output_files(action, output)
            files |= emitted if ends[action.id].is_current else dict.fromkeys(emitted, "")
    return files | dict.fromkeys(map(str, (*plan.folders, *plan.reports)), "")


def list_touched_files(found: Survey, outputs: Mapping[str, OutputRecord]) -> Iterator[str]:
    """Yield the paths of the files whose stats a run may have changed: outputs that it wrote, and inputs that it linked."""
    for ident in found.todo:
        yield from map(str, found.plan.actions[ident].files)
        if ident in outputs:
            yield from _list_output_files(found.plan.emissions[ident], outputs[ident])


def _list_output_files(emission: Emission, output: OutputRecord) -> dict[str, str]:
    """Return the digest of each emitted file, by path."""
    root = os.path.join(emission.root, "")  # noqa: PTH118 - runs for tens of thousands of files
    return {f"{root}{name.replace('/', os.sep)}": str(file["digest"]) for name, file in output.files.items()}


def estimate_clock(begin: float, recipe: Path) -> Moment | None:
    """Estimate what the workspace's clock showed at the monotonic time `begin`. Return None if the clock cannot be read."""
    now = read_clock(str(recipe))
    return (now[0] - int((time.monotonic() - begin) * 1e9), now[1]) if now is not None else None
