"""Protocol between clients and machines: replies, errors, and the executor."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, Protocol

import msgspec
from msgspec import Struct, ValidationError
from msgspec.structs import replace

from epbuild.cluster.placement import Offer, Placement
from epbuild.cluster.request import ActionRequest
from epbuild.core.digest import Blob
from epbuild.core.errors import (
    BuildError,
    EnvironmentFailure,
    EpbuildError,
    PlanError,
    Problem,
    ProblemRecord,
    StepId,
    StoreError,
    ToolchainError,
    VerifyError,
)
from epbuild.core.records import convert
from epbuild.core.units import format_count
from epbuild.engine.events import Event, Progress, StepOutput

MAX_LOSSES = 2
"""Number of disconnected machines after which a request fails. The request is then the likely cause."""
_DENIED_HINT = "This build sends the machine no more actions that use this toolchain."
_LOGS_HINT = "Check the logs of the workers, and the system logs for a lack of memory."

_ERRORS: Mapping[str, type[EpbuildError]] = {
    kind.__name__: kind for kind in (BuildError, EnvironmentFailure, PlanError, StoreError, ToolchainError, VerifyError)
}


class SchedulerLostError(EnvironmentFailure):
    """Error for a lost connection to the scheduler."""


class UnofferedError(EnvironmentFailure):
    """Error for an action that no machine can run. Other actions continue."""

    stops_others = False


Outcome = Literal["made", "found", "failed", "unable", "refused", "cancelled"]
"""Outcome of a request on a machine.

`made`: the result was built. `found`: the cache already has the result. `failed`: the action would fail on any machine. `unable`: this
machine cannot execute the action. `refused`: this machine cannot provide the toolchain. `cancelled`: no client waits for the result.
"""


class MachineReply(Struct, frozen=True):
    """Reply of a machine to a request. It does not contain the result, which is in the remote cache."""

    outcome: Outcome
    machine: str
    error: str | None = None
    """Name of the error's class, or None if the reply reports no error."""
    problems: tuple[ProblemRecord, ...] = ()
    log: Blob | None = None
    """Log of the action, as a blob in the remote cache; None if no log was published."""
    is_unfit: bool = False
    """True if the machine lacks an ability that it offered, and has withdrawn the offer."""

    @classmethod
    def failure(
        cls, outcome: Outcome, machine: str, error: EpbuildError, *, log: Blob | None = None, is_unfit: bool = False
    ) -> MachineReply:
        """Return the reply for an error."""
        kind = next((base.__name__ for base in type(error).__mro__ if base.__name__ in _ERRORS), "BuildError")
        return cls(outcome, machine, kind, tuple(map(ProblemRecord.of, error.problems)), log, is_unfit)

    def to_error(self) -> EpbuildError:
        """Return the error that was raised on the machine, as an exception."""
        kind = _ERRORS.get(self.error or "", BuildError)
        return kind(*(record.problem for record in self.problems))

    @property
    def text(self) -> str:
        """The reply as JSON."""
        # json, not msgspec: messages may contain file names that are not UTF-8.
        return json.dumps(msgspec.to_builtins(self), separators=(",", ":"))


def read_reply(text: object) -> MachineReply:
    """Parse the reply of a machine. Raises ValidationError."""
    if not isinstance(text, str):
        raise ValidationError(f"expected the text of a reply, got {type(text).__name__}")
    try:
        return convert(json.loads(text), MachineReply)
    except (ValueError, RecursionError) as error:
        raise ValidationError("the reply is not JSON") from error


class ToolchainDenyList:
    """Machines that cannot provide a toolchain. The build sends them no more actions that use this toolchain. Thread-safe."""

    def __init__(self) -> None:
        self._refusals: dict[str, dict[str, MachineReply]] = {}

    def add(self, toolchain: str, reply: MachineReply) -> Problem | None:
        """Add the machine that sent a refusal. Return a warning if the machine is new, or else None."""
        refusals = self._refusals.setdefault(toolchain, {})
        if refusals.setdefault(reply.machine, reply) is not reply:
            return None
        problems = reply.to_error().problems
        reason = "; ".join(problem.message for problem in problems)
        hint = next((f"{_DENIED_HINT} {problem.hint}" for problem in problems if problem.hint), _DENIED_HINT)
        return Problem("EPB541", f"{reply.machine} cannot provide toolchain '{toolchain}': {reason}", None, hint)

    def list_machines(self, toolchain: str) -> frozenset[str]:
        """Return the names of the machines that refused a toolchain."""
        return frozenset(self._refusals.get(toolchain, ()))

    def find_last(self, toolchain: str, step: str) -> MachineReply | None:
        """Return the latest refusal of a toolchain, or None if there is none. The problems in the refusal get the location `step`."""
        refusal = next(reversed(self._refusals.get(toolchain, {}).values()), None)
        if refusal is None:
            return None
        problems = (replace(record.problem, where=StepId(step)) for record in refusal.problems)
        return replace(refusal, problems=tuple(map(ProblemRecord.of, problems)))


def decode_error(reply: MachineReply) -> EpbuildError:
    """Return the error of a reply, with the machine's name in its messages."""
    error = reply.to_error()
    return type(error)(*(replace(problem, message=f"on {reply.machine}: {problem.message}") for problem in error.problems))


def make_unoffered_error(labels: frozenset[str], offers: Sequence[Offer], actions: int = 1) -> UnofferedError:
    """Return the error for a number of `actions` that no machine can run. The message lists the machines and the missing labels."""
    best = max(offers, key=lambda offer: len(labels & offer.labels), default=None)
    lacking = sorted(labels - best.labels) if best is not None else sorted(labels)
    machines = ", ".join(sorted(offer.machine for offer in offers))
    connected = f"connected: {machines}" if machines else "no machine is connected"
    what = f"{', '.join(lacking) or 'all requirements at once'} (needed by {format_count(actions, 'action')})"
    message = f"no machine of the cluster offers {what}; {connected}"
    return UnofferedError(Problem("EPB539", message, None, "Start a worker that meets the requirements, with `epbuild worker`."))


def make_lost_action_error(machines: Sequence[str]) -> BuildError:
    """Return the error for an action whose machines disconnected. `machines` are their names, as far as known."""
    named = f": {', '.join(machines)}" if machines else ""
    message = f"the action was lost: {MAX_LOSSES} machines disconnected while executing it{named}"
    return BuildError(Problem("EPB534", message, None, _LOGS_HINT))


class RequestExecutor(Protocol):
    """Executor of requests on other machines. Thread-safe."""

    def offers(self) -> Sequence[Offer]:
        """Return the offers of the connected machines. They may be a few seconds old."""

    def wait_for_offer(self, placement: Placement, actions: int) -> None:
        """Wait until `placement` allows a connected machine. Raises Cancelled.

        Raises UnofferedError after a minute. `actions` is the number of waiting actions, for the message.
        """

    def execute(self, request: ActionRequest, placement: Placement, progress: Progress) -> MachineReply:
        """Execute a request on a machine that the placement allows, and return the reply.

        Raises BuildError (EPB534) after MAX_LOSSES machines have disconnected, SchedulerLostError, and UnofferedError. If the build is
        stopped, the request is cancelled on the machine and Cancelled is raised.
        """

    def close(self) -> None:
        """Close the connections to the scheduler."""


class PendingRequest:
    """Request whose reply a thread waits for. Other threads report the progress of the request, as progress of `step`, and its end."""

    def __init__(self, step: str, placement: Placement, progress: Progress) -> None:
        self.placement = placement
        self.changed = threading.Event()
        """Event that is set once there is a reply or an error. It is also set if the build is cancelled."""
        self.reply: MachineReply | None = None
        self.error: Exception | None = None
        """Error that ended the request without a reply."""
        self.machines: dict[str, str] = {}
        """Names of the machines that began to execute the request, by address, in chronological order."""
        self._step = step
        self._progress = progress

    def begin(self, machine: str, address: str) -> None:
        """Record that a machine began to execute the request. This implies that the previous machine has disconnected."""
        if address in self.machines:
            return
        previous = list(self.machines.values())
        self.machines[address] = machine
        if previous:
            self._progress.report(StepOutput(self._step, f"{previous[-1]} disconnected; {machine} takes over"))
        if len(previous) >= MAX_LOSSES:
            self.fail(make_lost_action_error(previous))

    def report(self, event: Event) -> None:
        """Forward an event from the machine to the receiver of progress."""
        self._progress.report(event)

    def finish(self, reply: Callable[[], MachineReply]) -> None:
        """Call the function `reply`, and end the request with the returned reply or the raised error."""
        try:
            self.reply = reply()
            self.changed.set()
        except Exception as error:  # noqa: BLE001 - raised again by the thread that waits
            self.fail(error)

    def fail(self, error: Exception) -> None:
        """End the request with an error, unless the request has already ended."""
        if not self.changed.is_set():
            self.error = error
            self.changed.set()
