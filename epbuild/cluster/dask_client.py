"""`DaskExecutor`: requests on the workers of a Dask scheduler.

Nothing is pickled but strings and the names of two functions. A request's key is its task's, so that what two clients ask for is
executed once. Labels are Dask's resources.
"""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from epbuild.cache.leases import Cancelled
from epbuild.cluster.address import ClusterAddress
from epbuild.cluster.dask import distributed
from epbuild.cluster.dask_worker import TOPIC, cancel_request, event_of, run_request
from epbuild.cluster.executor import NOBODY_SECONDS, Lost, Offer, RequestExecutor, nobody_offers
from epbuild.cluster.labels import MEMORY
from epbuild.cluster.reply import MachineReply, read_reply
from epbuild.cluster.request import ActionRequest
from epbuild.core.errors import Problem
from epbuild.core.typed_json import MalformedJson
from epbuild.engine.events import Progress

_CONNECT_SECONDS = 10
_CLOSE_SECONDS = 2
_POLL_SECONDS = 0.2
_ASK_SECONDS = 10
_LOGS = "See the logs of the workers."
_RUN_AGAIN = "Run the build again: what was finished is in the remote cache."


class DaskExecutor:
    """Executes requests on the workers of a scheduler. Any number of threads may use one. Raises Lost where it cannot be reached."""

    def __init__(self, address: ClusterAddress, cancelled: threading.Event) -> None:
        client = distributed().Client
        self._address = address
        self._cancelled = cancelled
        self._listeners: dict[str, Progress] = {}
        try:
            self._client: Any = client(address.text, security=address.security(), set_as_default=False, timeout=_CONNECT_SECONDS)
            self._client.subscribe_topic(TOPIC, self._hear)
        except (OSError, ValueError, TypeError) as error:
            raise _unreachable(address, error) from error

    def offers(self) -> Sequence[Offer]:
        try:
            known = self._client.sync(self._client.scheduler.identity, n_workers=-1)
        except (OSError, RuntimeError, ValueError) as error:
            raise _unreachable(self._address, error) from error
        return tuple(_offer(worker) for worker in known["workers"].values())

    def execute(self, request: ActionRequest, needs: Mapping[str, float], progress: Progress) -> MachineReply:
        self._listeners[request.key] = progress
        try:
            return next(reply for reply in self._replies(request, needs) if reply.outcome != "cancelled")
        finally:
            self._listeners.pop(request.key, None)

    def close(self) -> None:
        self._client.close(timeout=_CLOSE_SECONDS)

    def _replies(self, request: ActionRequest, needs: Mapping[str, float]) -> Iterator[MachineReply]:
        """The replies to a request that is made again and again: another client may cancel what it waits for too."""
        for attempt in itertools.count():
            # A number, as what another client cancelled goes by its name until all have let it go.
            name, ended = f"epbuild-{request.key}-{attempt}", threading.Event()
            future = self._client.submit(
                run_request, request.text, key=name, resources=dict(needs), retries=0, priority=round(request.seconds)
            )
            future.add_done_callback(lambda _, ended=ended: ended.set())
            alone = _Alone(self, frozenset(needs) - {MEMORY})
            try:
                while not ended.wait(_POLL_SECONDS):
                    if self._cancelled.is_set():
                        self._cancel(future, request.key)
                    alone.check()
                yield self._reply(future)
            finally:
                future.release()  # what is held is executed again where its machine dies

    def _cancel(self, future: Any, key: str) -> None:
        self._client.run(cancel_request, key, on_error="ignore")
        future.cancel()
        raise Cancelled(key)

    def _reply(self, future: Any) -> MachineReply:
        package = distributed()
        try:
            return read_reply(future.result(timeout=_CLOSE_SECONDS))
        except package.KilledWorker as error:
            message = f"the machine that executed it went away, {error.allowed_failures + 1} times"
            raise Lost(Problem("EPB534", message, None, _LOGS)) from error
        except package.client.FutureCancelledError as error:
            if self._cancelled.is_set():
                raise Cancelled(future.key) from error
            raise Lost(Problem("EPB535", "the cluster's scheduler went away", None, _RUN_AGAIN)) from error
        except MalformedJson as error:
            raise Lost(Problem("EPB534", f"a machine gave no reply: {error}", None, _LOGS)) from error

    def _hear(self, event: tuple[float, Any]) -> None:
        """Pass an event of a request on to the thread that waits for it. Called in a thread of Dask's."""
        try:
            key, plain = json.loads(event[1])
        except (ValueError, TypeError):
            return
        listener, found = self._listeners.get(key), event_of(plain)
        if listener is not None and found is not None:
            listener.report(found)


class _Alone:
    """How long no machine has offered what a request needs: the scheduler would keep it for ever."""

    def __init__(self, executor: RequestExecutor, labels: frozenset[str]) -> None:
        self._executor = executor
        self._labels = labels
        self._seen = self._asked = time.monotonic()

    def check(self) -> None:
        """Raises Lost (EPB539) after a minute. Called often, and asks seldom."""
        now = time.monotonic()
        if now - self._asked < _ASK_SECONDS:
            return
        self._asked = now
        offers = self._executor.offers()
        if any(offer.serves(self._labels) for offer in offers):
            self._seen = now
        elif now - self._seen > NOBODY_SECONDS:
            raise nobody_offers(self._labels, offers)


def _offer(worker: Mapping[str, Any]) -> Offer:
    resources = worker.get("resources") or {}
    labels = frozenset(str(name) for name in resources if name != MEMORY)
    return Offer(str(worker.get("name") or worker.get("host")), labels, int(worker["nthreads"]), int(resources.get(MEMORY, 0)))


def _unreachable(address: ClusterAddress, error: Exception) -> Lost:
    message = f"the cluster's scheduler {address.text} cannot be reached: {error}"
    return Lost(Problem("EPB535", message, None, "Check its address, and that it runs."))
