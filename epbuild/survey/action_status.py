"""States of actions, and selection of the actions that have to run.

current       the action has a result, and its outputs are in place
restorable    the action has a result, so that outputs can be written without a compile
out of date   an input has changed, or the store has lost the result
new           the action never ran here, and the store has no result
failed        the last run failed, and no input has changed since; only `--retry` runs the action again
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Any, Literal

from msgspec import Struct, field

from epbuild.plan.made import Made
from epbuild.plan.steps import Action, Emission, Plan

StepState = Literal["current", "restorable", "out of date", "new", "failed"]


class ActionStatus(Struct, frozen=True):
    """State of one action, and the reasons for it.

    `key` is None if the toolchain is unknown, an input file has not been fetched, or a needed action has no result. `made` is None if
    the action has no result.
    """

    state: StepState
    reasons: tuple[str, ...]
    key: str | None = None
    document: Mapping[str, Any] = field(default_factory=dict)
    made: Made | None = None
    remote: bool = False
    """True if only the remote cache has the result."""


def must_run(action: Action, status: ActionStatus, *, is_read: bool) -> bool:
    """Return whether a needed action has to run.

    An emission has to run unless its output is in place. A result in the remote cache is fetched only if `is_read` is true: another
    action that has to run reads the result.
    """
    if isinstance(action, Emission):
        return status.state != "current"
    return is_read if status.remote else status.state in ("out of date", "new", "failed")


def sort_into_waves(actions: Mapping[str, Action]) -> list[list[Action]]:
    """Return actions in waves. Each action is in a later wave than all actions that it needs."""
    depths: dict[str, int] = {}
    found: list[list[Action]] = []
    for ident, action in actions.items():
        depth = depths[ident] = max((depths[need] + 1 for need in action.needs), default=0)
        if depth == len(found):
            found.append([])
        found[depth].append(action)
    return found


class Work(Struct, frozen=True):
    """Ids of the actions with `wanted` results, and ids of the wanted actions that have to run (`todo`), in dependency order."""

    wanted: Set[str]
    todo: tuple[str, ...]

    @classmethod
    def of(cls, plan: Plan, found: Mapping[str, ActionStatus]) -> Work:
        """Select the actions of a plan whose results are wanted, and the actions that have to run.

        A result is wanted if an action that runs reads it, or if the action is final, so that no other action needs its result.
        """
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
