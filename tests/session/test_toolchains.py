"""Toolchains of a build: the sources of their identities, and provisioning only when an action needs it."""

from __future__ import annotations

import sys
import sysconfig
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from epbuild.commands.remote_cache import push_results
from epbuild.core.errors import EpbuildError, Problem, ToolchainError
from epbuild.engine.events import StepFinished, Warned
from epbuild.recipe.load import load
from epbuild.recipe.model import ToolchainSpec
from epbuild.remote.envelope import RemoteRecord, seal, unseal
from epbuild.remote.keys import SigningKey
from epbuild.session.events import ToolchainReady, ToolchainStarted
from epbuild.session.lock_fit import collect_catalog_facts
from epbuild.session.request import RemoteChoice
from epbuild.survey.snapshot import read_unchanged
from epbuild.toolchain.environment import Environment
from epbuild.toolchain.identity import TOOLCHAIN, open_toolchain_records
from epbuild.toolchain.lock import Lock, LockedEnvironment, LockedToolchain, Package
from epbuild.toolchain.lock_file import read_lock, render
from tests.support.fake_builds import CLASSIFIER, COMPILES, EMIT_CLASSIFIER, EMIT_DECODER, SHARE, Workshop, source_model, tamper
from tests.support.locks import digest
from tests.support.remote_caches import DirectoryPlace

OURS, THEIRS = SigningKey.generate(), SigningKey.generate()
HERE = "linux-x86_64"
SETTLED_SECONDS = 0.15  # a little more than file systems with fine timestamps require
COMPILED = ["prefill+decode", "classifier"]
LIBRARY = {"onnxruntime_qnn/libQnnHtp.so": "ab" * 32}
OTHER_LIBRARY = {"onnxruntime_qnn/libQnnHtp.so": "cd" * 32}


class Machine(Workshop):
    """Checkout with a lock. Its machine has the toolchain once it was provisioned."""

    def __init__(self, folder: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(folder, cache, monkeypatch)
        self.write_recipe(("outputs:\n", f"cache: {{trust: ['{OURS.public}']}}\noutputs:\n"))
        self.remote = RemoteChoice()
        self.toolchain_is_there = False
        self.made = 0
        self.failing: ToolchainError | None = None
        self.libraries = LIBRARY
        self.lock()

    def lock(self, *platforms: str) -> None:
        packages = (Package(name, version, (digest(f"{name} {version}"),)) for name, version in sorted(self.packages.items()))
        locked = LockedEnvironment("cpython-3.11", tuple(packages))
        recipe = load(self.folder / "epbuild.yaml")
        toolchains = {"qnn": LockedToolchain(("onnxruntime-qnn==2.7.0",), dict.fromkeys(platforms or (HERE,), locked))}
        (self.folder / "epbuild.lock").write_text(
            render(Lock("small", toolchains, {}, collect_catalog_facts(recipe))), encoding="utf-8"
        )

    def prepare(self, toolchain: ToolchainSpec, locked: LockedEnvironment | None) -> Environment:
        if not self.toolchain_is_there:
            self.made += 1
            if self.failing is not None:
                raise self.failing
            self.toolchain_is_there = True
        environment = super().prepare(toolchain, locked)
        taken = replace(environment.fingerprint, libraries=self.libraries, platform=sysconfig.get_platform())
        return replace(environment, fingerprint=taken)

    @property
    def warnings(self) -> list[str]:
        return [event.problem.code for event in self.events if isinstance(event, Warned)]

    def outcomes(self) -> set[str]:
        return {event.outcome for event in self.events if isinstance(event, StepFinished)}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DirectoryPlace:
    monkeypatch.setenv("EPBUILD_REMOTE_CACHE", str(tmp_path / "remote"))
    monkeypatch.setenv("EPBUILD_SIGNING_KEY", OURS.text)
    return DirectoryPlace(tmp_path / "remote")


@pytest.fixture(autouse=True)
def on_linux(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sysconfig, "get_platform", lambda: HERE)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: DirectoryPlace) -> Callable[[str], Machine]:
    return lambda name: Machine(tmp_path / name, tmp_path / f"cache-{name}", monkeypatch)


def shared_by(machine: Callable[[str], Machine]) -> Machine:
    """Build on a first machine that writes to the remote cache, and return the machine."""
    writer = machine("writer")
    writer.remote = RemoteChoice("write")
    assert writer.build().exit_code == 0
    assert (writer.compiled, writer.made, writer.warnings) == (COMPILED, 1, [])
    return writer


def outputs(machine: Machine) -> dict[str, dict[str, bytes]]:
    return {group: machine.contents(group) for group in ("decoder", "classifier")}


def toolchain_names(place: DirectoryPlace) -> list[str]:
    found = {name: unseal(place.read("ac", name) or b"", TOOLCHAIN, name, None) for name in place.names("ac")}
    return [name for name, record in found.items() if isinstance(record, RemoteRecord)]


def test_with_all_results_shared_no_toolchain_is_provisioned(machine: Callable[[str], Machine]) -> None:
    writer = shared_by(machine)
    reader = machine("reader")
    assert {status.step.id: (status.state, status.remote) for status in reader.survey().steps()} == {
        **dict.fromkeys([*COMPILES, SHARE, CLASSIFIER], ("restorable", True)),
        **dict.fromkeys([EMIT_DECODER, EMIT_CLASSIFIER], ("new", False)),
    }
    assert not reader.cache.exists()
    assert reader.build().exit_code == 0
    assert (reader.made, reader.compiled, reader.warnings) == (0, [], [])
    assert outputs(reader) == outputs(writer)
    assert not [event for event in reader.events if isinstance(event, (ToolchainStarted, ToolchainReady))]
    assert set(reader.states().values()) == {"current"}
    reader.remote = None
    assert reader.build().exit_code == 0
    assert (reader.made, reader.outcomes()) == (0, {"current"}), "the store knows the toolchain by now"


@pytest.mark.parametrize("here", [True, False])
@pytest.mark.parametrize("stored", [True, False])
@pytest.mark.parametrize("shared", [True, False])
def test_the_order_is_environment_then_store_then_remote_cache(
    here: bool, stored: bool, shared: bool, machine: Callable[[str], Machine], place: DirectoryPlace
) -> None:
    """Give each of the three sources another library, so that the key shows which one was used."""
    keys = {}
    if shared:
        shared_by(machine)
        keys["shared"] = machine("asked").survey().actions[SHARE].key
    reader = machine("reader")
    if stored:
        reader.libraries, reader.remote = OTHER_LIBRARY, None
        reader.build()
        reader.remote, reader.toolchain_is_there = RemoteChoice(), False
        keys["stored"] = reader.survey().actions[SHARE].key
    if here:
        reader.libraries, reader.toolchain_is_there = {"onnxruntime_qnn/libQnnHtp.so": "ef" * 32}, True
        keys["here"] = reader.survey().actions[SHARE].key
    status = reader.survey().actions[SHARE]
    assert len(set(keys.values())) == len(keys)
    assert status.key == (keys.get("here") or keys.get("stored") or keys.get("shared"))
    if not keys:
        assert status.reasons == ("the toolchain 'qnn' is not provisioned yet",)


def test_a_toolchain_is_provisioned_only_if_an_action_must_run(machine: Callable[[str], Machine]) -> None:
    shared_by(machine)
    reader = machine("reader")
    tamper(reader.folder / "classifier.onnx", (reader.folder / "prefill.onnx").read_bytes())
    assert reader.survey().actions[CLASSIFIER].key is not None
    assert reader.build().exit_code == 0
    assert (reader.made, reader.compiled, reader.warnings) == (1, ["classifier"], [])
    kinds = [type(event) for event in reader.events if isinstance(event, (ToolchainStarted, ToolchainReady))]
    assert kinds == [ToolchainStarted, ToolchainReady]


def test_a_snapshot_is_valid_while_record_and_environments_are_unchanged(machine: Callable[[str], Machine]) -> None:
    shared_by(machine)
    reader = machine("reader")

    def holds() -> bool:
        return read_unchanged(str(reader.request.recipe)) is not None

    def settle() -> None:
        time.sleep(SETTLED_SECONDS)
        assert reader.build().exit_code == 0
        assert holds()

    reader.build()
    settle()
    [record, _] = open_toolchain_records(reader.cache).entries()
    open_toolchain_records(reader.cache).place(record.name).unlink()
    assert not holds()
    settle()
    appeared = reader.cache / "toolchains"
    recipe = load(reader.request.recipe)
    lock = read_lock((reader.folder / "epbuild.lock").read_text(encoding="utf-8"), "epbuild.lock")
    place = reader.request.toolchains.place(recipe.toolchains["qnn"], reader.folder, lock.toolchains["qnn"].platforms[HERE])
    assert place.is_relative_to(appeared)
    place.parent.mkdir(parents=True)
    place.touch()
    assert not holds()


def test_without_a_lock_the_toolchain_is_provisioned_to_compute_keys(machine: Callable[[str], Machine]) -> None:
    shared_by(machine)
    reader = machine("reader")
    (reader.folder / "epbuild.lock").unlink()
    assert set(reader.states().values()) == {"new"}
    assert reader.build().exit_code == 0
    assert (reader.made, reader.compiled) == (1, [])


def test_a_changed_lock_is_another_toolchain(machine: Callable[[str], Machine]) -> None:
    shared_by(machine)
    reader = machine("reader")
    reader.packages = {**reader.packages, "numpy": "2.4.1"}
    reader.lock()
    assert set(reader.states().values()) == {"new"}


def unsigned(record: Any, name: str) -> bytes:
    return b"{}"


def by_another(record: Any, name: str) -> bytes:
    return seal(TOOLCHAIN, name, record, THEIRS)


def of_another_library(record: Any, name: str) -> bytes:
    """Return a wrong record with a signature by a trusted key."""
    result = {**record["result"], "libraries": dict.fromkeys(record["result"]["libraries"], "99" * 32)}
    return seal(TOOLCHAIN, name, {**record, "result": result}, OURS)


def harm(place: DirectoryPlace, change: Callable[[Any, str], bytes]) -> None:
    for name in toolchain_names(place):
        found = unseal(place.read("ac", name) or b"", TOOLCHAIN, name, None)
        assert isinstance(found, RemoteRecord)
        place.write("ac", name, change(found.record, name))


@pytest.mark.parametrize("change", [unsigned, by_another])
def test_a_record_without_a_trusted_signature_is_ignored(
    change: Callable[[Any, str], bytes], machine: Callable[[str], Machine], place: DirectoryPlace
) -> None:
    writer = shared_by(machine)
    harm(place, change)
    reader = machine("reader")
    assert set(reader.states().values()) == {"new"}
    assert reader.build().exit_code == 0
    assert (reader.made, reader.compiled) == (1, []), "made for the keys, whose results are there"
    assert reader.warnings == ["EPB522"]
    assert outputs(reader) == outputs(writer)


def test_no_result_is_recorded_under_the_key_of_a_wrong_record(machine: Callable[[str], Machine], place: DirectoryPlace) -> None:
    writer = shared_by(machine)
    harm(place, of_another_library)
    reader = machine("reader")
    wrong = reader.survey().actions[SHARE].key
    assert wrong is not None
    assert reader.build().exit_code == 0
    assert (reader.made, reader.compiled) == (1, []), "what was made has the key of the result that is there"
    assert reader.warnings == ["EPB312"]
    assert outputs(reader) == outputs(writer)
    assert wrong not in {reader.record(step).action_key for step in (SHARE, CLASSIFIER)}
    assert set(reader.states().values()) == {"current"}
    # The local toolchain is recorded, and the wrong record is gone from the store.
    reader.toolchain_is_there = False
    assert set(reader.states().values()) == {"current"}


def test_a_result_is_used_only_if_signed_for_its_own_toolchain(machine: Callable[[str], Machine], place: DirectoryPlace) -> None:
    """Check a poisoned record of the toolchain, with the results of the right one under the keys that it leads to."""
    writer = shared_by(machine)
    results = {name: place.read("ac", name) for name in place.names("ac") if name not in toolchain_names(place)}
    harm(place, of_another_library)
    asked = machine("asked").survey()
    for wrong, right in zip((asked.actions[SHARE].key, asked.actions[CLASSIFIER].key), results.values(), strict=True):
        assert wrong is not None
        place.write("ac", wrong, right)
    reader = machine("reader")
    assert reader.build().exit_code == 0
    assert (reader.made, outputs(reader)) == (1, outputs(writer))
    assert set(reader.warnings) == {"EPB522", "EPB312"}


def test_a_toolchain_that_cannot_be_provisioned_fails_its_steps(machine: Callable[[str], Machine]) -> None:
    shared_by(machine)
    reader = machine("reader")
    tamper(reader.folder / "classifier.onnx", source_model(9.0))
    reader.failing = ToolchainError(Problem("EPB307", "no network"))
    finished = reader.build()
    assert (finished.exit_code, reader.failures, reader.made) == (3, ["EPB307"], 1)
    reader.failing = None
    assert reader.build().exit_code == 0
    assert reader.compiled == ["classifier"], "it is no failure of the step's, which would be remembered"


def test_offline_an_action_requires_a_local_toolchain(machine: Callable[[str], Machine]) -> None:
    shared_by(machine)
    reader = machine("reader")
    reader.build()
    reader.remote = RemoteChoice(offline=True)
    assert reader.build().exit_code == 0
    tamper(reader.folder / "classifier.onnx", source_model(9.0))
    assert (reader.build().exit_code, reader.failures) == (3, ["EPB525"])
    bare = machine("bare")
    bare.remote = RemoteChoice(offline=True)
    with pytest.raises(EpbuildError) as caught:
        bare.build()
    assert [problem.code for problem in caught.value.problems] == ["EPB525"]


def test_an_environment_that_differs_from_the_lock_is_not_recorded(
    machine: Callable[[str], Machine], place: DirectoryPlace
) -> None:
    writer = machine("writer")
    writer.remote = RemoteChoice("write")
    writer.packages = {**writer.packages, "six": "1.17"}
    assert writer.build().exit_code == 0
    assert writer.warnings == ["EPB308"]
    assert toolchain_names(place) == []
    assert list(open_toolchain_records(writer.cache).entries()) == []


def test_several_toolchains_are_provisioned_concurrently(machine: Callable[[str], Machine]) -> None:
    both = threading.Barrier(2, timeout=30)

    class Meeting(Machine):
        def prepare(self, toolchain: ToolchainSpec, locked: LockedEnvironment | None) -> Environment:
            both.wait()  # raises unless the other one is provisioned meanwhile
            return Workshop.prepare(self, toolchain, locked)

    workshop = machine("meeting")
    workshop.__class__ = Meeting
    (workshop.folder / "epbuild.lock").unlink()
    workshop.write_recipe(
        ("toolchains:\n", "toolchains:\n  other: {packages: [onnxruntime-qnn==2.7.0]}\n"),
        ("plain: {toolchain: qnn,", "plain: {toolchain: other,"),
    )
    workshop.remote = None
    assert workshop.build().exit_code == 0
    assert workshop.compiled == COMPILED


FOR_WINDOWS = ("packages: [onnxruntime-qnn==2.7.0]", "packages: [onnxruntime-qnn==2.7.0], platforms: [windows-arm64]")


def for_windows(machine: Machine) -> Machine:
    """Return the machine with a toolchain for Windows only."""
    trust = ("outputs:\n", f"cache: {{trust: ['{OURS.public}']}}\noutputs:\n")
    machine.write_recipe(trust, FOR_WINDOWS)
    machine.lock("windows-arm64")
    return machine


def test_results_compiled_on_windows_are_restored_and_emitted_on_linux(
    machine: Callable[[str], Machine], monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = for_windows(machine("before"))
    assert set(reader.states().values()) == {"new"}
    why = "the toolchain 'qnn' is for windows-arm64, but this machine is linux-x86_64"
    assert reader.reasons(CLASSIFIER) == (why,)
    assert (reader.build().exit_code, reader.failures, reader.made) == (3, ["EPB416"], 0)
    assert reader.problems[0].message == why
    with monkeypatch.context() as windows:
        windows.setattr(sysconfig, "get_platform", lambda: "win-arm64")
        writer = for_windows(machine("writer"))
        writer.remote = RemoteChoice("write")
        assert writer.build().exit_code == 0
        assert (writer.compiled, writer.warnings) == (COMPILED, [])
    reader = for_windows(machine("reader"))
    found = reader.survey().actions
    assert [(found[name].state, found[name].remote) for name in (SHARE, CLASSIFIER)] == [("restorable", True)] * 2
    assert reader.build().exit_code == 0
    assert (reader.made, reader.compiled, reader.warnings, outputs(reader)) == (0, [], [], outputs(writer))
    assert set(reader.states().values()) == {"current"}
    tamper(reader.folder / "classifier.onnx", source_model(9.0))
    assert (reader.build().exit_code, reader.failures, reader.made) == (3, ["EPB416"], 0)


@pytest.mark.skipif(sys.platform == "win32", reason="the OpenVINO package for Windows compiles for NPUs")
def test_host_dependent_results_are_not_looked_up_for_another_platform(machine: Callable[[str], Machine]) -> None:
    reader = machine("reader")
    npu = "plain: {toolchain: qnn, ep: OpenVINOExecutionProvider, device: {type: npu, virtual: true}}"
    packages = ("[onnxruntime-qnn==2.7.0]", "[onnxruntime-qnn==2.7.0, onnxruntime-ep-openvino==1.8.1]")
    reader.write_recipe(packages, ("plain: {toolchain: qnn, ep: QNNExecutionProvider}", npu))
    reader.remote = None
    (reader.folder / "epbuild.lock").unlink()
    [reason] = reader.reasons(CLASSIFIER)
    assert reason.startswith("OpenVINOExecutionProvider cannot compile for Intel NPUs here: ")
    with pytest.raises(EpbuildError) as caught:
        reader.build()
    assert ([problem.code for problem in caught.value.problems], caught.value.exit_code, reader.made) == (["EPB416"], 3, 0)


def test_a_missing_lock_is_reported_once_if_results_are_shared(
    machine: Callable[[str], Machine],
) -> None:
    shared_by(machine)
    for name, remote, noted in (("reader", RemoteChoice(), True), ("alone", None, False)):
        reader = machine(name)
        reader.remote = remote
        (reader.folder / "epbuild.lock").unlink()
        reader.build()
        [ready] = [event for event in reader.events if isinstance(event, ToolchainReady)]
        assert ("epbuild lock" in ready.note) is noted


def test_toolchains_are_published_later_with_their_results(machine: Callable[[str], Machine], place: DirectoryPlace) -> None:
    writer = machine("writer")
    writer.build()
    assert place.names("ac") == []
    writer.remote = RemoteChoice("write")
    assert {result.outcome for result in push_results(writer.request).results} == {"written"}
    reader = machine("reader")
    assert reader.build().exit_code == 0
    assert (reader.made, reader.compiled) == (0, [])


@pytest.mark.gate
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_signed_toolchain_record_leads_to_identical_outputs(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path_factory.mktemp("signed")
    monkeypatch.setenv("EPBUILD_REMOTE_CACHE", str(folder / "remote"))
    monkeypatch.setenv("EPBUILD_SIGNING_KEY", OURS.text)
    place = DirectoryPlace(folder / "remote")
    writer = Machine(folder / "writer", folder / "cache-writer", monkeypatch)
    writer.remote = RemoteChoice("write")
    assert writer.build().exit_code == 0
    keys = {writer.record(step).action_key for step in (SHARE, CLASSIFIER)}
    digests = st.sampled_from(["ab" * 32, "99" * 32])
    for name in toolchain_names(place):
        found = unseal(place.read("ac", name) or b"", TOOLCHAIN, name, None)
        assert isinstance(found, RemoteRecord)
        wrong = {
            "libraries": data.draw(st.dictionaries(st.sampled_from(["onnxruntime_qnn/libQnnHtp.so", "x.so"]), digests)),
            "files": data.draw(st.dictionaries(st.sampled_from(["onnxruntime", "onnxruntime_qnn"]), digests)),
        }
        place.write("ac", name, seal(TOOLCHAIN, name, {**found.record, "result": {**found.record["result"], **wrong}}, OURS))
    reader = Machine(folder / "reader", folder / "cache-reader", monkeypatch)
    assert reader.build().exit_code == 0
    assert (outputs(reader), reader.compiled) == (outputs(writer), [])
    assert {reader.record(step).action_key for step in (SHARE, CLASSIFIER)} == keys
