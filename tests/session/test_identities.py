"""Toolchain identities from another machine: keys are known without an environment, even for other platforms."""

from __future__ import annotations

import sysconfig
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from epbuild.cache.blobs import BlobStore
from epbuild.cluster.machine import Machine
from epbuild.cluster.placement import RELEASE, Offer, Placement, list_needed_labels
from epbuild.cluster.protocol import MachineReply, UnofferedError
from epbuild.cluster.request import ActionRequest, parse_toolchain, read_request
from epbuild.core.errors import EnvironmentFailure, EpbuildError, Problem
from epbuild.engine.events import EventList, Progress, Warned
from epbuild.recipe.load import load
from epbuild.recipe.model import ToolchainSpec
from epbuild.remote.cache import RemoteCache
from epbuild.remote.keys import SigningKey
from epbuild.remote.opening import open_folder_stores
from epbuild.session.events import ToolchainReady, ToolchainStarted
from epbuild.session.lock import hold_lock
from epbuild.session.lock_fit import collect_catalog_facts
from epbuild.session.planning import read_plan
from epbuild.session.remote_build import IdentityRequests
from epbuild.session.request import Request
from epbuild.session.toolchains import PlanToolchains, ToolchainSources
from epbuild.survey.remote_results import RemoteResults
from epbuild.toolchain.environment import Environment
from epbuild.toolchain.identity import open_toolchain_records
from epbuild.toolchain.lock import Lock, LockedEnvironment, LockedToolchain, Package
from epbuild.toolchain.lock_file import render
from tests.support.fake_builds import CLASSIFIER, Workshop
from tests.support.local_executor import LocalExecutor
from tests.support.locks import digest

OURS, THEIRS = SigningKey.generate(), SigningKey.generate()
HERE, WINDOWS = "linux-x86_64", "windows-arm64"
TAGS = {HERE: "linux-x86_64", WINDOWS: "win-arm64"}


class Checkout(Workshop):
    """Locked checkout without a toolchain. `prepare` provisions it."""

    def __init__(self, folder: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(folder, cache, monkeypatch)
        self.toolchain_is_there = False
        self.made = 0

    def prepare(self, toolchain: ToolchainSpec, locked: LockedEnvironment | None) -> Environment:
        self.made += 1
        environment = super().prepare(toolchain, locked)
        return replace(environment, fingerprint=replace(environment.fingerprint, platform=sysconfig.get_platform()))

    def lock(self, platform: str) -> None:
        packages = (Package(name, version, (digest(f"{name} {version}"),)) for name, version in sorted(self.packages.items()))
        toolchains = {
            "qnn": LockedToolchain(("onnxruntime-qnn==2.7.0",), {platform: LockedEnvironment("cpython-3.11", tuple(packages))})
        }
        facts = collect_catalog_facts(load(self.folder / "epbuild.yaml"))
        (self.folder / "epbuild.lock").write_text(render(Lock("small", toolchains, {}, facts)), encoding="utf-8")


class OnPlatform:
    """Executor whose machine looks to Python like one of a `platform`."""

    def __init__(self, platform: str, machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[ActionRequest] = []
        self.machines = ["builder"]
        self.labels = {RELEASE, f"platform:{platform}", "ep:QNNExecutionProvider"}
        self._platform = platform
        self._machine = machine
        self._monkeypatch = monkeypatch

    def offers(self) -> Sequence[Offer]:
        return [Offer(machine, frozenset(self.labels), 1, 0) for machine in self.machines]

    def wait_for_offer(self, placement: Placement, actions: int) -> None:
        LocalExecutor(self._machine, self.offers()[0], threading.Event()).wait_for_offer(placement, actions)

    def execute(self, request: ActionRequest, placement: Placement, progress: Progress) -> MachineReply:
        self.asked.append(read_request(request.text))
        [machine, *_] = [offer.machine for offer in self.offers() if placement.allows(offer)]
        if machine != "builder":
            full = EnvironmentFailure(Problem("EPB301", "the disk is full"))
            return MachineReply.failure("refused", machine, full)
        with self._monkeypatch.context() as there:
            there.setattr(sysconfig, "get_platform", lambda: TAGS[self._platform])
            return LocalExecutor(self._machine, self.offers()[0], threading.Event()).execute(self.asked[-1], placement, progress)

    def close(self) -> None: ...


@pytest.fixture(autouse=True)
def on_linux(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sysconfig, "get_platform", lambda: HERE)


class Asking:
    """Client, machine of some platform, and the remote cache between them."""

    def __init__(self, folder: Path, platform: str, monkeypatch: pytest.MonkeyPatch, signer: SigningKey = OURS) -> None:
        self.client = Checkout(folder / "client", folder / "cache", monkeypatch)
        if platform != HERE:
            asked = "packages: [onnxruntime-qnn==2.7.0]"
            self.client.write_recipe((asked, f"{asked}, platforms: [{platform}]"))
        self.client.lock(platform)
        self.worker = Checkout(folder / "worker", folder / "cache-there", monkeypatch)
        self.events = EventList()
        place = open_folder_stores(folder / "remote", writes=True)

        def cache(signer: SigningKey) -> RemoteCache:
            return RemoteCache(place, "the cache", trust={OURS.public}, signer=signer, warn=lambda problem: None)

        machine = Machine(folder / "cache-there", self.worker.request.toolchains, cache(signer), "builder")
        self.executor = OnPlatform(platform, machine, monkeypatch)
        recipe, self.plan = read_plan(Request(self.client.folder / "epbuild.yaml"))
        lock = hold_lock(recipe, self.plan, strict=False)
        results = RemoteResults(cache(OURS), BlobStore(folder / "cache"), lambda problem: None)
        sources = ToolchainSources(self.client.request.toolchains, open_toolchain_records(folder / "cache"), results)
        self.known = PlanToolchains(self.plan, recipe.directory, lock, sources)

    def fetch(self) -> None:
        found = IdentityRequests(self.executor, self.known, self.events)
        found.fetch(self.known.list_unidentified(self.plan.actions.values()))


@pytest.fixture
def asking(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Asking]:
    return lambda platform, **more: Asking(tmp_path, platform, monkeypatch, **more)


@pytest.mark.parametrize("platform", [HERE, WINDOWS])
def test_a_worker_identifies_a_toolchain_without_provisioning_here(platform: str, asking: Callable[..., Asking]) -> None:
    found = asking(platform)
    action = found.plan.actions[CLASSIFIER]
    assert found.known.of(action) is None
    found.fetch()
    identified = found.known.of(action)
    assert identified is not None
    assert identified.identity(())["platform"] == TAGS[platform]
    assert found.known.find_locked_environment(action)[0] == platform
    assert (found.client.made, found.worker.made) == (0, 1)
    kinds = [type(event) for event in found.events]
    assert kinds == [ToolchainStarted, ToolchainReady]
    found.fetch()
    assert len(found.executor.asked) == 1, "what is known is not asked for again"


def test_another_worker_is_asked_if_one_cannot_provision(asking: Callable[..., Asking]) -> None:
    found = asking(WINDOWS)
    found.executor.machines = ["full", "builder"]
    found.fetch()
    assert found.known.of(found.plan.actions[CLASSIFIER]) is not None
    assert len(found.executor.asked) == 2


def test_the_request_contains_no_local_path(asking: Callable[..., Asking], tmp_path: Path) -> None:
    found = asking(WINDOWS)
    found.fetch()
    [request] = found.executor.asked
    assert str(tmp_path) not in request.text
    asked = parse_toolchain(request, BlobStore(tmp_path))
    assert asked.toolchain.packages == ("onnxruntime-qnn==2.7.0",)
    assert [entry.ep for entry in asked.entries] == ["QNNExecutionProvider"]


def test_a_platform_without_workers_is_an_error(asking: Callable[..., Asking]) -> None:
    found = asking(WINDOWS)
    found.executor.labels = {RELEASE, f"platform:{HERE}", "ep:QNNExecutionProvider"}
    with pytest.raises(UnofferedError) as caught:
        found.fetch()
    [problem] = caught.value.problems
    assert problem.code == "EPB539"
    assert "platform:windows-arm64" in problem.message


def test_a_toolchain_without_workers_is_provisioned_here(asking: Callable[..., Asking]) -> None:
    found = asking(HERE)
    found.executor.labels = {RELEASE}
    found.fetch()
    assert (found.executor.asked, found.known.of(found.plan.actions[CLASSIFIER])) == ([], None)


def test_a_differing_toolchain_of_a_worker_is_a_warning_on_this_platform(asking: Callable[..., Asking]) -> None:
    found = asking(HERE)
    found.worker.packages = {**found.worker.packages, "six": "1.17"}
    found.fetch()
    [warning] = [event.problem for event in found.events if isinstance(event, Warned)]
    assert warning.code == "EPB532"
    assert warning.message.startswith("on builder: the worker's toolchain 'qnn' differs")
    assert found.known.of(found.plan.actions[CLASSIFIER]) is None


@pytest.mark.parametrize("other", ["another toolchain", "an untrusted key"])
def test_for_another_platform_only_a_trusted_record_counts(other: str, asking: Callable[..., Asking]) -> None:
    found = asking(WINDOWS, signer=OURS if other == "another toolchain" else THEIRS)
    if other == "another toolchain":
        found.worker.packages = {**found.worker.packages, "six": "1.17"}
    with pytest.raises(EpbuildError) as caught:
        found.fetch()
    [problem] = caught.value.problems
    assert problem.code == ("EPB532" if other == "another toolchain" else "EPB537")


def test_host_dependent_toolchains_are_not_requested_for_other_platforms(asking: Callable[..., Asking]) -> None:
    found = asking(WINDOWS)
    group = found.plan.session_groups[CLASSIFIER]
    [unknown] = found.known.list_unidentified([group]).values()
    assert (unknown.platform, list_needed_labels(unknown.action, unknown.platform) <= found.executor.labels) == (WINDOWS, True)
    [ep] = group.target.eps
    depends = replace(ep, entry=replace(ep.entry, output_depends_on_host=True))
    assert found.known.list_unidentified([replace(group, target=replace(group.target, eps=(depends,)))]) == {}
