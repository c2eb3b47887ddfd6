"""Actions that other machines execute, by way of the remote cache."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from epbuild.cache.errors import MissingBlob
from epbuild.cache.leases import Cancelled
from epbuild.cache.logs import log_file
from epbuild.cluster.address import ClusterAddress
from epbuild.cluster.dask_client import DaskExecutor
from epbuild.cluster.executor import NOBODY_SECONDS, Offer, RequestExecutor, nobody_offers
from epbuild.cluster.labels import RELEASE, labels_of, needed
from epbuild.cluster.reply import MachineReply
from epbuild.cluster.request import ActionRequest, files_of, only_here, request_of
from epbuild.commands.execution import KeyedAction, digests_of
from epbuild.commands.shared_results import SharedResults
from epbuild.commands.toolchains import PlanToolchains
from epbuild.core.digest import Blob
from epbuild.core.errors import Argument, EnvironmentFailure, EpbuildError, PlanError, Problem, StepId
from epbuild.engine.action import Runnable
from epbuild.engine.events import Progress, StepStarted, Warned
from epbuild.engine.loop import Idle
from epbuild.plan.steps import Action
from epbuild.remote.cache import NotFetched, RemoteCache
from epbuild.survey.remote_results import RemoteResults
from epbuild.survey.status import Surveyor

MOST_AT_ONCE = 256
"""How many actions wait for other machines without taking a place of this one's: each has a thread."""
_ASK_SECONDS = 1.0
_PIECE_BYTES = 1 << 20
_NAME_CACHE = "Name one under `cache.remote` in the recipe, or in EPBUILD_REMOTE_CACHE; with --rebuild-and-compare, build here."
_LOOK_AT_CACHE = "Check that workers write to the remote cache that this build reads, with a key under `cache.trust`."


@dataclass(frozen=True)
class MadeElsewhere:
    """What a machine made of an action, or found."""

    result: Mapping[str, Any]
    machine: str
    is_new: bool


@contextmanager
def open_cluster(
    address: ClusterAddress,
    shared: SharedResults,
    surveyor: Surveyor,
    progress: Progress,
    toolchains: PlanToolchains,
) -> Iterator[Elsewhere]:
    """The machines that a scheduler knows. Raises PlanError without a remote cache, and Lost where it cannot be reached."""
    if shared.cache is None or shared.results is None:
        message = "other machines read inputs from a remote cache and write results to it, and this build uses none"
        raise PlanError(Problem("EPB538", message, Argument(address.text), _NAME_CACHE))
    executor = DaskExecutor(address, shared.cancelled)
    try:
        found = Elsewhere(executor, shared.cache, shared.results, surveyor, progress, toolchains, shared.cancelled)
        if (warning := found.others()) is not None:
            progress.report(Warned(warning))
        yield found
    finally:
        executor.close()


class Elsewhere:
    """Other machines, for one build. For any thread."""

    def __init__(
        self,
        executor: RequestExecutor,
        cache: RemoteCache,
        results: RemoteResults,
        surveyor: Surveyor,
        progress: Progress,
        toolchains: PlanToolchains,
        cancelled: threading.Event,
    ) -> None:
        self._cancelled = cancelled
        self._executor = executor
        self._cache = cache
        self._results = results
        self._surveyor = surveyor
        self._progress = progress
        self._toolchains = toolchains
        self._offers: Sequence[Offer] = executor.offers()

    def others(self) -> Problem | None:
        """A warning where machines have another release of epbuild; None where there are none."""
        machines = sorted(offer.machine for offer in self._offers if RELEASE not in offer.labels)
        if not machines:
            return None
        message = f"{', '.join(machines)} {'has' if len(machines) == 1 else 'have'} another release of epbuild, and nothing to do"
        return Problem("EPB540", message, None, "Install the same release on all machines.")

    def wait_for_machines(self, actions: Iterable[Action]) -> None:
        """Wait for machines that offer what cannot be made here. Raises Lost where there are none after a minute, and Cancelled."""
        missing = [
            self._labels(action)
            for action in actions
            if action.runs_in is not None and not self._toolchains.is_for_here(action) and not self.takes(action)
        ]
        deadline = time.monotonic() + NOBODY_SECONDS
        while missing:
            if time.monotonic() > deadline:
                raise nobody_offers(missing[0], self._offers, len(missing))
            if self._cancelled.wait(_ASK_SECONDS):
                raise Cancelled("the cluster")
            self._offers = self._executor.offers()
            missing = [labels for labels in missing if not self._is_offered(labels)]

    def takes(self, action: Action) -> bool:
        """Whether some machine offers what an action needs."""
        return only_here(action) is None and self._is_offered(self._labels(action))

    def _labels(self, action: Action) -> frozenset[str]:
        return labels_of(action, self._toolchains.locked_for(action)[0])

    def _is_offered(self, labels: frozenset[str]) -> bool:
        return any(offer.serves(labels) for offer in self._offers)

    def make(self, subject: KeyedAction, key: str, expected: Runnable, idle: Idle) -> MadeElsewhere:
        """Have an action made; it takes no place of this machine's meanwhile.

        Raises the error that it failed with, EnvironmentFailure where no machine makes it, and Cancelled.
        """
        action, step = subject.action, subject.action.steps[0]
        digests = self._digests(subject)
        artifacts = [blob for made in subject.needed for blob in made.result.artifacts.values()]
        _, environment = self._toolchains.locked_for(action)
        request = replace(
            request_of(action, key, digests, artifacts, environment), memory=expected.memory, seconds=expected.cost.seconds
        )
        self._progress.report(StepStarted(step, "sending"))
        self._provide(action, request, digests)
        self._progress.report(StepStarted(step, "waiting for a machine"))
        labels = self._labels(action)
        most = max((offer.memory for offer in self._offers if offer.serves(labels)), default=0)
        if len(idle) < MOST_AT_ONCE:
            idle.add(action.id)
        try:
            reply = self._executor.execute(request, needed(labels, min(expected.memory, most)), self._progress)
        finally:
            idle.discard(action.id)
        if reply.log is not None:
            self._keep_log(action, reply.log)
        if reply.outcome in ("failed", "refused"):
            raise _error_of(reply)
        result = self._results.bring_new(key, action.id)
        if result is None:
            message = f"{reply.machine} made it, and its result cannot be had from the remote cache"
            raise EnvironmentFailure(Problem("EPB537", message, StepId(action.id), _LOOK_AT_CACHE))
        return MadeElsewhere(result, reply.machine, reply.outcome == "made")

    def _digests(self, subject: KeyedAction) -> dict[Path, str]:
        files = files_of(subject.action)
        known = digests_of(self._surveyor, subject, files)
        return {file: known[file] for file in files}

    def _provide(self, action: Action, request: ActionRequest, digests: Mapping[Path, str]) -> None:
        """Have all that an action reads in the remote cache."""
        store = self._surveyor.store
        places = {digest: path for path, digest in digests.items()}
        for blob in request.files:
            path = places.get(blob.digest)
            pieces = partial(store.pieces, blob.digest) if path is None else partial(_file_pieces, path)
            if not self._cache.provide(blob, pieces):
                message = "its inputs cannot be written to the remote cache, where other machines read them"
                hint = "Check that this machine may write there, or build without --executor."
                raise EnvironmentFailure(Problem("EPB537", message, StepId(action.id), hint))

    def _keep_log(self, action: Action, log: Blob) -> None:
        workspace, recipe = self._surveyor.workspace, self._surveyor.memory.configuration.recipe
        place = log_file(workspace.directory, action.id, recipe)
        with suppress(NotFetched, MissingBlob, OSError):  # a log that cannot be had changes nothing
            self._cache.fetch(log, self._surveyor.store)
            place.parent.mkdir(exist_ok=True)
            place.write_bytes(self._surveyor.store.read_bytes(log.digest))


def _file_pieces(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while piece := file.read(_PIECE_BYTES):
            yield piece


def _error_of(reply: MachineReply) -> EpbuildError:
    error = reply.raised()
    problems = (replace(problem, message=f"on {reply.machine}: {problem.message}") for problem in error.problems)
    return type(error)(*problems)
