"""Shards of a plan, for n jobs that do not communicate.

Shards contain all actions except emissions. A later job emits the outputs. The split depends only on the recipe and the files beside
the recipe. It is therefore the same in every job, even if the stores of the jobs differ.
"""

from __future__ import annotations

from msgspec import Struct

from epbuild.plan.packing import make_bundles, pack, select_ids
from epbuild.plan.steps import Action, Emission, Plan, SessionGroup

_BYTES_PER_STEP = 50_000_000
"""Size of model files that has the same weight as one step."""


class Shard(Struct, frozen=True):
    """One of several parts of a plan. `number` starts at 1."""

    number: int
    total: int

    def __str__(self) -> str:
        return f"{self.number}/{self.total}"

    @classmethod
    def parse(cls, text: str) -> Shard:
        """Parse `i/n`. Raises ValueError whose message is a hint for users."""
        number, slash, total = text.partition("/")
        if not slash or not all(part.isascii() and part.isdigit() for part in (number, total)):
            raise ValueError("Write i/n, such as 2/5, or auto.")
        if not 1 <= int(number) <= int(total):
            raise ValueError("i must be between 1 and n.")
        return cls(int(number), int(total))


def select_shard(plan: Plan, shard: Shard) -> tuple[str, ...]:
    """Return the ids that select the steps of a shard and the steps that they need. Return no ids if the shard is empty.

    The plan must be computed without locating remote models, because different jobs may have fetched different models.
    """
    actions = {ident: action for ident, action in plan.actions.items() if not isinstance(action, Emission)}
    jobs = pack(make_bundles(actions, {ident: _compute_weight(action) for ident, action in actions.items()}), shard.total)
    return select_ids(actions, jobs[shard.number - 1]) if shard.number <= len(jobs) else ()


def _compute_weight(action: Action) -> int:
    """Return the weight of an action, based on the number of its steps and the bytes of its known files."""
    files = set(action.files)
    if isinstance(action, SessionGroup):
        files.update(path for member in action.members if member.original is not None for path in member.original.all)
    return len(action.steps) * _BYTES_PER_STEP + sum(path.stat().st_size for path in files)
