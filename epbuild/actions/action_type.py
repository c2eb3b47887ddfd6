"""`ActionType`: everything that differs between the types of action."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from msgspec import Struct

from epbuild.cache.blobs import BlobStore
from epbuild.catalog.facts import KnownDifference
from epbuild.core.errors import Problem
from epbuild.core.records import convert
from epbuild.engine.capacity import estimate_memory
from epbuild.plan.made import Made
from epbuild.plan.result import ActionResult
from epbuild.plan.steps import Action
from epbuild.toolchain.identity import Identified

if TYPE_CHECKING:
    from epbuild.toolchain.execution import Execution, Workplace

A = TypeVar("A", bound=Action)
R = TypeVar("R", bound=ActionResult)


class KeyInputs(Struct, frozen=True):
    """Inputs of a key document beside the action: SHA-256 of its files, identity of its toolchain, and results that it needs."""

    digests: Mapping[Path, str]
    toolchain: Mapping[str, Any]
    needed: Sequence[Made] = ()


class StepEnd(Struct, frozen=True):
    """End of one step of an action. `seconds` is None if the step took as long as the action."""

    step: str
    seconds: float | None
    note: str = ""
    size: int | None = None


class ActionType(ABC, Generic[A, R]):
    """One type of action: its key, how it runs, and how its results are judged and reported.

    The compiler is imported only when an action runs: a survey uses all other methods and never loads it.
    """

    doing: str
    """Progress text when an action begins."""
    doing_again: str
    """Progress text when an action is rebuilt for comparison."""
    done: str
    """Past participle for messages."""
    result: type[R]

    # -- Key -----------------------------------------------------------------------------------------------------------

    def unknown_inputs(self, action: A) -> Sequence[str]:
        """Return why the key cannot be computed yet, apart from results that the action needs."""
        return ()

    def resolve_inputs(self, action: A, needed: Sequence[Made], store: BlobStore) -> A:
        """Return the action with the files from the results that it needs. The store may have lost these files."""
        return action

    @abstractmethod
    def key_document(self, action: A, inputs: KeyInputs) -> dict[str, Any]:
        """Return the document whose digest is the action key."""

    def identity(self, action: A, toolchain: Identified) -> dict[str, Any]:
        """Return the identity of the toolchain as it is in the key document."""
        return toolchain.identity(())

    # -- Run -----------------------------------------------------------------------------------------------------------

    def check(self, action: A) -> None:
        """Raise EpbuildError if the resolved action cannot run on this machine."""

    @abstractmethod
    def run(self, action: A, document: Mapping[str, Any], execution: Execution) -> R:
        """Run the action that has this key document, and return its result. Raises EpbuildError and Cancelled."""

    def finish(self, action: A, result: R, work: Workplace) -> Iterator[R]:
        """Add the missing parts one at a time, and yield the result after each. Raises what `run` raises."""
        return iter(())

    def rebuild(self, action: A, document: Mapping[str, Any], execution: Execution) -> Mapping[str, Path]:
        """Run the action, store nothing, and return its artifacts by name. Raises what `run` raises."""
        return {}

    # -- Result --------------------------------------------------------------------------------------------------------

    def read_result(self, document: Mapping[str, Any]) -> R:
        """Return the result in a record. Raises msgspec.ValidationError."""
        return convert(document, self.result)

    def unmet_expectations(self, action: A, result: R) -> Sequence[Problem]:
        """Return expectations that are no part of the key, and that the result does not meet."""
        return ()

    def warnings(self, action: A, result: R) -> Sequence[Problem]:
        """Return warnings about a result that meets all expectations."""
        return ()

    def missing_parts(self, action: A, result: R) -> Sequence[str]:
        """Return the parts that the result still lacks and `finish` adds."""
        return ()

    # -- Comparison ----------------------------------------------------------------------------------------------------

    def is_comparable(self, action: A) -> bool:
        """Return whether the action has artifacts that can be compared with those of a rebuild."""
        return True

    def known_differences(self, action: A) -> Sequence[KnownDifference]:
        """Return the differences that a rebuild is known to have."""
        return ()

    def known_to_differ(self, action: A) -> str | None:
        """Return the reasons of known differences, as clauses."""
        return None

    def accepts_other_bytes(self, action: A) -> bool:
        """Return whether a rebuild may differ in the bytes of its compiled contexts, if their sizes are equal."""
        return False

    # -- Steps and cost ------------------------------------------------------------------------------------------------

    def step_ends(self, action: A, result: R) -> Iterator[StepEnd]:
        """Yield how each step of the action ended."""
        for step in action.steps:
            yield StepEnd(step, None if step == action.id else 0.0)

    def starts_another_process(self, action: A) -> bool:
        """Return whether the action starts another process after this one. No other action may start in between."""
        return False

    def size(self, action: A) -> int:
        """Return the bytes that the action reads, for estimates until it has been measured."""
        return sum(path.stat().st_size for path in action.files)

    def memory(self, action: A, measured: int | None) -> int:
        """Return the memory that the action needs: as the recipe states, else as `measured` last time, else by its size."""
        return measured or estimate_memory(self.size(action))
