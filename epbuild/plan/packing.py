"""Actions packed into jobs of other machines, longest first.

What is made of a common result stays together with that result: two machines that make it may get other bytes, and what is made of these
has other keys, under which no other job looks for it. The same actions with the same costs are packed the same everywhere.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from epbuild.plan.steps import Action


class Bundle(Struct, frozen=True):
    """Actions that stay together, with what they are likely to cost in all."""

    actions: tuple[str, ...]
    """Their ids, each after those that it needs."""
    cost: float

    @property
    def rank(self) -> tuple[float, str]:
        """The longest first, and then by name."""
        return -self.cost, min(self.actions)


def bundles(actions: Mapping[str, Action], costs: Mapping[str, float]) -> list[Bundle]:
    """The actions in as many bundles as there can be, those that need each other or the same together. Longest first."""
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


def pack(found: Iterable[Bundle], most: int) -> list[list[Bundle]]:
    """At most so many jobs: each bundle, longest first, goes to the job that has the least to do. None of the jobs is empty."""
    jobs: list[list[Bundle]] = [[] for _ in range(most)]
    loads = [(0.0, number) for number in range(most)]
    for bundle in sorted(found, key=lambda bundle: bundle.rank):
        load, number = loads[0]
        jobs[number].append(bundle)
        heapq.heapreplace(loads, (load + bundle.cost, number))
    return [job for job in jobs if job]


def names(actions: Mapping[str, Action], job: Sequence[Bundle]) -> tuple[str, ...]:
    """The ids that a job is named by: of the actions that no other one of it needs, the others follow."""
    inside = [ident for bundle in job for ident in bundle.actions]
    needed = {need for ident in inside for need in actions[ident].needs}
    return tuple(ident for ident in inside if ident not in needed)
