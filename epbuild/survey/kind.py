"""`Kind`: what a survey asks of one kind of action, less how it is made."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import msgspec
from msgspec import Struct

from epbuild.cache.blobs import BlobStore
from epbuild.catalog.facts import KnownDifference
from epbuild.core.errors import Problem
from epbuild.engine.capacity import estimated_memory
from epbuild.plan.made import Made
from epbuild.plan.result import ActionResult
from epbuild.plan.steps import Action
from epbuild.toolchain.identity import Identified

A = TypeVar("A", bound=Action)
R = TypeVar("R", bound=ActionResult)


class KeyInputs(Struct, frozen=True):
    """What the key of an action is made of, beside the action: the SHA-256 of its files, its toolchain's identity, and what it needs."""

    digests: Mapping[Path, str]
    toolchain: Mapping[str, Any]
    needed: Sequence[Made] = ()


class KnownToolchains(Protocol):
    """The toolchains that actions run in, as far as their identities are known."""

    def of(self, action: Action) -> Identified | None:
        """That of an action; None while it is not known."""

    def why_unknown(self, action: Action) -> str:
        """Why that of an action is not known, as a reason for work."""


class StepEnd(Struct, frozen=True):
    """How one step of an action ended; `seconds` is None where it took what the action took."""

    step: str
    seconds: float | None
    note: str = ""
    size: int | None = None


class Kind(ABC, Generic[A, R]):
    """One kind of action, and the words for its work: when it begins, when it begins again, and when it is done."""

    doing: str
    doing_again: str
    done: str
    result: type[R]

    def read(self, document: Mapping[str, Any]) -> R:
        """Return the result in a record. Raises msgspec.ValidationError."""
        return msgspec.convert(document, self.result)

    def unknown(self, action: A) -> Sequence[str]:
        """Why its key cannot be known yet, whatever it needs, as reasons for work."""
        return ()

    def resolved(self, action: A, needed: Sequence[Made], store: BlobStore) -> A:
        """The action with the files that come from what it needs, whose results are known; they may be gone from the store."""
        return action

    @abstractmethod
    def document(self, action: A, inputs: KeyInputs) -> dict[str, Any]:
        """The document that its key is the digest of."""

    def identity(self, action: A, toolchain: Identified) -> dict[str, Any]:
        """What its toolchain is to it, as the document holds it."""
        return toolchain.identity(())

    def unmet(self, action: A, result: R) -> Sequence[Problem]:
        """What is asked of any result and is no part of the key, and this result does not meet."""
        return ()

    def doubts(self, action: A, result: R) -> Sequence[Problem]:
        """Warnings about a result that meets all that is asked."""
        return ()

    def unfinished(self, action: A, result: R) -> Sequence[str]:
        """What a result still lacks that its maker adds to it, as reasons for work."""
        return ()

    def compares(self, action: A) -> bool:
        """Whether it leaves files that can be compared with those of another time."""
        return True

    def known_differences(self, action: A) -> Sequence[KnownDifference]:
        """In what it is known to come out different when it is done again."""
        return ()

    def known_to_differ(self, action: A) -> str | None:
        """Why that is, as clauses."""
        return None

    def compares_in_meaning(self, action: A) -> bool:
        """Whether it may come out with other bytes, if nothing but the compiled contexts has them and these have their sizes."""
        return False

    def keeps_its_place(self, action: A) -> bool:
        """Whether another process of the same action follows, so that no other action may begin meanwhile."""
        return False

    def size(self, action: A) -> int:
        """The bytes that it works on, from which its time is estimated as long as nobody has measured it."""
        return sum(path.stat().st_size for path in action.files)

    def memory(self, action: A, measured: int | None) -> int:
        """The bytes of memory that it takes: as the recipe states, else as `measured` last time, else by its size."""
        return measured or estimated_memory(self.size(action))

    def ends(self, action: A, result: R) -> Iterator[StepEnd]:
        """How each of its steps ended."""
        for step in action.steps:
            yield StepEnd(step, None if step == action.id else 0.0)
