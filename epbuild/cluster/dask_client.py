"""`DaskExecutor`: executes requests on the workers of a Dask scheduler.

Sent pickles contain only strings and the names of two functions. Pickles in replies may not name any function. The name of a Dask task
contains the key of its request, so that a request that two clients send is executed only once. Labels are represented as Dask resources.
"""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from epbuild.cluster.address import ClusterAddress
from epbuild.cluster.dask import RefusedPickle, import_distributed
from epbuild.cluster.dask_probe import METRIC
from epbuild.cluster.dask_worker import TOPIC, cancel_request, decode_event, run_request
from epbuild.cluster.placement import (
    FROZEN_SECONDS,
    MEMORY,
    RELEASE_LABEL,
    Heartbeats,
    Offer,
    OfferTimeout,
    Placement,
)
from epbuild.cluster.protocol import (
    MachineReply,
    PendingRequest,
    SchedulerLostError,
    make_lost_action_error,
    make_unoffered_error,
    read_reply,
)
from epbuild.cluster.request import ActionRequest
from epbuild.core.errors import BuildError, Cancelled, Problem
from epbuild.engine.events import Progress

_CONNECT_SECONDS = 10
_CLOSE_SECONDS = 2
_POLL_SECONDS = 0.2
_READ_SECONDS = 3.0
_ANSWER_SECONDS = 10
_RESTART_SECONDS = 5
_KILLED = "KilledWorker"
"""Name of the exception that the scheduler sends for a task whose workers died."""
_LOGS = "Check the logs of the workers."
_RUN_AGAIN = "Run the build again: finished results are in the remote cache."


class DaskExecutor:
    """Executor of requests on the workers of a scheduler. Thread-safe. Raises SchedulerLostError."""

    def __init__(self, address: ClusterAddress, cancelled: threading.Event) -> None:
        client = import_distributed().Client
        self._address = address
        self._cancelled = cancelled
        self._closed = threading.Event()
        self._pending: dict[str, PendingRequest] = {}
        """Pending requests, by the names of their Dask tasks."""
        self._attempts: defaultdict[str, Iterator[int]] = defaultdict(itertools.count)
        self._heartbeats, self._unserved = Heartbeats(), OfferTimeout()
        try:
            self._client: Any = client(
                address.text, security=address.build_security(), set_as_default=False, timeout=_CONNECT_SECONDS
            )
            self._client.subscribe_topic(TOPIC, self._receive_event)
        except (OSError, ValueError, TypeError) as error:
            raise _make_unreachable_error(address, error) from error
        self._workers = self._read_workers()
        self._watching = threading.Thread(target=self._watch, name="cluster", daemon=True)
        self._watching.start()

    def offers(self) -> Sequence[Offer]:
        return tuple(map(_parse_offer, self._workers.values()))

    def wait_for_offer(self, placement: Placement, actions: int) -> None:
        while not any(map(placement.allows, offers := self.offers())):
            if self._unserved.has_expired(placement, offers):
                raise make_unoffered_error(placement.labels, offers, actions)
            if self._cancelled.wait(_POLL_SECONDS):
                raise Cancelled("the cluster")

    def execute(self, request: ActionRequest, placement: Placement, progress: Progress) -> MachineReply:
        while True:
            reply = self._request_reply(request, PendingRequest(request.step, placement, progress))
            if reply.outcome != "cancelled":  # cancelled by another client that also waited for it
                return reply

    def close(self) -> None:
        self._closed.set()
        self._watching.join(_CLOSE_SECONDS)
        with suppress(TimeoutError):  # the scheduler is slow to answer
            self._client.close(timeout=_CLOSE_SECONDS)

    def _request_reply(self, request: ActionRequest, pending: PendingRequest) -> MachineReply:
        # Tasks are numbered: after another client cancels a task, its name stays in use until all clients release the task.
        name, placement = f"epbuild-{request.key}-{next(self._attempts[request.key])}", pending.placement
        allowed = [offer.machine for offer in self.offers() if placement.allows(offer)] if placement.without else None
        self._pending[name] = pending
        try:
            future = self._client.submit(
                run_request,
                request.text,
                key=name,
                resources={**dict.fromkeys(placement.labels, 1.0), MEMORY: float(placement.memory)},
                retries=0,
                priority=round(request.seconds),
                workers=allowed,
            )
        except import_distributed().client.ClosedClientError as error:  # Dask stops reconnecting after a while
            del self._pending[name]
            raise _make_lost_error() from error
        # The reply is fetched in a thread, as it may arrive slowly. If the machine disconnects before that, another machine executes
        # the task.
        fetching = threading.Thread(target=pending.finish, args=(partial(self._fetch_reply, future, pending),), daemon=True)
        future.add_done_callback(lambda _: fetching.start())
        try:
            pending.changed.wait()
            if self._cancelled.is_set():
                self._stop(future, pending)
                raise Cancelled(request.key)
            if pending.error is not None:
                if not isinstance(pending.error, SchedulerLostError) and not future.done():
                    self._stop(future, pending)
                raise pending.error
            if pending.reply is not None:
                return pending.reply
            raise AssertionError("a request ends with a reply, or an error")
        finally:
            self._pending.pop(name, None)
            future.release()  # otherwise, the task is executed again if its machine dies

    def _stop(self, future: Any, pending: PendingRequest) -> None:
        """Cancel a request, also on the machine that executes it. Errors are ignored, as the scheduler may be gone."""
        addresses = [address for address in pending.machines if address in self._workers]
        with suppress(OSError, import_distributed().client.ClosedClientError):
            future.cancel()
            if addresses:
                self._client.run(cancel_request, future.key, workers=addresses[-1:], on_error="ignore")

    def _fetch_reply(self, future: Any, pending: PendingRequest) -> MachineReply:
        error = future.exception()
        if isinstance(error, import_distributed().client.FutureCancelledError):
            raise _make_lost_error() from error
        machines = list(pending.machines.values())
        if isinstance(error, RefusedPickle) and error.mentions(_KILLED):
            raise make_lost_action_error(machines) from error
        if error is None:
            try:
                return read_reply(future.result())
            except import_distributed().client.FutureCancelledError as fault:
                raise _make_lost_error() from fault
            except Exception as fault:  # noqa: BLE001 - Dask raises almost anything for a reply that it cannot read
                error = fault
        machine = f"the machine {machines[-1]}" if machines else "a machine"
        message = f"{machine} sent no valid reply: {type(error).__name__}: {error}"
        raise BuildError(Problem("EPB534", message, None, _LOGS)) from error

    def _receive_event(self, event: tuple[float, Any]) -> None:
        """Forward an event to the pending request that it belongs to. Called in one of Dask's threads."""
        try:
            name, plain = json.loads(event[1])
            pending = self._pending.get(name)
        except (ValueError, TypeError):
            return
        if pending is None:
            return
        match plain:
            case ["begun", str(machine), str(address)]:
                pending.begin(machine, address)
            case _ if (found := decode_event(plain)) is not None:
                pending.report(found)

    def _watch(self) -> None:
        """Poll the cluster, and fail the requests that will get no reply."""
        read_at = answered_at = time.monotonic()
        while not self._closed.wait(_POLL_SECONDS):
            waiting = list(self._pending.values())
            if self._cancelled.is_set():
                for pending in waiting:
                    pending.changed.set()
            if time.monotonic() - read_at < _READ_SECONDS:
                continue
            read_at = time.monotonic()
            try:
                self._workers = self._read_workers()
            except SchedulerLostError as error:
                if read_at - answered_at > FROZEN_SECONDS:
                    for pending in waiting:
                        pending.fail(error)
                continue
            answered_at, offers = read_at, self.offers()
            for pending in waiting:
                if self._unserved.has_expired(pending.placement, offers):
                    pending.fail(make_unoffered_error(pending.placement.labels, offers))
            stopped = self._heartbeats.find_stale({address: worker["last_seen"] for address, worker in self._workers.items()})
            if stopped:
                threading.Thread(target=self._restart_workers, args=(stopped,), daemon=True).start()

    def _restart_workers(self, addresses: Sequence[str]) -> None:
        """Restart workers whose heartbeats stopped. If a machine is frozen, the scheduler drops its worker and reassigns the tasks."""
        with suppress(OSError, RuntimeError, ValueError):  # the workers are gone, or do not restart
            self._client.restart_workers(list(addresses), timeout=_RESTART_SECONDS)

    def _read_workers(self) -> Mapping[str, Any]:
        """Return the scheduler's information about each epbuild worker, by address. Raises SchedulerLostError."""
        scheduler = self._client.scheduler
        if scheduler is None:  # the client is reconnecting
            raise _make_lost_error()
        try:
            known = self._client.sync(scheduler.identity, n_workers=-1, callback_timeout=_ANSWER_SECONDS)
        except (OSError, RuntimeError, ValueError) as error:
            raise _make_unreachable_error(self._address, error) from error
        return {
            address: worker
            for address, worker in known["workers"].items()
            if any(name.startswith(RELEASE_LABEL) for name in worker.get("resources") or ())
        }


def _parse_offer(worker: Mapping[str, Any]) -> Offer:
    resources = worker.get("resources") or {}
    labels = frozenset(str(name) for name, amount in resources.items() if name != MEMORY and amount > 0)
    found = (worker.get("metrics") or {}).get(METRIC) or {}
    return Offer(
        str(worker.get("name") or worker.get("host")),
        labels,
        int(worker["nthreads"]),
        int(resources.get(MEMORY, 0)),
        {str(label): (str(outcome), str(why)) for label, (outcome, why) in found.items()},
    )


def _make_lost_error() -> SchedulerLostError:
    return SchedulerLostError(Problem("EPB535", "the connection to the cluster's scheduler was lost", None, _RUN_AGAIN))


def _make_unreachable_error(address: ClusterAddress, error: Exception) -> SchedulerLostError:
    message = f"the cluster's scheduler {address.text} cannot be reached: {error}"
    return SchedulerLostError(
        Problem("EPB535", message, None, "Check that the address is correct and that the scheduler is running.")
    )
