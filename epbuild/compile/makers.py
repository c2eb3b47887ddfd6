"""Makers of what the store keeps, one for each kind of action."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol, TypeVar

from epbuild.plan.preparing import Preparation
from epbuild.plan.result import ActionResult
from epbuild.plan.steps import Action, SessionGroup
from epbuild.plan.verification import Verification
from epbuild.toolchain.execution import Execution, Workplace

A_contra = TypeVar("A_contra", bound=Action, contravariant=True)
R = TypeVar("R", bound=ActionResult)


class ActionMaker(Protocol[A_contra, R]):
    """Makes the results of one kind of action."""

    def check(self, action: A_contra) -> None:
        """Raises EpbuildError where it cannot be made, which could not be known before it was resolved, or before it was this machine."""

    def make(self, action: A_contra, execution: Execution) -> R:
        """Do it. Raises EpbuildError, and Cancelled."""

    def finish(self, action: A_contra, result: R, work: Workplace) -> Iterator[R]:
        """The result with one more of what was unfinished each time. Raises what `make` does."""

    def remake(self, action: A_contra, execution: Execution) -> Mapping[str, Path]:
        """Do it again and store nothing; returns its artifacts in the staging directory, by name. Raises what `make` does."""


def maker_of(action: Action) -> ActionMaker[Any, Any]:
    """The maker of an action. Raises KeyError where its results are not in the store."""
    # Each is imported by the builds that need it: most check no numbers and prepare nothing.
    match action:
        case SessionGroup():
            from epbuild.compile.action import GroupMaker

            return GroupMaker()
        case Preparation():
            from epbuild.compile.preparing import PreparationMaker

            return PreparationMaker()
        case Verification():
            from epbuild.compile.action import measure_alone
            from epbuild.verify.live.action import NumbersMaker

            return NumbersMaker(measure_alone)
        case _:
            raise KeyError(type(action))
