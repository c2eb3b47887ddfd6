"""`epbuild doctor` on broken machines: each fault is a line with an action to take, and never an exception."""

from __future__ import annotations

import json
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from epbuild.cluster.address import ClusterAddress
from epbuild.commands.doctor.devices import CompileAttempt, EpDevice, EpHealth, EpSurvey, ToolchainHealth, check_eps
from epbuild.commands.doctor.doctor import DoctorRequest, run_checks
from epbuild.commands.doctor.folders import CheckedFolder, FileSystems, check_file_systems, check_folder, check_path_length
from epbuild.commands.doctor.health import HealthCheck, ThisMachine, TooSlow, check_machine, run_within
from epbuild.commands.doctor.servers import Servers, check_servers
from epbuild.core.canonical import read_schema
from epbuild.core.errors import Argument, PlanError, Position, Problem, ToolchainError
from epbuild.recipe.remote_address import CacheChoice, RemoteAddress
from epbuild.remote.keys import SigningKey
from epbuild.remote.settings import REMOTE, SIGNING_KEY
from epbuild.report.json.checks import build_devices_document, build_health_document
from epbuild.report.json.documents import format_json
from epbuild.report.terminal.checks import HealthPrinter
from epbuild.toolchain.environment import Toolchains
from tests.support.commands import RECIPE, write_model
from tests.support.packages import install, make_environment

MOVE = "use another folder"


def uv(status: int = 0, out: str = "uv 1.0\n", err: str = "") -> Callable[[Sequence[str]], subprocess.CompletedProcess[str]]:
    return lambda arguments: subprocess.CompletedProcess(list(arguments), status, out, err)


def raising(error: Exception) -> Callable[[Sequence[str]], subprocess.CompletedProcess[str]]:
    def run(arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
        raise error

    return run


SOUND = ThisMachine(environment={}, system="linux", run_uv=uv(), memory=lambda: 16 << 30, encoding=lambda: "UTF-8")
NO_UV = ToolchainError(Problem("EPB301", "the program uv is missing from epbuild's environment", None, "Install it."))


def by_topic(checks: Sequence[HealthCheck]) -> Mapping[str, HealthCheck]:
    """Return the worst line of each topic."""
    order = ("ok", "note", "warning", "error")
    return {check.topic: check for check in sorted(checks, key=lambda check: order.index(check.state))}


def test_healthy_machine_has_no_faults() -> None:
    assert {check.state for check in check_machine(SOUND)} == {"ok"}


@pytest.mark.parametrize(
    ("here", "topic", "state", "words"),
    [
        (replace(SOUND, run_uv=raising(NO_UV)), "uv", "error", "uv is missing"),
        (replace(SOUND, run_uv=raising(PermissionError(13, "Permission denied"))), "uv", "error", "Permission denied"),
        (replace(SOUND, run_uv=uv(127, "", "uv: bad magic\n")), "uv", "error", "uv does not run: uv: bad magic"),
        (replace(SOUND, run_uv=uv(-4, "", "")), "uv", "error", "exit status -4"),
        (replace(SOUND, memory=lambda: 1 << 30), "memory", "warning", "1.1 GB"),
        (replace(SOUND, memory=lambda: None), "memory", "ok", "unknown size"),
        (
            replace(SOUND, now=lambda: 0.0),
            "clock",
            "error",
            "1970-01-01 00:00:00 UTC is earlier than the time when epbuild was installed",
        ),
        (replace(SOUND, encoding=lambda: "ascii"), "locale", "warning", "file names in ascii"),
    ],
)
def test_machine_fault_is_reported_on_one_line(here: ThisMachine, topic: str, state: str, words: str) -> None:
    found = by_topic(list(check_machine(here)))
    assert found[topic].state == state
    assert words in found[topic].text
    assert state == "ok" or found[topic].hint
    assert {check.state for name, check in found.items() if name != topic} == {"ok"}


def place(path: Path) -> CheckedFolder:
    return CheckedFolder("cache", path, MOVE)


GB = 10**9
ROOM = FileSystems(space=lambda path: (100 * GB, 50 * GB), kind=lambda path: "ext4", system="linux", long_paths=lambda: False)


def test_folder_check_reports_file_system_free_space_and_sharing(tmp_path: Path) -> None:
    (check,) = check_folder(place(tmp_path), ROOM)
    assert check.state == "ok"
    assert check.text.startswith(f"{tmp_path}: ext4, 50.0 GB free of 100.0 GB; ")
    assert list(tmp_path.iterdir()) == []


def test_folder_check_does_not_create_a_missing_folder(tmp_path: Path) -> None:
    (check,) = check_folder(place(tmp_path / "not" / "yet"), ROOM)
    assert (check.state, check.text.rpartition("; ")[2]) == ("ok", "created when needed")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("free", "kind", "state", "words"),
    [
        (0, "ext4", "error", "is full: 0.0 GB free"),
        (3 * GB, "ext4", "warning", "is low on space: 3.0 GB free"),
        (50 * GB, "nfs4", "warning", "is on a network file system (nfs4)"),
    ],
)
def test_full_disk_or_network_disk_gets_its_own_line(tmp_path: Path, free: int, kind: str, state: str, words: str) -> None:
    checks = list(check_folder(place(tmp_path), replace(ROOM, space=lambda path: (100 * GB, free), kind=lambda path: kind)))
    assert (checks[-1].state, words in checks[-1].text) == (state, True)
    assert MOVE in str(checks[-1].hint) or state == "warning"


def test_cache_below_a_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        (check,) = check_folder(place(path), ROOM)
        assert (check.state, check.hint) == ("error", f"Get write permission, or {MOVE}.")
        assert "expected a folder, found a file" in check.text


@pytest.mark.skipif("sys.platform == 'win32' or os.geteuid() == 0", reason="this user may write everywhere")
def test_cache_without_write_permission_is_an_error(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    try:
        for path in (tmp_path, tmp_path / "below"):
            (check,) = check_folder(place(path), ROOM)
            assert (check.state, check.hint) == ("error", f"Get write permission, or {MOVE}.")
    finally:
        tmp_path.chmod(0o700)


def test_folders_on_one_disk_add_no_line(tmp_path: Path) -> None:
    assert check_file_systems(tmp_path / "cache", tmp_path / "workspace") is None


@pytest.mark.parametrize(("depth", "allowed", "state"), [(1, False, "ok"), (6, False, "warning"), (6, True, "ok")])
def test_path_length_is_limited_on_windows(depth: int, allowed: bool, state: str) -> None:
    windows = replace(ROOM, system="win32", long_paths=lambda: allowed)
    check = check_path_length([place(Path("/c", *["a" * 40] * depth))], windows)
    assert check is not None
    assert check.state == state
    assert check_path_length([], ROOM) is None


KEY = "ed25519:" + "A" * 43 + "="


def choice(address: str | None, *trust: str) -> CacheChoice:
    remote = RemoteAddress("http", address) if address is not None else None
    return CacheChoice(Position("epbuild.yaml", 1, 1), remote, trust)


def test_missing_remote_cache_is_a_note(tmp_path: Path) -> None:
    (check,) = check_servers(Servers(None, tmp_path, {}))
    assert (check.topic, check.state) == ("remote cache", "note")


@pytest.mark.parametrize(
    ("variables", "topic", "state", "words"),
    [
        ({REMOTE: "gopher://x"}, "remote cache", "error", "gopher"),
        ({REMOTE: "https://cache.example"}, "remote cache", "error", "without a trusted key"),
        ({REMOTE: "/no/such/folder"}, "remote cache", "warning", "the folder does not exist"),
        ({SIGNING_KEY: "nonsense"}, "signing key", "warning", "does not contain a signing key"),
        ({SIGNING_KEY: KEY}, "signing key", "warning", "contains a public key"),
    ],
)
def test_invalid_environment_variable_is_reported(
    tmp_path: Path, variables: Mapping[str, str], topic: str, state: str, words: str
) -> None:
    found = by_topic(check_servers(Servers(None, tmp_path, variables)))[topic]
    assert (found.state, words in found.text, found.hint is not None) == (state, True, True)


def test_untrusted_signing_key_is_a_warning(tmp_path: Path) -> None:
    key = SigningKey.generate()
    servers = Servers(choice(None, KEY), tmp_path, {SIGNING_KEY: key.text})
    found = by_topic(check_servers(servers))["signing key"]
    assert (found.state, key.public in found.text, key.text in found.text) == ("warning", True, False)
    trusted = replace(servers, choice=choice(None, key.public))
    assert by_topic(check_servers(trusted))["signing key"].state == "ok"


def test_folder_as_remote_cache_responds(tmp_path: Path) -> None:
    (check,) = check_servers(Servers(None, tmp_path, {REMOTE: str(tmp_path)}))
    assert check.state == "ok", check
    assert "answers in" in check.text


@pytest.mark.slow
def test_remote_cache_that_refuses_connections_is_an_immediate_warning(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    begin = time.monotonic()
    check = by_topic(check_servers(Servers(choice(f"http://127.0.0.1:{port}", KEY), tmp_path, {})))["remote cache"]
    assert (check.state, check.code) == ("warning", "EPB521")
    assert time.monotonic() - begin < 10


@pytest.mark.slow
def test_silent_servers_time_out_in_parallel(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        begin = time.monotonic()
        asked = Servers(choice(f"http://127.0.0.1:{port}", KEY), tmp_path, {}, ClusterAddress(f"tcp://127.0.0.1:{port}"))
        found = by_topic(check_servers(asked))
        assert time.monotonic() - begin < 10
    assert found["remote cache"].state == "warning"
    assert (found["cluster"].state, found["cluster"].code) == ("error", "EPB535")


def test_wrong_or_unreachable_cluster_is_an_error(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    wrong = PlanError(
        Problem("EPB536", "invalid scheduler address 'x'", Argument("--executor x"), "Write the address as dask://h:1.")
    )
    for cluster, code in ((wrong, "EPB536"), (ClusterAddress(f"tcp://127.0.0.1:{port}"), "EPB535")):
        found = by_topic(check_servers(Servers(None, tmp_path, {}, cluster)))["cluster"]
        assert (found.state, found.code, bool(found.hint)) == ("error", code, True)


def test_slow_check_times_out() -> None:
    with pytest.raises(TooSlow):
        run_within(0.01, lambda: threading.Event().wait(5))
    with pytest.raises(ZeroDivisionError):
        run_within(5, lambda: 1 // 0)
    assert run_within(5, lambda: 3) == 3


# Toolchains.


def toolchain(home: Path, name: str, packages: Sequence[str]) -> Path:
    """Create an environment like one that `provision` leaves, without ONNX Runtime."""
    interpreter = make_environment(home / name / "env")
    (home / name / "complete").write_text(json.dumps(list(packages)), encoding="utf-8")
    return interpreter


@pytest.mark.slow
def test_damaged_toolchain_is_reported_with_a_removal_hint(tmp_path: Path) -> None:
    install(toolchain(tmp_path, "no-runtime", ["onnxruntime-qnn==2.7.0"]), "onnxruntime-qnn", "2.7.0", {})
    crashes = toolchain(tmp_path, "crashes", ["onnxruntime-openvino==1.24.1"])
    install(crashes, "onnxruntime", "1.0", {"onnxruntime/__init__.py": b"import os; os.abort()"})
    toolchain(tmp_path, "tools", ["onnx==1.0"])
    gone = toolchain(tmp_path, "gone", ["onnxruntime-ep-openvino==1.0"])
    gone.unlink()
    found, more = EpSurvey(Toolchains(tmp_path)).check_newest_toolchains()
    checks = {check.text.partition(":")[0]: check for check in check_eps(found, needed=False)}
    assert more == 0
    assert len(found) == 3
    assert "the interpreter no longer runs" in checks["onnxruntime-ep-openvino==1.0"].text
    assert "ONNX Runtime does not load: " in checks["onnxruntime-qnn==2.7.0"].text
    assert "crashed (SIGABRT)" in checks["onnxruntime-openvino==1.24.1"].text
    for check in checks.values():
        assert (check.state, "Remove" in str(check.hint)) == ("warning", True)


NPU = EpDevice("npu", "Qualcomm", {"version": "1"})
EP = EpHealth("QNNExecutionProvider", "onnxruntime-qnn 2.7.0", (NPU,))
DONE = CompileAttempt("SM8750", 0.5, opened=True)
HEALTHY = HealthCheck("toolchain", "ok", "ONNX Runtime 1.31.1", name="qnn")


@pytest.mark.parametrize(
    ("ep", "needed", "states", "words"),
    [
        (replace(EP, attempt=DONE), True, "ok ok", "npu from Qualcomm; compiles for SM8750 (0.5 s) and loads the result"),
        (replace(EP, attempt=DONE, emulated=True), True, "ok ok", ", emulated"),
        (
            replace(EP, attempt=replace(DONE, opened=False, why="it crashes")),
            True,
            "ok note",
            "cannot load the result on this machine",
        ),
        (
            replace(EP, attempt=CompileAttempt("SM8750", why="no license")),
            True,
            "ok error",
            "cannot compile for SM8750: no license",
        ),
        (replace(EP, attempt=CompileAttempt("SM8750", why="no license")), False, "ok warning", "no license"),
        (replace(EP, attempt=CompileAttempt("SM8750", why="no device", unfit=True)), True, "ok warning", "no device"),
        (
            replace(EP, attempt=replace(DONE, opened=False, why=f"{EP.ep} cannot load models here: it crashes")),
            True,
            "ok note",
            "compiles for SM8750 (0.5 s), but cannot load models here: it crashes",
        ),
        (replace(EP, limit="cannot compile here: no driver"), True, "ok warning", "cannot compile here"),
        (replace(EP, limit="cannot compile here: no driver"), False, "ok note", "cannot compile here"),
        (replace(EP, missing="it offers no device"), True, "ok error", "it offers no device"),
        (EP, True, "ok note", "not tested"),
    ],
)
def test_health_of_each_ep_is_reported(ep: EpHealth, needed: bool, states: str, words: str) -> None:
    checks = list(check_eps([ToolchainHealth("qnn", "x", HEALTHY, "1.31.1", (ep,))], needed=needed))
    assert " ".join(check.state for check in checks) == states
    assert words in checks[1].text


# Complete checks.


def ignore(check: HealthCheck) -> None:
    """Ignore the check."""


def request(folder: Path, **changes: Any) -> DoctorRequest:
    return replace(DoctorRequest(None, attempts=False, machine=SOUND, disks=ROOM), **changes)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EPBUILD_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("EPBUILD_TOOLCHAIN_DIR", str(tmp_path / "toolchains"))
    (tmp_path / "epbuild.yaml").write_text(RECIPE, encoding="utf-8")
    write_model(tmp_path / "relu.onnx")
    return tmp_path


def test_doctor_creates_nothing_for_an_unbuilt_recipe(folder: Path) -> None:
    found = run_checks(request(folder, recipe=folder / "epbuild.yaml"), ignore)
    assert found.is_healthy
    topics = by_topic(found.checks)
    assert topics["recipe"].text.endswith("2 steps for 1 target")
    assert topics["toolchain"].text.endswith("not provisioned yet; a build provisions it when needed")
    assert sorted(path.name for path in folder.iterdir()) == ["epbuild.yaml", "relu.onnx"]


@pytest.mark.parametrize(
    ("text", "code"), [("epbuild: [", "EPB101"), (RECIPE.replace("relu.onnx", "none.onnx"), "EPB201"), (None, "EPB100")]
)
def test_broken_recipe_does_not_stop_the_other_checks(folder: Path, text: str | None, code: str) -> None:
    file = folder / "epbuild.yaml"
    file.unlink()
    if text is not None:
        file.write_text(text, encoding="utf-8")
    found = run_checks(request(folder, recipe=file), ignore)
    assert not found.is_healthy
    assert by_topic(found.checks)["recipe"].code == code
    assert {"python", "uv", "cache", "remote cache"} <= {check.topic for check in found.checks}


def test_doctor_json_matches_its_schema_and_lines_fit_a_terminal(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = run_checks(
        request(folder, machine=replace(SOUND, run_uv=raising(NO_UV)), disks=replace(ROOM, kind=lambda path: "nfs")), ignore
    )
    eps = (replace(EP, attempt=DONE), replace(EP, limit="cannot"), EP)
    found = replace(found, toolchains=(ToolchainHealth("", "x", HEALTHY, "1.31.1", eps),))
    import jsonschema

    for document in (json.loads(format_json(each)) for each in (build_health_document(found), build_devices_document(found))):
        jsonschema.validate(document, read_schema("doctor"))
        assert document["healthy"] is False
    printer = HealthPrinter()
    for check in found.checks:
        printer.print_check(check)
    printer.print_sum(found)
    shown = capsys.readouterr().out
    assert [line for line in shown.splitlines() if len(line) > 80 and " " in line[23:]] == []  # long paths are not broken
    assert "error    uv" in shown
    assert "> Install it. [EPB301]" in shown
    assert shown.endswith("Builds cannot run until the errors are fixed. 1 error and 2 warnings.\n")
