"""`MachineReply`: what a machine has to give back of a request, as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Literal

from msgspec import Struct

from epbuild.core.digest import Blob
from epbuild.core.errors import (
    BuildError,
    EnvironmentFailure,
    EpbuildError,
    PlanError,
    Problem,
    StoreError,
    ToolchainError,
    VerifyError,
)
from epbuild.core.typed_json import MalformedJson, from_json, to_json

_ERRORS: Mapping[str, type[EpbuildError]] = {
    kind.__name__: kind for kind in (BuildError, EnvironmentFailure, PlanError, StoreError, ToolchainError, VerifyError)
}

Outcome = Literal["made", "found", "failed", "unable", "refused", "cancelled"]
"""It was made, or was in the cache; it failed as it would anywhere; this machine cannot make it, or nothing that runs in its toolchain; no
client waits for it any more."""


class MachineReply(Struct, frozen=True):
    """What came of a request on a `machine`; a result itself lies in the remote cache."""

    outcome: Outcome
    machine: str
    error: str | None = None
    """Of what failed or was refused: the class of the error."""
    problems: tuple[Any, ...] = ()
    log: Blob | None = None
    """Of what was done: its log, which the remote cache has."""
    is_unfit: bool = False
    """Whether the machine found out that it cannot do what it offered, and offers it no more."""

    @classmethod
    def failure(
        cls, outcome: Outcome, machine: str, error: EpbuildError, *, log: Blob | None = None, is_unfit: bool = False
    ) -> MachineReply:
        kind = next((known.__name__ for known in type(error).__mro__ if known.__name__ in _ERRORS), "BuildError")
        return cls(outcome, machine, kind, tuple(problem.plain for problem in error.problems), log, is_unfit)

    def raised(self) -> EpbuildError:
        """The error that it is about."""
        kind = _ERRORS.get(self.error or "", BuildError)
        return kind(*(Problem.from_plain(tuple(plain)) for plain in self.problems))

    @property
    def text(self) -> str:
        return json.dumps(to_json(self), separators=(",", ":"))


def read_reply(text: object) -> MachineReply:
    """Return the reply that a machine sent. Raises MalformedJson."""
    if not isinstance(text, str):
        raise MalformedJson(f"expected the text of a reply, got {type(text).__name__}")
    try:
        return from_json(MachineReply, json.loads(text))
    except (ValueError, RecursionError) as error:
        raise MalformedJson("the reply is not JSON") from error
