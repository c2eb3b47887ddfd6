"""`ActionStatus`: where one action stands, and which actions have to run.

current       done, and its outputs are in place
restorable    its result is known; outputs can be put in place without a compile
out of date   something that it depends on has changed
new           it was never done here, and nobody's result for it is in the store
failed        it failed the last time, and nothing has changed since: it is not tried again, unless that is asked for
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Any, Literal

from msgspec import Struct, field

from epbuild.plan.made import Made
from epbuild.plan.steps import Action, Emission, Plan

StepState = Literal["current", "restorable", "out of date", "new", "failed"]


class ActionStatus(Struct, frozen=True):
    """Where one action stands.

    `key` is None while a toolchain that it depends on is not there, or something that it needs is not made; `made` while there is no
    result.
    """

    state: StepState
    reasons: tuple[str, ...]
    key: str | None = None
    document: Mapping[str, Any] = field(default_factory=dict)
    made: Made | None = None
    remote: bool = False
    """Whether its result is in the remote cache, and not here."""


def must_run(action: Action, status: ActionStatus, *, is_read: bool) -> bool:
    """Whether there is work for an action whose result is needed; what is in the remote cache is fetched only if it `is_read`.

    An output has to be put in place, a result only has to be there.
    """
    if isinstance(action, Emission):
        return status.state != "current"
    return is_read if status.remote else status.state in ("out of date", "new", "failed")


def waves(actions: Mapping[str, Action]) -> list[list[Action]]:
    """The actions, each in a later wave than all that it needs."""
    depths: dict[str, int] = {}
    found: list[list[Action]] = []
    for ident, action in actions.items():
        depth = depths[ident] = max((depths[need] + 1 for need in action.needs), default=0)
        if depth == len(found):
            found.append([])
        found[depth].append(action)
    return found


class Work(Struct, frozen=True):
    """What there is to do: the actions whose results have to be known, and in order those of them that have to run."""

    wanted: Set[str]
    todo: tuple[str, ...]

    @classmethod
    def of(cls, plan: Plan, found: Mapping[str, ActionStatus]) -> Work:
        """Results are needed for what has to run, and where nothing is made of them."""
        needed = {need for action in plan.actions.values() for need in action.needs}
        read, wanted, todo = set[str](), set[str](), list[str]()
        for ident, action in reversed(list(plan.actions.items())):
            if ident in needed and ident not in wanted:
                continue
            wanted.add(ident)
            if must_run(action, found[ident], is_read=ident in read):
                todo.append(ident)
                if not found[ident].remote:
                    wanted.update(action.needs)
                if not found[ident].remote and not (isinstance(action, Emission) and action.push_only):
                    read.update(action.needs)
        return cls(wanted, tuple(reversed(todo)))
