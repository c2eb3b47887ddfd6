"""Failures that a workspace remembers, by the key of the action.

Nothing is tried again that would fail as it did.

What is remembered of an action is the key that it failed with: as soon as anything in that changes, it is tried again. Only what an EP or
a preparation makes of its inputs is such a failure. A full disk, too little memory, a limit of time, a crash and a build that was
interrupted are none.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from epbuild import __version__
from epbuild.cache.workspace import Workspace, action_name
from epbuild.core.errors import BuildError, EpbuildError, Problem, ProblemRecord, StepId, VerifyError
from epbuild.core.records import convert

_FORMAT = 2
_OF_THE_KEY = frozenset(
    {"EPB401", "EPB417", "EPB418", "EPB440", "EPB455", "EPB457", *(f"EPB{number}" for number in range(600, 620))}
)
"""What an EP or a preparation's program reported, and what is wrong with what it made; crashes and limits of time have other
codes (EPB402, EPB403, EPB453, EPB458)."""
_ERRORS: Mapping[str, type[EpbuildError]] = {error.__name__: error for error in (BuildError, VerifyError)}


class Failure(Struct, frozen=True):
    """How an action failed: the class of its error, its problems, and when, in Unix seconds."""

    error: str
    problems: tuple[Problem, ...]
    time: float

    def again(self) -> EpbuildError:
        """The error once more, with a hint that nothing was tried."""
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(self.time))
        why = f"It failed so on {when}, and nothing that it depends on has changed: it was not tried. `epbuild run --retry` does."
        first, *others = self.problems
        hint = f"{first.hint} {why}" if first.hint else why
        return _ERRORS[self.error](replace(first, hint=hint), *others)


class Failures:
    """Those of the actions of one recipe; any number of threads may use it at once."""

    def __init__(self, workspace: Workspace, recipe: str) -> None:
        self._workspace = workspace
        self._recipe = recipe

    def of(self, action: str, key: str) -> Failure | None:
        """How the action failed the last time, if it was with this key and this release of epbuild. Raises StoreError."""
        text = self._workspace.fact(self._name(action))
        try:
            document: dict[str, Any] = json.loads(text) if text is not None else {}
            if document.get("key") != key or document.get("format") != _FORMAT or document["epbuild"] != __version__:
                return None
            problems = tuple(record.problem for record in convert(document["problems"], tuple[ProblemRecord, ...]))
            failure = Failure(document["error"], problems, float(document["time"]))
        except (ValueError, LookupError, TypeError):
            return None  # it is tried again
        return failure if problems and failure.error in _ERRORS else None

    def remember(self, action: str, key: str, error: EpbuildError) -> None:
        """Take note of how an action failed, where that follows from its key. Raises StoreError."""
        if type(error) not in _ERRORS.values() or any(problem.code not in _OF_THE_KEY for problem in error.problems):
            return
        # The step where it is reported is the one it is reported for next time; a place in a file may be another by then.
        problems = [replace(problem, where=problem.where if _is_step(problem) else StepId(action)) for problem in error.problems]
        document = {
            "format": _FORMAT,
            "epbuild": __version__,
            "key": key,
            "error": type(error).__name__,
            "problems": msgspec.to_builtins([ProblemRecord.of(problem) for problem in problems]),
            "time": time.time(),
        }
        self._workspace.record_fact(self._name(action), json.dumps(document))

    def forget(self, action: str) -> None:
        """Take note that the action came to a good end, or is to be tried in any case. Raises StoreError."""
        if self._workspace.fact(self._name(action)) is not None:
            self._workspace.forget_facts([self._name(action)])

    def _name(self, action: str) -> str:
        return f"failed {action_name(action, self._recipe)}"


def _is_step(problem: Problem) -> bool:
    return isinstance(problem.where, str)
