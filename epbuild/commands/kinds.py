"""Every kind of action whose result the store keeps; emissions, whose results are in their places, are the other kind."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from epbuild.compile.action import Compiling
from epbuild.compile.kind import Kind
from epbuild.compile.preparing import Preparing
from epbuild.plan.preparing import Preparation
from epbuild.plan.steps import Action, SessionGroup
from epbuild.plan.verification import Verification
from epbuild.verify.live.action import Verifying

KINDS: Mapping[type, Kind[Any]] = {
    Preparation: Preparing(),
    SessionGroup: Compiling(),
    Verification: Verifying(),
}


def kind_of(action: Action) -> Kind[Any]:
    """The kind of an action. Raises KeyError where its results are not in the store."""
    return KINDS[type(action)]


def is_stored(action: Action) -> bool:
    """Whether the store keeps what an action comes to."""
    return type(action) in KINDS
