"""CI jobs that produce missing results."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from msgspec import Struct

from epbuild.core.errors import Problem
from epbuild.core.units import format_count
from epbuild.plan.packing import make_bundles, pack, select_ids
from epbuild.plan.possible import find_obstacle
from epbuild.plan.steps import Action, Emission, InTarget
from epbuild.survey.status import Survey
from epbuild.toolchain.platforms import PYTHON_SYSTEMS, get_own_platform

Label = str | tuple[str, ...]
"""Label of a runner, or all labels that a runner must have."""


class RunnerJob(Struct, frozen=True):
    """CI job: the label of its runner, the steps to select, and the expected seconds of work."""

    runner: Label
    steps: tuple[str, ...]
    seconds: float


@dataclass(frozen=True)
class Runners:
    """Available runners: the runner label of each platform, and the locked platforms of each toolchain."""

    labels: Mapping[str, Label]
    locked: Mapping[str, Sequence[str]]
    here: str = get_own_platform() or ""

    def platforms(self, action: Action) -> Sequence[str]:
        """Return the platforms on which an action can run, best first: this platform, then the platforms in the recipe or the lock."""
        toolchain = action.runs_in.toolchain if action.runs_in is not None else None
        others = (toolchain.platforms or self.locked.get(toolchain.name, ())) if toolchain is not None else ()
        return list_possible_platforms(action, self.here, sys.platform, others) or (self.here,)

    def label(self, platform: str) -> Label:
        return self.labels.get(platform, platform)


def find_missing_actions(found: Survey) -> dict[str, Action]:
    """Return the actions whose results are needed and are neither in the store nor in the remote cache."""
    actions = found.plan.actions
    return {
        ident: actions[ident]
        for ident in found.todo
        if not isinstance(actions[ident], Emission) and not found.actions[ident].remote
    }


def pack_jobs(
    missing: Mapping[str, Action], seconds: Mapping[str, float], runners: Runners, most: int
) -> tuple[list[RunnerJob], tuple[Problem, ...]]:
    """Pack the missing actions into at most `most` jobs for each label. The longest jobs come first.

    Actions that need a result from another platform's job are excluded. A warning states the number of excluded actions.
    """
    platforms = dict(_assign_platforms(missing, seconds, runners))
    waiting: set[str] = set()
    for ident, action in missing.items():
        for need in action.needs:
            if need in missing and (need in waiting or platforms[need] != platforms[ident]):
                waiting.add(ident)
    classes: dict[Label, dict[str, Action]] = {}
    for ident, action in missing.items():
        if ident not in waiting:
            classes.setdefault(runners.label(platforms[ident]), {})[ident] = action
    found = [
        RunnerJob(label, select_ids(actions, job), sum(bundle.cost for bundle in job))
        for label, actions in classes.items()
        for job in pack(make_bundles(actions, seconds), most)
    ]
    return sorted(found, key=lambda job: -job.seconds), tuple(_make_warnings(waiting))


def _assign_platforms(missing: Mapping[str, Action], seconds: Mapping[str, float], runners: Runners) -> Iterable[tuple[str, str]]:
    """Yield each action's id and platform: one on which the whole bundle can run if possible, or else the best one for the action."""
    for bundle in make_bundles(missing, seconds):
        possible = {ident: runners.platforms(missing[ident]) for ident in bundle.actions}
        first = possible[bundle.actions[0]]
        common = [platform for platform in first if all(platform in others for others in possible.values())]
        for ident, own in possible.items():
            yield ident, (common or own)[0]


def _make_warnings(waiting: Iterable[str]) -> Iterable[Problem]:
    left = sorted(waiting)
    if left:
        message = f"{format_count(len(left), 'step')} must wait for results from jobs on another platform: {left[0]}"
        yield Problem("EPB279", message + (", ..." if left[1:] else ""), None, "Plan again after these jobs have finished.")


def list_possible_platforms(action: Action, here: str, system: str, others: Iterable[str]) -> tuple[str, ...]:
    """Return the platforms on which an action can run, best first: `here`, then `others`.

    `system` is the `sys.platform` of `here`. A platform is excluded if, according to the catalog, an EP of the target cannot compile
    on it. `here` is also excluded if the recipe lists only other platforms for the toolchain.
    """
    others = tuple(other for other in others if other != here)
    toolchain = action.runs_in.toolchain if action.runs_in is not None else None
    is_meant = toolchain is None or not toolchain.platforms or here in toolchain.platforms or not others
    systems = {**({here: system} if is_meant else {}), **{other: PYTHON_SYSTEMS[other] for other in others}}
    return tuple(
        name for name, of in systems.items() if not isinstance(action, InTarget) or find_obstacle(action.target, of) is None
    )
