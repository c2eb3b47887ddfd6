"""Kinds of action whose results the store keeps; emissions are another kind."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import ValidationError

from epbuild.plan.preparing import Preparation
from epbuild.plan.result import ActionResult
from epbuild.plan.steps import Action, SessionGroup
from epbuild.plan.verification import Verification
from epbuild.survey.kind import Kind
from epbuild.survey.preparations import Preparations
from epbuild.survey.session_groups import SessionGroups
from epbuild.survey.verifications import Verifications

KINDS: Mapping[type, Kind[Any, Any]] = {
    Preparation: Preparations(),
    SessionGroup: SessionGroups(),
    Verification: Verifications(),
}


def kind_of(action: Action) -> Kind[Any, Any]:
    """The kind of an action. Raises KeyError where its results are not in the store."""
    return KINDS[type(action)]


def is_stored(action: Action) -> bool:
    """Whether the store keeps what an action comes to."""
    return type(action) in KINDS


def read_result(action: Action, document: Mapping[str, Any]) -> ActionResult | None:
    """An action's result of its JSON; None where that is not of this epbuild's shape."""
    try:
        result: ActionResult = kind_of(action).read(document)
    except ValidationError:
        return None
    return result


def lacks(action: Action, result: ActionResult) -> tuple[str, ...]:
    """What stands between what is asked of an action and a result, as reasons for work: what is not met, else what is not finished."""
    kind = kind_of(action)
    return tuple(problem.message for problem in kind.unmet(action, result)) or tuple(kind.unfinished(action, result))
