"""Selection of steps by globs over their ids."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from types import MappingProxyType

from epbuild.core.errors import Position, Problem, suggest_nearest
from epbuild.plan.steps import Step

Places = Mapping[str, Position]
"""Positions of the globs that were read from a file, by glob."""
NOWHERE: Places = MappingProxyType({})
_ADD_MEASURE = "The recipe measures nothing: add `measure: {on: device}` to a target or a group."


def match_ids(ids: Mapping[str, object], glob: str) -> list[str]:
    """Return the ids that match a glob. Look up a glob without wildcards directly."""
    if not any(sign in glob for sign in "*?["):
        return [glob] if glob in ids else []
    return [ident for ident in ids if fnmatchcase(ident, glob)]


def select_steps(steps: Iterable[Step], selection: Sequence[str], places: Places = NOWHERE) -> tuple[list[Step], list[Problem]]:
    """Return the steps that match one of the globs, with all steps that they need, and a problem for each unmatched glob.

    If a step of an action is selected, all steps of the action are selected. The steps are in the order of the plan.
    """
    ordered = list(steps)
    if not selection:
        return ordered, []
    by_id = {step.id: step for step in ordered}
    by_action: dict[str, list[Step]] = {}
    for step in ordered:
        by_action.setdefault(step.action, []).append(step)
    waiting: list[str] = []
    unmatched: list[Problem] = []
    for glob in selection:
        found = match_ids(by_id, glob)
        if not found:
            measures = not glob.startswith("measure:") or any(step.kind == "measure" for step in ordered)
            hint = (suggest_nearest(glob, by_id) or "List the steps with `epbuild plan`.") if measures else _ADD_MEASURE
            unmatched.append(Problem("EPB240", f"no step matches '{glob}'", places.get(glob), hint))
        waiting += found
    kept: set[str] = set()
    while waiting:
        action = by_id[waiting.pop()].action
        if action not in kept:
            kept.add(action)
            waiting += (need for sibling in by_action[action] for need in sibling.needs)
    return [step for step in ordered if step.action in kept], unmatched
