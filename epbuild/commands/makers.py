"""Makers of what the store keeps, one for each kind of action."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol, TypeVar

from epbuild.compile.action import GroupMaker, measure_alone
from epbuild.compile.preparing import PreparationMaker
from epbuild.plan.preparing import Preparation
from epbuild.plan.steps import Action, SessionGroup
from epbuild.plan.verification import Verification
from epbuild.toolchain.execution import Execution, Workplace
from epbuild.verify.live.action import NumbersMaker

A_contra = TypeVar("A_contra", bound=Action, contravariant=True)


class ActionMaker(Protocol[A_contra]):
    """Makes the results of one kind of action."""

    def check(self, action: A_contra) -> None:
        """Raises EpbuildError where it cannot be made, which could not be known before it was resolved, or before it was this machine."""

    def make(self, action: A_contra, execution: Execution) -> dict[str, Any]:
        """Do it; returns its result as JSON, with `artifacts`, `log` and `measured`. Raises EpbuildError, and Cancelled."""

    def finish(self, action: A_contra, result: Mapping[str, Any], work: Workplace) -> Iterator[Mapping[str, Any]]:
        """The result with one more of what was unfinished each time. Raises what `make` does."""

    def remake(self, action: A_contra, execution: Execution) -> Mapping[str, Path]:
        """Do it again and store nothing; returns its artifacts in the staging directory, by name. Raises what `make` does."""


_MAKERS: Mapping[type, ActionMaker[Any]] = {
    Preparation: PreparationMaker(),
    SessionGroup: GroupMaker(),
    Verification: NumbersMaker(measure_alone),
}


def maker_of(action: Action) -> ActionMaker[Any]:
    """The maker of an action. Raises KeyError where its results are not in the store."""
    return _MAKERS[type(action)]
