"""Executors: the local one and the one on a Dask cluster fulfill the same contract."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest
from msgspec.structs import replace

from epbuild.actions.types import get_action_type
from epbuild.cluster.abilities import list_possible_abilities
from epbuild.cluster.address import ClusterAddress
from epbuild.cluster.dask_client import DaskExecutor
from epbuild.cluster.machine import Machine
from epbuild.cluster.placement import RELEASE, Offer, Placement, list_needed_labels, list_own_labels
from epbuild.cluster.protocol import RequestExecutor
from epbuild.cluster.request import ActionRequest, build_request, list_files
from epbuild.core.digest import Blob, hash_file
from epbuild.core.errors import Cancelled, EnvironmentFailure, ToolchainError, VerifyError
from epbuild.engine.events import EventList, StepStarted
from epbuild.plan.key import compute_action_key
from epbuild.plan.remote_record import COMPILE
from epbuild.plan.steps import SessionGroup
from epbuild.remote.cache import RemoteCache
from epbuild.remote.envelope import RemoteRecord
from epbuild.remote.keys import SigningKey
from epbuild.remote.opening import open_folder_stores
from epbuild.session.planning import read_plan
from epbuild.session.request import Request
from epbuild.toolchain.environment import list_toolchains
from epbuild.toolchain.platforms import get_own_platform
from tests.support.clusters import Cluster, running_cluster
from tests.support.local_executor import LocalExecutor
from tests.support.projects import Project
from tests.support.quick_builds import write_project

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running_cluster(tmp_path_factory.mktemp("cluster"), workers=1) as running:
        yield running


@dataclass
class ExecutorClient:
    """Executor, its requests, and the remote cache between client and worker."""

    executor: RequestExecutor
    remote: RemoteCache
    group: SessionGroup
    cancelled: threading.Event
    events: EventList = field(default_factory=EventList)

    def request(self, group: SessionGroup | None = None) -> ActionRequest:
        group = group or self.group
        needs = group.runs_in
        environment = list_toolchains().prepare(needs.toolchain, Path(), needs.entries)
        digests = {file: hash_file(file) for file in list_files(group)}
        document = get_action_type(group).key_document(group, digests, get_action_type(group).identity(group, environment))
        for file, digest in digests.items():
            data = file.read_bytes()
            assert self.remote.upload_input(Blob(digest, len(data)), partial(iter, [data]))
        return build_request(group, compute_action_key(document), digests)

    def execute(self, request: ActionRequest):  # type: ignore[no-untyped-def]
        placement = Placement(list_needed_labels(self.group, get_own_platform() or ""))
        return self.executor.execute(request, placement, self.events)


@pytest.fixture(params=["local", "dask"])
def client(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ExecutorClient]:
    cancelled = threading.Event()
    key, place = SigningKey.generate(), tmp_path / "remote"
    if request.param == "dask":
        running: Cluster = request.getfixturevalue("cluster")
        key, place = running.key, running.remote
    remote = RemoteCache(
        open_folder_stores(place, writes=True),
        "the cache",
        trust={key.public},
        signer=key,
        warn=lambda problem: pytest.fail(str(problem)),
    )
    executor: RequestExecutor
    if request.param == "dask":
        executor = DaskExecutor(ClusterAddress(f"tcp://127.0.0.1:{running.port}"), cancelled)
    else:
        offer = Offer("here", list_own_labels(list_possible_abilities()), 1, 0)
        executor = LocalExecutor(Machine(tmp_path / "cache", list_toolchains(), remote, "here"), offer, cancelled)
    project = write_project(Project(tmp_path / "project", tmp_path / "own"))
    # Each test and each executor requests something new.
    project.edit("vars: {quality: 1}", "vars: {quality: 1}\n# " + request.node.name)
    _, plan = read_plan(Request(project.recipe))
    group = plan.session_groups["compile:left/npu/left"]
    target = replace(group.target, environment={"TEST": request.node.name})
    try:
        yield ExecutorClient(executor, remote, replace(group, target=target), cancelled)
    finally:
        executor.close()


def test_action_runs_once_and_is_found_afterwards(client: ExecutorClient) -> None:
    request = client.request()
    reply = client.execute(request)
    assert (reply.outcome, reply.problems) == ("made", ())
    found = client.remote.look_up(COMPILE, request.key)
    assert isinstance(found, RemoteRecord)
    assert reply.log == COMPILE.log(found.record)
    client.execute(request)
    assert [event.doing for event in client.events if isinstance(event, StepStarted)].count("compiling") == 1


def test_events_of_an_action_arrive_with_its_steps(client: ExecutorClient) -> None:
    client.execute(client.request())
    begun = {event.step for event in client.events if isinstance(event, StepStarted)}
    assert begun == set(client.group.steps)


def test_offers_name_the_release_the_platform_and_eps(client: ExecutorClient) -> None:
    [offer] = client.executor.offers()
    assert {RELEASE, f"platform:{get_own_platform()}", "ep:QNNExecutionProvider"} <= offer.labels
    assert offer.serves(list_needed_labels(client.group, get_own_platform() or ""))
    assert not offer.serves(list_needed_labels(client.group, "windows-arm64"))


def test_remote_failure_equals_a_local_failure_and_has_its_log(client: ExecutorClient) -> None:
    [ep] = client.group.target.eps
    wrong = replace(ep, provider_options={**ep.provider_options, "soc_model": "SM9999", "enable_htp_fp16_precision": "0"})
    group = replace(client.group, target=replace(client.group.target, eps=(wrong,)))
    reply = client.execute(client.request(group))
    assert reply.outcome == "failed"
    assert isinstance(reply.to_error(), VerifyError)
    assert reply.log is not None
    client.remote.check(reply.log)


def test_toolchain_that_differs_from_the_key_is_refused(client: ExecutorClient) -> None:
    reply = client.execute(replace(client.request(), key="0" * 64))
    assert reply.outcome == "refused"
    error = reply.to_error()
    assert isinstance(error, EnvironmentFailure)
    assert [problem.code for problem in error.problems] == ["EPB532"]


def test_missing_inputs_are_a_refusal(client: ExecutorClient) -> None:
    request = client.request()
    missing = Blob("f" * 64, 1)
    reply = client.execute(replace(request, files=(*request.files, missing)))
    assert reply.outcome == "refused"
    assert [problem.code for problem in reply.to_error().problems] == ["EPB530"]


def test_unprovisionable_toolchain_is_a_refusal(client: ExecutorClient) -> None:
    request = client.request()
    toolchain = replace(client.group.target.toolchain, packages=("onnxruntime-of-nobody==1.0",))
    group = replace(client.group, target=replace(client.group.target, toolchain=toolchain))
    digests = {file: hash_file(file) for file in list_files(group)}
    reply = client.execute(build_request(group, request.key, digests))
    assert reply.outcome == "refused"
    assert isinstance(reply.to_error(), ToolchainError)


def test_cancelled_build_stops_waiting(client: ExecutorClient) -> None:
    request = client.request()
    client.cancelled.set()
    with pytest.raises(Cancelled):
        client.execute(request)
