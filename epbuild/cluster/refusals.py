"""Machines that cannot make what they offer, and are not asked again."""

from __future__ import annotations

from msgspec.structs import replace

from epbuild.cluster.reply import MachineReply
from epbuild.core.errors import EpbuildError, Problem, StepId

_MEND = "It is given no more of that by this build."


class Refusals:
    """The refusals that a build met, by toolchain: a machine that lacks one, or disk for it, lacks it for the next action too.

    For any thread.
    """

    def __init__(self) -> None:
        self._found: dict[str, dict[str, MachineReply]] = {}

    def add(self, toolchain: str, reply: MachineReply) -> Problem | None:
        """Take note of a refusal; returns a warning of it, the first time."""
        of_toolchain = self._found.setdefault(toolchain, {})
        if of_toolchain.setdefault(reply.machine, reply) is not reply:
            return None
        why = "; ".join(problem.message for problem in reply.raised().problems)
        hint = next((f"{_MEND} {problem.hint}" for problem in reply.raised().problems if problem.hint), _MEND)
        return Problem("EPB541", f"{reply.machine} makes nothing of the toolchain '{toolchain}': {why}", None, hint)

    def machines(self, toolchain: str) -> frozenset[str]:
        """Those that are not asked for what runs in a toolchain."""
        return frozenset(self._found.get(toolchain, ()))

    def last(self, toolchain: str, step: str) -> MachineReply | None:
        """The latest refusal of what runs in a toolchain, as one of a `step`."""
        found = next(reversed(self._found.get(toolchain, {}).values()), None)
        if found is None:
            return None
        problems = (Problem.from_plain(tuple(plain)) for plain in found.problems)
        return replace(found, problems=tuple(replace(problem, where=StepId(step)).plain for problem in problems))


def error_of(reply: MachineReply) -> EpbuildError:
    """The error that a reply is about, with the machine's name."""
    error = reply.raised()
    return type(error)(*(replace(problem, message=f"on {reply.machine}: {problem.message}") for problem in error.problems))
