"""Outstanding work of a recipe, as jobs of a CI system or actions for a cluster."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing

from msgspec import Struct

from epbuild.cache.workspace import Workspace
from epbuild.cluster.address import ClusterAddress
from epbuild.cluster.dask_client import DaskExecutor
from epbuild.cluster.placement import EP_LABEL, PLATFORM_LABEL, REAL_LABEL, Offer, list_needed_labels, parse_eps
from epbuild.commands.plan import survey
from epbuild.core.errors import Problem
from epbuild.engine.events import Progress
from epbuild.session.lock import get_lock_path, read_lock_text
from epbuild.session.planning import get_workspace_folder
from epbuild.session.request import Request
from epbuild.survey.costs import estimate_seconds
from epbuild.survey.jobs import Label, RunnerJob, Runners, find_missing_actions, pack_jobs
from epbuild.survey.status import Survey

RUNNERS: Mapping[str, Label] = {
    "linux-x86_64": "ubuntu-24.04",
    "linux-arm64": "ubuntu-24.04-arm",
    "windows-x86_64": "windows-2025",
    "windows-arm64": "windows-11-arm",
    "macos-arm64": "macos-15",
    "macos-x86_64": "macos-15-intel",
}
"""Labels of GitHub's hosted runners, by platform."""


class JobMatrix(Struct, frozen=True):
    """Jobs for a CI system, longest first, with warnings."""

    jobs: tuple[RunnerJob, ...]
    warnings: tuple[Problem, ...]


def build_matrix(request: Request, most: int, labels: Mapping[str, Label], progress: Progress | None = None) -> JobMatrix:
    """Return jobs for the outstanding work, at most `most` for each runner label. `labels` overrides RUNNERS.

    Raises the same errors as `survey`.
    """
    found = survey(request, progress=progress)
    missing = find_missing_actions(found)
    if not missing:
        return JobMatrix((), found.plan.warnings)
    with Workspace.open(get_workspace_folder(request.recipe), create=False) as workspace:
        seconds = estimate_seconds(found, workspace, workspace.memory(found.configuration))
    jobs, warnings = pack_jobs(missing, seconds, Runners({**RUNNERS, **labels}, list_locked_platforms(request)), most)
    return JobMatrix(tuple(jobs), (*found.plan.warnings, *warnings))


def list_locked_platforms(request: Request) -> dict[str, tuple[str, ...]]:
    """Return the platforms that each toolchain is locked for, by toolchain. Without a lock, return an empty mapping."""
    path = get_lock_path(request.recipe)
    text = read_lock_text(path)
    if text is None:
        return {}
    from epbuild.toolchain.lock_file import read_lock

    return {name: tuple(toolchain.platforms) for name, toolchain in read_lock(text, str(path)).toolchains.items()}


class UnfitMachine(Struct, frozen=True, order=True):
    """Machine that cannot run certain actions, with the reason as a clause."""

    machine: str
    why: str


class Workload(Struct, frozen=True):
    """Actions that need the same labels, with their total time and the machines that can run them."""

    platform: str
    eps: tuple[str, ...]
    """EPs that the actions need; empty for preparations."""
    actions: int
    seconds: float
    machines: tuple[str, ...]
    slots: int
    """Number of actions that the machines can execute at once."""
    real_device: bool = False
    """True if the actions run compiled models on a real device."""
    untried: tuple[str, ...] = ()
    """Machines that accept the actions, but have not yet tested the EPs that the actions need."""
    others: tuple[UnfitMachine, ...] = ()
    """Machines that cannot run the actions."""

    @property
    def likely_seconds(self) -> float | None:
        """Estimated seconds that `machines` need for the actions, or None if no machine can run them."""
        return self.seconds / min(self.slots, self.actions) if self.slots else None


def list_workloads(request: Request, found: Survey, address: ClusterAddress) -> tuple[Workload, ...]:
    """Return the outstanding work, grouped by requirements, longest first. Raises EpbuildError if the scheduler is unreachable."""
    with closing(DaskExecutor(address, threading.Event())) as executor:
        return list_workloads_on(executor.offers(), request, found)


def list_workloads_on(offers: Sequence[Offer], request: Request, found: Survey) -> tuple[Workload, ...]:
    """Return the outstanding work for known machines, grouped by requirements, longest first."""
    missing, runners = find_missing_actions(found), Runners({}, list_locked_platforms(request))
    with Workspace.open(get_workspace_folder(request.recipe), create=False) as workspace:
        seconds = estimate_seconds(found, workspace, workspace.memory(found.configuration))
    groups: dict[frozenset[str], list[str]] = {}
    for ident, action in missing.items():
        groups.setdefault(list_needed_labels(action, runners.platforms(action)[0]), []).append(ident)
    loads = []
    for labels, actions in groups.items():
        [platform] = (label.removeprefix(PLATFORM_LABEL) for label in labels if label.startswith(PLATFORM_LABEL))
        serving = [offer for offer in offers if offer.serves(labels)]
        tried = {label for label in labels if label.startswith((EP_LABEL, REAL_LABEL))}
        loads.append(
            Workload(
                platform=platform,
                eps=parse_eps(labels),
                actions=len(actions),
                seconds=sum(seconds[ident] for ident in actions),
                machines=tuple(sorted(offer.machine for offer in serving)),
                slots=sum(offer.slots for offer in serving),
                real_device=any(label.startswith(REAL_LABEL) for label in labels),
                untried=tuple(sorted(offer.machine for offer in serving if not tried <= offer.tried.keys())),
                others=tuple(sorted(_find_unfit_machines(tried, offers))),
            )
        )
    return tuple(sorted(loads, key=lambda load: -load.seconds))


def _find_unfit_machines(labels: Collection[str], offers: Sequence[Offer]) -> Iterator[UnfitMachine]:
    for offer in offers:
        probes = (offer.tried[label] for label in sorted(labels) if label in offer.tried)
        why = next((why for outcome, why in probes if outcome == "cannot"), None)
        if why is not None:
            yield UnfitMachine(offer.machine, why)
