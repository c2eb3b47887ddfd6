"""Packing of actions into jobs for other machines, longest first.

Actions that need a common result are in the same job as the action that produces the result. Two machines could produce this result with
different bytes. Actions that use the result would then have different keys, and other jobs would not find their results. Packing is
deterministic for equal actions and costs.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from epbuild.plan.steps import Action


class Bundle(Struct, frozen=True):
    """Actions that must be in the same job, and their expected total cost."""

    actions: tuple[str, ...]
    """Ids of the actions, in dependency order."""
    cost: float

    @property
    def rank(self) -> tuple[float, str]:
        """Sort key, which sorts by descending cost and then by id."""
        return -self.cost, min(self.actions)


def make_bundles(actions: Mapping[str, Action], costs: Mapping[str, float]) -> list[Bundle]:
    """Split actions into as many bundles as possible, longest first. Actions that are connected by needs are in the same bundle."""
    heads = {ident: ident for ident in actions}

    def head(ident: str) -> str:
        while heads[ident] != ident:
            heads[ident] = ident = heads[heads[ident]]
        return ident

    for ident, action in actions.items():
        for need in action.needs:
            if need in heads:
                heads[head(need)] = head(ident)
    members: dict[str, list[str]] = {}
    for ident in actions:
        members.setdefault(head(ident), []).append(ident)
    found = (Bundle(tuple(names), sum(sorted(costs[name] for name in names))) for names in members.values())
    return sorted(found, key=lambda bundle: bundle.rank)


def pack(found: Iterable[Bundle], max_jobs: int) -> list[list[Bundle]]:
    """Pack bundles into at most `max_jobs` jobs, and return the jobs. No job is empty.

    Assign each bundle, costliest first, to the job with the least work. Among jobs with equal work, prefer the job with the fewest
    bundles, which also distributes bundles of cost 0. `max_jobs` is at least 1.
    """
    jobs: list[list[Bundle]] = [[] for _ in range(max_jobs)]
    loads = [(0.0, 0, number) for number in range(max_jobs)]
    for bundle in sorted(found, key=lambda bundle: bundle.rank):
        load, count, number = loads[0]
        jobs[number].append(bundle)
        heapq.heapreplace(loads, (load + bundle.cost, count + 1, number))
    return [job for job in jobs if job]


def select_ids(actions: Mapping[str, Action], job: Sequence[Bundle]) -> tuple[str, ...]:
    """Return the ids of a job's actions that no other action of the job needs. Selecting these ids also selects all other actions."""
    inside = [ident for bundle in job for ident in bundle.actions]
    needed = {need for ident in inside for need in actions[ident].needs}
    return tuple(ident for ident in inside if ident not in needed)
