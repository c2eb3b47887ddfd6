"""A cluster with TLS, and clients without a certificate or with one of another authority.

Such clients can submit, read and stop nothing.
"""

from __future__ import annotations

import asyncio
import http.client
import socket
import ssl
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
from distributed.comm.core import connect

from epbuild.cluster.address import ClusterAddress
from epbuild.cluster.certificates import make_certificates
from tests.support.clusters import Cluster, on, quick, running_cluster
from tests.support.projects import compiled
from tests.support.quick_builds import COMPILES

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="ports as Linux shows them")]

SECONDS = 2
VERBS: Mapping[str, Mapping[str, Any]] = {
    "read": {"op": "identity"},
    "submit": {"op": "run_function", "function": b"", "args": b"", "kwargs": b""},
    "run": {"op": "run", "function": b"", "args": b"", "kwargs": b"", "wait": True},
    "stop": {"op": "terminate"},
    "remove": {"op": "retire_workers"},
}
PAGES = (
    "/",
    "/health",
    "/metrics",
    "/json/identity.json",
    "/json/counts.json",
    "/info/main/workers.html",
    "/api/v1/retire_workers",
)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("guarded")
    make_certificates(folder / "certificates")
    make_certificates(folder / "strangers")
    with running_cluster(folder / "cluster", workers=1, certificates=folder / "certificates") as running:
        yield running


def ports(cluster: Cluster) -> set[int]:
    """Return the ports on which the scheduler, the worker and its nanny listen."""
    found = set()
    assert cluster.scheduler is not None
    for begun in (cluster.scheduler.process.pid, *(worker.process.pid for worker in cluster.workers)):
        parent = psutil.Process(begun)
        for process in (parent, *parent.children(recursive=True)):
            found |= {place.laddr.port for place in process.net_connections("tcp") if place.status == psutil.CONN_LISTEN}
    return found


def ask(address: str, message: Mapping[str, Any], **options: Any) -> object:
    """Return the answer to a Dask message. Raise OSError if none arrives."""

    async def asked() -> object:
        line = await connect(address, timeout=SECONDS, **options)  # type: ignore[no-untyped-call]
        try:
            await line.write({**message, "reply": True})
            return await asyncio.wait_for(line.read(), SECONDS)
        finally:
            line.abort()

    return asyncio.run(asked())


@dataclass(frozen=True)
class Try:
    """A message to an address, with these TLS options."""

    verb: str
    address: str
    options: Mapping[str, Any]


def answered(tries: Sequence[Try]) -> list[tuple[str, str]]:
    """Send all messages at once, and return those that were answered.

    Dask's client may wait forever for a server that sends nothing. The test abandons such a thread.
    """
    found: list[tuple[str, str]] = []

    def attempt(one: Try) -> None:
        with suppress(OSError, ValueError, TypeError, RuntimeError):  # RuntimeError: for a tcp:// that has to be a tls://
            ask(one.address, VERBS[one.verb], **one.options)
            found.append((one.verb, one.address))

    threads = [threading.Thread(target=attempt, args=(one,), daemon=True) for one in tries]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + 4 * SECONDS
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    return found


def certificates(cluster: Cluster, authority: str) -> Mapping[str, Any]:
    security = ClusterAddress("", cluster.folder.parent / authority / "client").build_security()
    options: Mapping[str, Any] = security.get_connection_args("client")
    return options


def test_clients_with_a_certificate_get_an_answer(guarded: Cluster) -> None:
    address = f"tls://127.0.0.1:{guarded.port}"
    assert answered([Try("read", address, certificates(guarded, "certificates"))]) == [("read", address)]
    assert len(ports(guarded)) >= len(("scheduler", "worker", "nanny"))


def test_clients_without_a_trusted_certificate_get_no_answer_on_any_port(guarded: Cluster) -> None:
    strangers, places = certificates(guarded, "strangers"), [f"127.0.0.1:{port}" for port in ports(guarded)]
    tries = [Try(verb, f"tcp://{place}", {}) for verb in VERBS for place in places]
    tries += [Try(verb, f"tls://{place}", strangers) for verb in VERBS for place in places]
    assert answered(tries) == []


def test_clients_without_a_certificate_receive_no_data(guarded: Cluster) -> None:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    for port in ports(guarded):
        received = b""
        try:
            with (
                socket.create_connection(("127.0.0.1", port), SECONDS) as line,
                context.wrap_socket(line) as safe,
            ):
                received = safe.recv(1)
        except OSError:
            continue
        assert received == b"", port


def test_no_port_answers_http(guarded: Cluster) -> None:
    for port in ports(guarded):
        for method in ("GET", "POST"):
            for page in PAGES:
                line = http.client.HTTPConnection("127.0.0.1", port, timeout=SECONDS)
                try:
                    line.request(method, page)
                    status = line.getresponse().status
                except (OSError, http.client.HTTPException):
                    continue
                finally:
                    line.close()
                assert status == http.HTTPStatus.NOT_FOUND, (port, method, page)


def test_a_build_succeeds_after_the_hostile_requests(guarded: Cluster, tmp_path: Path) -> None:
    project = quick(tmp_path, guarded, "guarded")
    own = guarded.folder.parent / "certificates" / "client"
    assert compiled(project.build(*on(guarded), "--tls", str(own))) == COMPILES
