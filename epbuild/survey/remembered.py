"""Recorded failures, which prevent repeated runs of actions that would fail again.

A failure is recorded with the key of its action. If an input changes, the key changes, and the action runs again. Only errors that are
caused by the inputs are recorded, such as errors that an EP or a preparation reports. A full disk, a lack of memory, a timeout, a crash
and an interrupted build are not recorded.
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
from epbuild.cache.workspace import Workspace, get_action_name
from epbuild.core.errors import BuildError, EpbuildError, Problem, ProblemRecord, StepId, VerifyError
from epbuild.core.records import convert

_FORMAT = 2
_OF_THE_KEY = frozenset(
    {"EPB401", "EPB417", "EPB418", "EPB440", "EPB455", "EPB457", *(f"EPB{number}" for number in range(600, 620))}
)
"""Codes of errors that are caused by the inputs: errors that an EP or a preparation reported, and defects of their results. Crashes and
timeouts have other codes (EPB402, EPB403, EPB453, EPB458)."""
_ERRORS: Mapping[str, type[EpbuildError]] = {error.__name__: error for error in (BuildError, VerifyError)}


class Failure(Struct, frozen=True):
    """Failure of an action: the class name of the error, its problems, and the time in Unix seconds."""

    error: str
    problems: tuple[Problem, ...]
    time: float

    def as_error(self) -> EpbuildError:
        """Return the error with a hint that the action was not run again."""
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(self.time))
        why = (
            f"This failure is from {when}. No input has changed since, so the step was not run again. "
            "To run it again, use `epbuild run --retry`."
        )
        first, *others = self.problems
        hint = f"{first.hint} {why}" if first.hint else why
        return _ERRORS[self.error](replace(first, hint=hint), *others)


class Failures:
    """Recorded failures of the actions of one recipe. Safe to use from several threads."""

    def __init__(self, workspace: Workspace, recipe: str) -> None:
        self._workspace = workspace
        self._recipe = recipe

    def of(self, action: str, key: str) -> Failure | None:
        """Return the recorded failure of an action, or None if there is none with this key and release of epbuild. Raises StoreError."""
        text = self._workspace.fact(self._get_name(action))
        try:
            document: dict[str, Any] = json.loads(text) if text is not None else {}
            if document.get("key") != key or document.get("format") != _FORMAT or document["epbuild"] != __version__:
                return None
            problems = tuple(record.problem for record in convert(document["problems"], tuple[ProblemRecord, ...]))
            failure = Failure(document["error"], problems, float(document["time"]))
        except (ValueError, LookupError, TypeError):
            return None  # an unreadable record is ignored, so that the action runs again
        return failure if problems and failure.error in _ERRORS else None

    def remember(self, action: str, key: str, error: EpbuildError) -> None:
        """Record the failure of an action if the inputs caused it. Raises StoreError."""
        if type(error) not in _ERRORS.values() or any(problem.code not in _OF_THE_KEY for problem in error.problems):
            return
        # The id of a step stays valid. Positions in files may have changed by the time the failure is reported again.
        problems = [replace(problem, where=problem.where if _is_step(problem) else StepId(action)) for problem in error.problems]
        document = {
            "format": _FORMAT,
            "epbuild": __version__,
            "key": key,
            "error": type(error).__name__,
            "problems": msgspec.to_builtins([ProblemRecord.of(problem) for problem in problems]),
            "time": time.time(),
        }
        self._workspace.record_fact(self._get_name(action), json.dumps(document))

    def forget(self, action: str) -> None:
        """Remove the recorded failure of an action that succeeded or that must run again. Raises StoreError."""
        if self._workspace.fact(self._get_name(action)) is not None:
            self._workspace.forget_facts([self._get_name(action)])

    def _get_name(self, action: str) -> str:
        return f"failed {get_action_name(action, self._recipe)}"


def _is_step(problem: Problem) -> bool:
    return isinstance(problem.where, str)
