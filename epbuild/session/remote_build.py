"""Actions that other machines run, with inputs and results in the remote cache."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from epbuild.cache.errors import MissingBlob
from epbuild.cache.workspace import get_log_path
from epbuild.cluster.address import ClusterAddress
from epbuild.cluster.dask_client import DaskExecutor
from epbuild.cluster.placement import RELEASE, Placement, list_needed_labels
from epbuild.cluster.protocol import MachineReply, RequestExecutor, ToolchainDenyList, decode_error
from epbuild.cluster.request import ActionRequest, build_request, build_toolchain_request, find_local_reason, list_files
from epbuild.core.errors import Argument, EnvironmentFailure, EpbuildError, PlanError, Problem, StepId
from epbuild.core.shown import describe_files
from epbuild.engine.events import Progress, StepStarted, Warned, count_step_bytes
from epbuild.engine.loop import IdleActions
from epbuild.engine.scheduler import Runnable
from epbuild.plan.made import KeyedAction, find_blobs
from epbuild.plan.steps import Action
from epbuild.remote.cache import NotFetched, RemoteCache
from epbuild.session.events import ToolchainFailed, ToolchainReady, ToolchainStarted
from epbuild.session.shared_results import SharedResults
from epbuild.session.toolchains import Place, PlanToolchains, UnknownToolchain
from epbuild.survey.remote_results import RemoteResults
from epbuild.survey.status import Surveyor

MAX_IDLE = 256
"""Maximum number of actions that wait for other machines without occupying a job of this machine. Each action uses a thread."""
_MAX_UNABLE = 3
_IDENTITIES_AT_ONCE = 16
_MAX_IDENTITY_MACHINES = 3
"""Maximum number of machines to query for the identity of one toolchain."""
_PIECE_BYTES = 1 << 20
_NAME_CACHE = "Set `cache.remote` in the recipe, or EPBUILD_REMOTE_CACHE. With --rebuild-and-compare, build on this machine."
CHECK_CACHE = (
    "Check that workers write to the remote cache that this build reads, and that their keys are listed under `cache.trust`."
)


class RemoteResult(Struct, frozen=True):
    """Result of an action that another machine built or found."""

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
) -> Iterator[RemoteMachines]:
    """Connect to the machines of a scheduler. Raises PlanError if there is no remote cache, SchedulerLostError if the connection fails."""
    if shared.cache is None or shared.results is None:
        message = "other machines exchange inputs and results through a remote cache, but this build has none"
        raise PlanError(Problem("EPB538", message, Argument(address.text), _NAME_CACHE))
    executor = DaskExecutor(address, shared.cancelled)
    try:
        machines = RemoteMachines(executor, shared.cache, shared.results, surveyor, progress, toolchains)
        if (warning := machines.check_releases()) is not None:
            progress.report(Warned(warning))
        yield machines
    finally:
        executor.close()


class RemoteMachines(Struct):
    """Client for the other machines of one build. Any number of threads may use it."""

    executor: RequestExecutor
    cache: RemoteCache
    results: RemoteResults
    surveyor: Surveyor
    progress: Progress
    toolchains: PlanToolchains
    _refusals: ToolchainDenyList = field(default_factory=ToolchainDenyList)
    _decisions: dict[str, bool] = field(default_factory=dict)
    _unserved: Counter[frozenset[str]] = field(default_factory=Counter)
    """Number of actions that need labels that no machine offered."""
    _decision_lock: threading.Lock = field(default_factory=threading.Lock)

    def check_releases(self) -> Problem | None:
        """Return a warning about machines with another release of epbuild, or None if all machines have this release."""
        machines = sorted(offer.machine for offer in self.executor.offers() if RELEASE not in offer.labels)
        if not machines:
            return None
        message = f"{', '.join(machines)} {'has' if len(machines) == 1 else 'have'} another release of epbuild and cannot be used"
        return Problem("EPB540", message, None, "Install the same release on all machines.")

    def runs(self, action: Action) -> bool:
        """Return whether an action runs on other machines. True if a machine can run it or this machine cannot.

        The decision for each action is made only once.
        """
        with self._decision_lock:
            if action.id not in self._decisions:
                self._decisions[action.id] = self._is_for_others(action)
            return self._decisions[action.id]

    def _is_for_others(self, action: Action) -> bool:
        if action.runs_in is None or find_local_reason(action) is not None:
            return False
        labels = self._list_labels(action)
        if any(offer.serves(labels) for offer in self.executor.offers()):
            return True
        self._unserved[labels] += 1
        return not self.toolchains.is_for_here(action)

    def _list_labels(self, action: Action) -> frozenset[str]:
        return list_needed_labels(action, self.toolchains.find_locked_environment(action)[0])

    def run(self, subject: KeyedAction, expected: Runnable, idle: IdleActions) -> RemoteResult | None:
        """Run an action on another machine. While the action waits, this machine can run another job.

        Returns None if the offering machines lack a device or a driver that this machine may have. Raises the error of the failed
        run, EnvironmentFailure if no machine can run the action, and Cancelled.
        """
        action, key, step = subject.action, subject.key, subject.action.steps[0]
        labels, (_, environment) = self._list_labels(action), self.toolchains.find_locked_environment(action)
        self.progress.report(StepStarted(step, "waiting for a machine"))
        with _release_job(action, idle):
            self.executor.wait_for_offer(Placement(labels), self._unserved[labels] or 1)
        digests = self._compute_digests(subject)
        artifacts = [blob for made in subject.needed for blob in made.result.artifacts.values()]
        request = replace(
            build_request(action, key, digests, artifacts, environment), memory=expected.memory, seconds=expected.cost.seconds
        )
        self.progress.report(StepStarted(step, "sending"))
        self._upload_inputs(subject, request, digests)
        self.progress.report(StepStarted(step, "waiting for a machine"))
        with _release_job(action, idle):
            reply = self._request_reply(action, request, labels)
        if reply.outcome == "unable" and reply.is_unfit and self.toolchains.is_for_here(action):
            return None
        self._keep_log(action, reply)
        if reply.outcome not in ("made", "found"):
            raise decode_error(reply)
        result = self.results.fetch_new(key, action.id)
        if result is None:
            message = f"{reply.machine} built the result, but it cannot be read from the remote cache"
            raise EnvironmentFailure(Problem("EPB537", message, StepId(action.id), CHECK_CACHE))
        return RemoteResult(result, reply.machine, reply.outcome == "made")

    def _request_reply(self, action: Action, request: ActionRequest, labels: frozenset[str]) -> MachineReply:
        """Return the reply of the first machine that can run an action. If no machine can, return the last machine's reply."""
        toolchain = action.runs_in.toolchain.name if action.runs_in is not None else ""
        unable: dict[str, MachineReply] = {}
        while True:
            without = self._refusals.list_machines(toolchain).union(unable)
            serving = [offer for offer in self.executor.offers() if offer.serves(labels)]
            last = next(reversed(unable.values()), None) or self._refusals.find_last(toolchain, action.id)
            tried = sum(not reply.is_unfit for reply in unable.values())
            if last is not None and (tried >= _MAX_UNABLE or without.issuperset(offer.machine for offer in serving)):
                return last
            memory = min(request.memory, max((offer.memory for offer in serving), default=0))
            reply = self.executor.execute(request, Placement(labels, memory, without), self.progress)
            if reply.outcome == "unable":
                unable[reply.machine] = reply
            elif reply.outcome != "refused":
                return reply
            elif (warning := self._refusals.add(toolchain, reply)) is not None:
                self.progress.report(Warned(warning))

    def _compute_digests(self, subject: KeyedAction) -> dict[Path, str]:
        files, blobs = list_files(subject.action), find_blobs(self.surveyor.store, subject.needed)
        digests = {**self.surveyor.digests.of_many(file for file in files if file not in blobs), **blobs}
        return {file: digests[file] for file in files}

    def _upload_inputs(self, subject: KeyedAction, request: ActionRequest, digests: Mapping[Path, str]) -> None:
        """Upload all inputs of an action to the remote cache."""
        store, action = self.surveyor.store, subject.action
        places = {digest: path for path, digest in digests.items()}
        artifacts = {blob.digest: name for made in subject.needed for name, blob in made.result.artifacts.items()}
        names = {**artifacts, **{digest: str(path) for digest, path in places.items()}}
        sizes = {names.get(blob.digest, blob.digest): blob.size for blob in request.files}
        total = sum(blob.size for blob in request.files)
        with count_step_bytes(self.progress, action.steps[0], f"uploading {describe_files(sizes)}", total) as count:
            for blob in request.files:
                path = places.get(blob.digest)
                pieces = partial(store.pieces, blob.digest) if path is None else partial(_read_pieces, path)
                if not self.cache.upload_input(blob, pieces, count):
                    message = "the inputs of the action cannot be uploaded to the remote cache for other machines"
                    hint = "Check that this machine may write to the remote cache, or build without --executor."
                    raise EnvironmentFailure(Problem("EPB537", message, StepId(action.id), hint))

    def _keep_log(self, action: Action, reply: MachineReply) -> None:
        """Remove the log of an earlier run. If this run failed, save its log. The log of a successful run is part of the result."""
        workspace, recipe = self.surveyor.workspace, self.surveyor.memory.configuration.recipe
        path = get_log_path(workspace.directory, action.id, recipe)
        with suppress(NotFetched, MissingBlob, OSError):  # a missing log changes nothing
            path.unlink(missing_ok=True)
            if reply.log is not None and reply.outcome not in ("made", "found"):
                self.cache.fetch(reply.log, self.surveyor.store)
                path.parent.mkdir(exist_ok=True)
                path.write_bytes(self.surveyor.store.read_bytes(reply.log.digest))


@contextmanager
def _release_job(action: Action, idle: IdleActions) -> Iterator[None]:
    """Free the job of an action on this machine while it waits for another machine."""
    if len(idle) < MAX_IDLE:
        idle.add(action.id)
    try:
        yield
    finally:
        idle.discard(action.id)


def _read_pieces(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while piece := file.read(_PIECE_BYTES):
            yield piece


class IdentityRequests(Struct, frozen=True):
    """Client that requests toolchain identities, which other machines then publish in the remote cache.

    With these identities, this machine can compute keys without provisioning toolchains, even for other platforms.
    """

    executor: RequestExecutor
    known: PlanToolchains
    progress: Progress

    def fetch(self, unknown: Mapping[Place, UnknownToolchain]) -> None:
        """Request that other machines publish the records of the `unknown` toolchains, and read the records.

        A toolchain of this platform is provisioned here later if no machine offers it. Raises UnofferedError if no machine offers a
        toolchain of another platform within a minute. Also raises SchedulerLostError, the error of a failed provisioning, and Cancelled.
        """
        offered = self._find_offered(unknown)
        with ThreadPoolExecutor(_IDENTITIES_AT_ONCE, thread_name_prefix="identity") as pool:
            list(pool.map(self._request, offered.values()))
        self.known.reread_records(offered)
        for item in offered.values():
            if self.known.of(item.action) is None and not self.known.is_for_here(item.action):
                name = item.needs.toolchain.name
                message = f"the record of the toolchain '{name}' for {item.platform} cannot be read from the remote cache"
                raise EnvironmentFailure(Problem("EPB537", message, item.needs.toolchain.where, CHECK_CACHE))

    def _find_offered(self, unknown: Mapping[Place, UnknownToolchain]) -> dict[Place, UnknownToolchain]:
        """Return the toolchains that a machine offers. Wait for offers of toolchains that cannot be provisioned here."""
        for item in unknown.values():
            if not self.known.is_for_here(item.action):
                self.executor.wait_for_offer(_make_placement(item), 1)
        offers = self.executor.offers()
        return {place: item for place, item in unknown.items() if any(map(_make_placement(item).allows, offers))}

    def _request(self, item: UnknownToolchain) -> None:
        name, begin = item.needs.toolchain.name, time.monotonic()
        self.progress.report(ToolchainStarted(name, f"requesting the record for {item.platform} from a machine of the cluster"))
        request = build_toolchain_request(item.needs, item.locked, item.records)
        try:
            reply = self._request_reply(request, _make_placement(item))
        except EpbuildError as error:
            self.progress.report(ToolchainFailed(name))
            if not self.known.is_for_here(item.action):
                raise
            for problem in error.problems:  # the toolchain is provisioned here
                self.progress.report(Warned(problem))
            return
        runtime = next((package.version for package in item.locked.packages if package.name == "onnxruntime"), "")
        self.progress.report(ToolchainReady(name, runtime, time.monotonic() - begin, f"recorded by {reply.machine}"))

    def _request_reply(self, request: ActionRequest, placement: Placement) -> MachineReply:
        """Return the reply of the first machine that has or provisions the toolchain. Raises the last machine's error."""
        while True:
            reply = self.executor.execute(request, placement, self.progress)
            if reply.outcome in ("made", "found"):
                return reply
            placement = replace(placement, without=placement.without | {reply.machine})
            if len(placement.without) >= _MAX_IDENTITY_MACHINES or not any(map(placement.allows, self.executor.offers())):
                raise decode_error(reply)


def _make_placement(item: UnknownToolchain) -> Placement:
    return Placement(list_needed_labels(item.action, item.platform))
