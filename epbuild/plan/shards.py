"""Shards of a plan, for n equal jobs that know nothing of each other.

What is split are the actions whose results are stored; outputs are left to a job that comes after. It is decided by the recipe and the
files beside it alone, before anything is looked up: whatever a job has in its store, and whatever the remote cache has by then, it is
the same split in each of them.
"""

from __future__ import annotations

from msgspec import Struct

from epbuild.plan.packing import bundles, names, pack
from epbuild.plan.steps import Action, Emission, Plan, SessionGroup

_BYTES_PER_STEP = 50_000_000
"""The bytes of models that count as much as one step more."""


class Shard(Struct, frozen=True):
    """One of several parts of a plan; `number` counts from 1."""

    number: int
    total: int

    def __str__(self) -> str:
        return f"{self.number}/{self.total}"

    @classmethod
    def parse(cls, text: str) -> Shard:
        """Read `i/n`. Raises ValueError."""
        number, slash, total = text.partition("/")
        if not slash or not all(part.isascii() and part.isdigit() for part in (number, total)):
            raise ValueError("Write i/n, such as 2/5, or auto.")
        if not 1 <= int(number) <= int(total):
            raise ValueError("i is at least 1 and at most n.")
        return cls(int(number), int(total))


def steps_of(plan: Plan, shard: Shard) -> tuple[str, ...]:
    """The steps that are a shard's own, by the ids that select them with all that they need; none where there are fewer than shards.

    The plan has to be one in which no remote model was located: some may be here, others not.
    """
    actions = {ident: action for ident, action in plan.actions.items() if not isinstance(action, Emission)}
    jobs = pack(bundles(actions, {ident: _weight(action) for ident, action in actions.items()}), shard.total)
    return names(actions, jobs[shard.number - 1]) if shard.number <= len(jobs) else ()


def _weight(action: Action) -> int:
    """What an action counts for: its steps, and the bytes of its files that are known."""
    files = set(action.files)
    if isinstance(action, SessionGroup):
        files.update(path for member in action.members if member.original is not None for path in member.original.all)
    return len(action.steps) * _BYTES_PER_STEP + sum(path.stat().st_size for path in files)
