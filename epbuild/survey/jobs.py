"""Jobs that make what is missing, for the runners of a CI system."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from msgspec import Struct

from epbuild.core.errors import Problem
from epbuild.core.units import counted
from epbuild.plan.packing import bundles, names, pack
from epbuild.plan.steps import Action, Emission
from epbuild.survey.platforms import possible_platforms
from epbuild.survey.status import Survey
from epbuild.toolchain.platforms import platform_here

Label = str | tuple[str, ...]
"""What a CI system starts a job by: one label of a runner, or several that it must have."""


class RunnerJob(Struct, frozen=True):
    """One job: where it runs, the steps that select what it makes, and the seconds of work that this is likely to be."""

    runner: Label
    steps: tuple[str, ...]
    seconds: float


@dataclass(frozen=True)
class Runners:
    """The runners that there are: their label for each platform, and the platforms that each toolchain is locked for."""

    labels: Mapping[str, Label]
    locked: Mapping[str, Sequence[str]]
    here: str = platform_here() or ""

    def platforms(self, action: Action) -> Sequence[str]:
        """Where an action can be done, the best first: here, on those that the recipe has for its toolchain, on those of the lock."""
        toolchain = action.runs_in.toolchain if action.runs_in is not None else None
        others = (toolchain.platforms or self.locked.get(toolchain.name, ())) if toolchain is not None else ()
        return possible_platforms(action, self.here, sys.platform, others) or (self.here,)

    def label(self, platform: str) -> Label:
        return self.labels.get(platform, platform)


def missing_actions(found: Survey) -> dict[str, Action]:
    """The actions that have to be made: their results are needed, and neither in the store nor in the remote cache."""
    actions = found.plan.actions
    return {
        ident: actions[ident]
        for ident in found.todo
        if not isinstance(actions[ident], Emission) and not found.actions[ident].remote
    }


def jobs_of(
    missing: Mapping[str, Action], seconds: Mapping[str, float], runners: Runners, most: int
) -> tuple[list[RunnerJob], tuple[Problem, ...]]:
    """At most so many jobs for each label, the longest first, and a warning where something has to wait for other jobs."""
    platforms = dict(_platforms(missing, seconds, runners))
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
        RunnerJob(label, names(actions, job), sum(bundle.cost for bundle in job))
        for label, actions in classes.items()
        for job in pack(bundles(actions, seconds), most)
    ]
    return sorted(found, key=lambda job: -job.seconds), tuple(_warnings(waiting))


def _platforms(missing: Mapping[str, Action], seconds: Mapping[str, float], runners: Runners) -> Iterable[tuple[str, str]]:
    """The platform that each action is done on: where all can be that stay together, or else each where it can be."""
    for bundle in bundles(missing, seconds):
        possible = {ident: runners.platforms(missing[ident]) for ident in bundle.actions}
        first = possible[bundle.actions[0]]
        common = [platform for platform in first if all(platform in others for others in possible.values())]
        for ident, own in possible.items():
            yield ident, (common or own)[0]


def _warnings(waiting: Iterable[str]) -> Iterable[Problem]:
    left = sorted(waiting)
    if left:
        message = (
            f"{counted(len(left), 'step')} cannot be made before the results of another platform's jobs are there: {left[0]}"
        )
        yield Problem("EPB279", message + (", ..." if left[1:] else ""), None, "Plan again once these jobs are done.")
