"""Identities of toolchains that other machines have, or make."""

from __future__ import annotations

import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

from msgspec.structs import replace

from epbuild.cluster.placement import Placement, labels_of
from epbuild.cluster.protocol import MachineReply, RequestExecutor, error_of
from epbuild.cluster.request import ActionRequest, toolchain_request
from epbuild.commands.elsewhere import LOOK_AT_CACHE
from epbuild.commands.events import ToolchainFailed, ToolchainReady, ToolchainStarted
from epbuild.commands.toolchains import Place, PlanToolchains, UnknownToolchain
from epbuild.core.errors import EnvironmentFailure, EpbuildError, Problem
from epbuild.engine.events import Progress, Warned

_AT_ONCE = 16
_MOST_ASKED = 3


class IdentityRequests:
    """Asks the machines of an `executor` what toolchains are, which they publish in the remote cache.

    So that this machine makes none to know its keys, and has keys for platforms that it is not.
    """

    def __init__(self, executor: RequestExecutor, known: PlanToolchains, progress: Progress) -> None:
        self._executor = executor
        self._known = known
        self._progress = progress

    def bring(self, unknown: Mapping[Place, UnknownToolchain]) -> None:
        """Have the records of these toolchains published, and read them.

        One of this platform that no machine offers is left, to be made here. Raises Unoffered where none offers one of another platform for
        a minute, Lost where the scheduler goes away, the error that making it failed with there, and Cancelled.
        """
        asked = self._offered(unknown)
        with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="identity") as pool:
            list(pool.map(self._ask, asked.values()))
        self._known.look_again(asked)
        for item in asked.values():
            if self._known.of(item.action) is None and not self._known.is_for_here(item.action):
                name = item.needs.toolchain.name
                message = f"what the toolchain '{name}' is on {item.platform} cannot be had from the remote cache"
                raise EnvironmentFailure(Problem("EPB537", message, item.needs.toolchain.where, LOOK_AT_CACHE))

    def _offered(self, unknown: Mapping[Place, UnknownToolchain]) -> dict[Place, UnknownToolchain]:
        """Those that some machine offers, once one does what cannot be done here."""
        for item in unknown.values():
            if not self._known.is_for_here(item.action):
                self._executor.wait_for_offer(_placement(item), 1)
        offers = self._executor.offers()
        return {place: item for place, item in unknown.items() if any(map(_placement(item).allows, offers))}

    def _ask(self, item: UnknownToolchain) -> None:
        name, begin = item.needs.toolchain.name, time.monotonic()
        self._progress.report(ToolchainStarted(name, f"asking a machine of the cluster what it is on {item.platform}"))
        request = toolchain_request(item.needs, item.locked, item.records)
        try:
            reply = self._reply(request, _placement(item))
        except EpbuildError as error:
            self._progress.report(ToolchainFailed(name))
            if not self._known.is_for_here(item.action):
                raise
            for problem in error.problems:  # which then is made here
                self._progress.report(Warned(problem))
            return
        runtime = next((package.version for package in item.locked.packages if package.name == "onnxruntime"), "")
        self._progress.report(ToolchainReady(name, runtime, time.monotonic() - begin, f"as {reply.machine} has it"))

    def _reply(self, request: ActionRequest, placement: Placement) -> MachineReply:
        """The reply of the first machine that has the toolchain or makes it. Raises the error of the last that does not."""
        while True:
            reply = self._executor.execute(request, placement, self._progress)
            if reply.outcome in ("made", "found"):
                return reply
            placement = replace(placement, without=placement.without | {reply.machine})
            if len(placement.without) >= _MOST_ASKED or not any(map(placement.allows, self._executor.offers())):
                raise error_of(reply)


def _placement(item: UnknownToolchain) -> Placement:
    return Placement(labels_of(item.action, item.platform))
