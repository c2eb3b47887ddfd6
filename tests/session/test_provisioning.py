"""Provisioning: once, when an action needs the toolchain, and compared with records. No environment is created."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from epbuild.core.errors import Cancelled, EnvironmentFailure, Problem, ToolchainError
from epbuild.engine.events import EventList, Warned
from epbuild.plan.steps import Action
from epbuild.session.events import ToolchainFailed, ToolchainReady, ToolchainStarted
from epbuild.session.lock import HeldLock
from epbuild.session.provisioning import Provisioning, ProvisionPolicy, get_toolchain_name
from epbuild.session.toolchains import PlanToolchains
from epbuild.toolchain.environment import Environment
from epbuild.toolchain.fingerprint import Fingerprint
from tests.support.fake_builds import sharing_group

GROUP = sharing_group("prefill", "decode")
PRINTS = Fingerprint("cpython-3.11", "linux-x86_64", {"onnxruntime": "1.31.1"}, {"onnxruntime_qnn/libQnnHtp.so": "ab" * 32})
ENVIRONMENT = Environment("qnn", Path(sys.executable), PRINTS, Path("fingerprint.json"))


class FakeToolchains(PlanToolchains):
    """Single toolchain that `make` provisions."""

    def __init__(self, make: Callable[[], Environment] = lambda: ENVIRONMENT) -> None:
        assert GROUP.runs_in is not None
        self.needs = {"qnn": GROUP.runs_in}
        self.environments = {}
        self.is_here = True
        self.made = 0
        self.record: Any = None
        self.kept: dict[str, Mapping[str, Any]] = {}
        self._make = make

    def is_for_here(self, action: Action) -> bool:
        return self.is_here

    def explain_obstacle(self, action: Action) -> str:
        return "it is for another platform"

    def is_ready(self, name: str) -> bool:
        return False

    def of(self, action: Action) -> Any:
        return self.environments.get("qnn") or self.record

    def prepare(self, name: str, listener: object = None) -> Environment:
        self.made += 1
        return self._make()

    def recorded(self, name: str) -> Any:
        return self.record

    def records(self, name: str, environment: Environment) -> dict[str, dict[str, Any]]:
        return {"key": {"of": name}}

    def remember(self, records: Mapping[str, Mapping[str, Any]]) -> None:
        self.kept |= records

    def remember_known(self) -> None: ...


class Sink:
    def __init__(self) -> None:
        self.records: dict[str, Mapping[str, Any]] = {}

    def add_toolchain(self, key: str, record: Mapping[str, Any]) -> None:
        self.records[key] = record


class Case:
    def __init__(self, toolchains: FakeToolchains, *, offline: bool = False) -> None:
        self.toolchains, self.sink, self.events, self.cancelled = toolchains, Sink(), EventList(), threading.Event()
        under = ProvisionPolicy(HeldLock(Path("epbuild.lock")), offline)
        self.provisioning = Provisioning(toolchains, under, self.sink, self.events, self.cancelled)

    def problems(self) -> list[str]:
        return [event.problem.code for event in self.events if isinstance(event, Warned)]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EPBUILD_CACHE_DIR", str(tmp_path / "cache"))


def test_a_toolchain_is_provisioned_once_for_all_threads() -> None:
    go = threading.Event()

    def make() -> Environment:
        go.wait(5)
        return ENVIRONMENT

    case = Case(FakeToolchains(make))
    found: list[Environment] = []
    threads = [threading.Thread(target=lambda: found.append(case.provisioning.environment(GROUP))) for _ in range(4)]
    for thread in threads:
        thread.start()
    go.set()
    for thread in threads:
        thread.join(10)
    assert found == [ENVIRONMENT] * 4
    assert case.toolchains.made == 1
    assert [type(event) for event in case.events] == [ToolchainStarted, ToolchainReady]
    assert case.toolchains.kept == case.sink.records == {"key": {"of": "qnn"}}


def test_an_existing_toolchain_is_not_provisioned() -> None:
    case = Case(FakeToolchains())
    case.toolchains.environments["qnn"] = ENVIRONMENT
    assert case.provisioning.environment(GROUP) is ENVIRONMENT
    case.provisioning.provision_unknown([GROUP])
    assert (case.toolchains.made, list(case.events)) == (0, [])


def test_unknown_toolchains_are_provisioned_before_keys_are_computed() -> None:
    case = Case(FakeToolchains())
    case.provisioning.provision_unknown([GROUP, GROUP])
    assert case.toolchains.environments == {"qnn": ENVIRONMENT}
    assert case.toolchains.made == 1


def test_a_toolchain_for_another_platform_is_never_provisioned() -> None:
    case = Case(FakeToolchains())
    case.toolchains.is_here = False
    case.provisioning.provision_unknown([GROUP])
    with pytest.raises(EnvironmentFailure, match="another platform") as failure:
        case.provisioning.environment(GROUP)
    assert [problem.code for problem in failure.value.problems] == ["EPB416"]
    assert case.toolchains.made == 0


def test_a_missing_toolchain_fails_offline() -> None:
    case = Case(FakeToolchains(), offline=True)
    with pytest.raises(ToolchainError, match="'qnn' has not been provisioned yet") as failure:
        case.provisioning.environment(GROUP)
    assert [problem.code for problem in failure.value.problems] == ["EPB525"]
    assert case.toolchains.made == 0


def test_each_action_fails_with_the_error_of_its_toolchain() -> None:
    def make() -> Environment:
        raise ToolchainError(Problem("EPB301", "the disk is full"))

    case = Case(FakeToolchains(make))
    for _ in range(2):
        with pytest.raises(ToolchainError):
            case.provisioning.environment(GROUP)
    assert case.toolchains.made == 1
    assert [type(event) for event in case.events] == [ToolchainStarted, ToolchainFailed]


def test_a_record_that_differs_from_the_toolchain_is_refused_with_a_warning() -> None:
    case = Case(FakeToolchains())
    case.toolchains.record = replace(ENVIRONMENT, fingerprint=replace(PRINTS, files={"onnxruntime_qnn/libQnnHtp.so": "cd" * 32}))
    assert not case.provisioning.is_refused(GROUP)
    case.provisioning.environment(GROUP)
    assert case.provisioning.is_refused(GROUP)
    assert case.problems() == ["EPB312"]
    assert [problem.code for problem in case.provisioning.warnings] == ["EPB312"]


def test_a_record_that_matches_the_toolchain_is_kept() -> None:
    case = Case(FakeToolchains())
    case.toolchains.record = ENVIRONMENT
    case.provisioning.environment(GROUP)
    assert not case.provisioning.is_refused(GROUP)
    assert case.problems() == []


def test_waiting_for_a_toolchain_stops_when_the_build_is_cancelled() -> None:
    go = threading.Event()

    def make() -> Environment:
        go.wait(10)
        return ENVIRONMENT

    case = Case(FakeToolchains(make))
    case.cancelled.set()
    try:
        with pytest.raises(Cancelled):
            case.provisioning.environment(GROUP)
    finally:
        go.set()


def test_an_action_names_its_toolchain() -> None:
    assert get_toolchain_name(GROUP) == "qnn"
