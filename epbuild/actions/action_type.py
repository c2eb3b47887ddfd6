"""Base class of action types, with all behavior that differs between types."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from msgspec import Struct

from epbuild.cache.blobs import BlobStore
from epbuild.catalog.facts import KnownDifference
from epbuild.core.errors import Problem
from epbuild.engine.capacity import estimate_memory
from epbuild.plan.made import Made
from epbuild.plan.result import ActionResult
from epbuild.plan.steps import Action, InTarget
from epbuild.toolchain.identity import Identified

if TYPE_CHECKING:
    from epbuild.toolchain.execution import Execution

A = TypeVar("A", bound=Action)
R = TypeVar("R", bound=ActionResult)


class StepEnd(Struct, frozen=True):
    """End of a step of an action. `seconds` is None if the duration of the step is the duration of the whole action."""

    step: str
    seconds: float | None
    note: str = ""
    size: int | None = None


class ActionType(ABC, Generic[A, R]):
    """Type of action, which defines how to compute keys, run actions, and check and report results.

    Surveys call only the methods that run nothing. Therefore, only the methods that run an action import the compiler.
    """

    doing: str
    """Progress text at the start of an action."""
    doing_again: str
    """Progress text at the start of a rebuild for comparison."""
    done: str
    """Past participle of the action's verb, for messages."""
    result: type[R]

    # -- Key -----------------------------------------------------------------------------------------------------------

    def unknown_inputs(self, action: A) -> Sequence[str]:
        """Return reasons why the key cannot be computed yet. Missing results of needed actions are not included."""
        return ()

    def resolve_inputs(self, action: A, needed: Sequence[Made], store: BlobStore) -> A:
        """Return the action with the results in `needed` as its inputs. The files of these results may be missing from the store."""
        return action

    def fingerprint(self, action: A) -> str | None:
        """Return a digest of everything in an action that its key document depends on. None if there is no such digest."""
        return None

    @abstractmethod
    def key_document(self, action: A, digests: Mapping[Path, str], toolchain: Mapping[str, Any]) -> dict[str, Any]:
        """Return the document whose digest is the action key.

        `digests` has the SHA-256 of the action's files, and `toolchain` is the identity of the action's toolchain.
        """

    def identity(self, action: A, toolchain: Identified) -> dict[str, Any]:
        """Return the identity of the toolchain for the key document."""
        return toolchain.identity(*action.identity_parts) if isinstance(action, InTarget) else toolchain.identity(())

    # -- Run -----------------------------------------------------------------------------------------------------------

    def check(self, action: A) -> None:
        """Raise EpbuildError if the resolved action cannot run on this machine."""

    @abstractmethod
    def run(self, action: A, document: Mapping[str, Any], execution: Execution) -> R:
        """Run an action, whose key document is `document`, and return its result. Raises EpbuildError and Cancelled."""

    def add_part(self, action: A, result: R, part: str, execution: Execution) -> R:
        """Make one of the `missing_parts`, and return the result with it. Raises the same errors as `run`."""
        return result

    def rebuild(self, action: A, document: Mapping[str, Any], execution: Execution) -> Mapping[str, Path]:
        """Run the action without storing its result. Return the new artifacts by name. Raises the same errors as `run`."""
        return {}

    # -- Result --------------------------------------------------------------------------------------------------------

    def unmet_expectations(self, action: A, result: R) -> Sequence[Problem]:
        """Return the unmet expectations of a result. Expectations are not part of the key."""
        return ()

    def warnings(self, action: A, result: R) -> Sequence[Problem]:
        """Return warnings about a result that meets all expectations."""
        return ()

    def missing_parts(self, action: A, result: R) -> Mapping[str, str]:
        """Return a description of each part that the result lacks and that `add_part` can add, by the part's name."""
        return {}

    # -- Comparison ----------------------------------------------------------------------------------------------------

    def is_comparable(self, action: A) -> bool:
        """Return whether the action's artifacts can be compared with the artifacts of a rebuild."""
        return True

    def known_differences(self, action: A) -> Sequence[KnownDifference]:
        """Return the known differences between the artifacts of an action and the artifacts of its rebuild."""
        return ()

    def known_to_differ(self, action: A) -> str | None:
        """Return the reasons for known differences as clauses, or None if there are no known differences."""
        return None

    def accepts_other_bytes(self, action: A) -> bool:
        """Return whether the bytes of compiled contexts may differ in a rebuild, provided that the sizes are equal."""
        return False

    # -- Steps and cost ------------------------------------------------------------------------------------------------

    def step_ends(self, action: A, result: R) -> Iterator[StepEnd]:
        """Yield the end of each step of the action."""
        for step in action.steps:
            yield StepEnd(step, None if step == action.id else 0.0)

    def starts_another_process(self, action: A) -> bool:
        """Return whether the action starts a second process after its first process. No other action may start in between."""
        return False

    def size(self, action: A) -> int:
        """Return the total bytes of the files that the action reads. Its cost is estimated from this size until it has been measured."""
        return sum(path.stat().st_size for path in action.files)

    def memory(self, action: A, measured: int | None) -> int:
        """Return the memory in bytes that the action needs.

        Return the value in the recipe, or else the value `measured` in an earlier run, or else an estimate from the action's size.
        """
        return measured or estimate_memory(self.size(action))
