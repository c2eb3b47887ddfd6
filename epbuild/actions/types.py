"""Table of action types whose results the store keeps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import ValidationError

from epbuild.actions.action_type import ActionType
from epbuild.actions.compiling import Compile, Copy
from epbuild.actions.preparing import Prepare
from epbuild.actions.verifying import Verify
from epbuild.plan.preparing import Preparation
from epbuild.plan.result import ActionResult
from epbuild.plan.steps import Action, CopiedModel, SessionGroup
from epbuild.plan.verification import Verification

ACTION_TYPES: Mapping[type, ActionType[Any, Any]] = {
    Preparation: Prepare(),
    SessionGroup: Compile(),
    CopiedModel: Copy(),
    Verification: Verify(),
}
"""Action types by class of action.

Emissions have no entry, because the result of an emission is an output on disk. The session emits outputs, and the survey checks them.
"""


def get_action_type(action: Action) -> ActionType[Any, Any]:
    """Return the type of an action. Raises KeyError for an emission."""
    return ACTION_TYPES[type(action)]


def is_stored(action: Action) -> bool:
    """Return whether the store keeps the result of an action."""
    return type(action) in ACTION_TYPES


def read_result(action: Action, document: Mapping[str, Any]) -> ActionResult | None:
    """Return the result in an action's record, or None if the record is not in the format of this version of epbuild."""
    try:
        result: ActionResult = get_action_type(action).read_result(document)
    except ValidationError:
        return None
    return result


def reject_reasons(action: Action, result: ActionResult) -> tuple[str, ...]:
    """Return the reasons why a result cannot be used: unmet expectations, or else missing parts."""
    kind = get_action_type(action)
    unmet = kind.unmet_expectations(action, result)
    return tuple(problem.message for problem in unmet) or tuple(kind.missing_parts(action, result))
