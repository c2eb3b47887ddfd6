"""Every kind of action whose result the store keeps; emissions, whose results are in their places, are the other kind."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from epbuild.build.compiling import Compiling
from epbuild.build.kind import Kind
from epbuild.build.preparing import Preparing
from epbuild.build.verifying import Verifying
from epbuild.plan import Action, Preparation, SessionGroup, Verification

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
