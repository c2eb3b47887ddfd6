"""Facts of this machine in an identity: only those that the catalog knows an EP's output to depend on."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from epbuild.catalog.catalog import BUILT_IN, entries_for, entry
from epbuild.catalog.facts import Driver, HostDependence
from epbuild.core import host as machine
from epbuild.toolchain import platforms
from epbuild.toolchain.platforms import describe_host, read_drivers
from tests.support.fake_cpu import on_cpu

QNN, OPENVINO, TENSORRT = (entry(f"{name}ExecutionProvider") for name in ("QNN", "OpenVINO", "Tensorrt"))


def depending(**facts: Any) -> Any:
    return replace(OPENVINO, host=HostDependence(**facts))


@pytest.fixture(autouse=True)
def this_machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    platforms._read_version.cache_clear()
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: range(4), raising=False)
    with on_cpu("A CPU", "fpu avx2"):
        yield
    platforms._read_version.cache_clear()


@pytest.mark.parametrize(
    ("entries", "document"),
    [
        ([QNN], None),
        ([depending()], {"cpu": "A CPU"}),
        ([depending(cpu="instructions")], {"cpu": "Acme avx2"}),
        ([depending(cpu="instructions", cpu_count=True)], {"cpu": "Acme avx2", "cpus": 4}),
        ([depending(cpu="none")], None),
        ([depending(cpu="none"), depending(cpu="instructions")], {"cpu": "Acme avx2"}),
        ([depending(), depending(cpu="instructions")], {"cpu": "A CPU"}),
        ([depending(cpu="none", drivers=(Driver("GPU", (__file__,), r"test_(\w+)_host"),))], {"drivers": {"GPU": "toolchain"}}),
        ([depending(cpu="none", drivers=(Driver("GPU", ("/nowhere",)),))], None),
        ([QNN, depending()], {"cpu": "A CPU"}),
    ],
)
def test_host_document_has_the_dependencies_of_the_outputs(entries: list[Any], document: dict[str, Any] | None) -> None:
    assert describe_host(entries) == document


def test_host_dependencies_of_built_in_eps_are_declared() -> None:
    depends = {
        found.short: found.host for ep in BUILT_IN.known_eps() for found in entries_for(ep) if found.output_depends_on_host
    }
    assert depends["openvino"].cpu == "instructions"
    assert depends["openvino"].cpu_count
    assert {name for name, found in depends.items() if found.cpu == "model"} == {"coreml", "migraphx", "vitisai", "webgpu"}
    assert {driver.name for driver in depends["tensorrt"].drivers} == {"NVIDIA driver", "NVIDIA GPU"}


def test_each_driver_is_watched_even_if_it_is_missing() -> None:
    there, gone = Driver("GPU", (__file__,), r"test_(\w+)_host"), Driver("NPU", ("/nowhere",))
    assert read_drivers([depending(drivers=(there, gone)), QNN]) == {there.plain: "toolchain", gone.plain: ""}


def driver(name: str) -> Driver:
    return next(row for ep in (OPENVINO, TENSORRT) for row in ep.host.drivers if row.name == name)


@pytest.mark.skipif(sys.platform != "linux", reason="as Linux has it")
@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC 2024\nGCC version:", "550.54.15"),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build  (dvs-builder)", "580.65.06"),
    ],
)
def test_version_of_the_nvidia_driver_is_found_in_its_report(text: str, version: str) -> None:
    import re

    found = re.search(driver("NVIDIA driver").pattern, text)
    assert found is not None
    assert found[1] == version


@pytest.mark.skipif(sys.platform != "linux", reason="as Linux has it")
def test_driver_version_may_be_in_file_names(tmp_path: Path) -> None:
    pattern = driver("Intel GPU driver").pattern
    glob = str(tmp_path / "libze_intel_gpu.so.*")
    assert machine.read_driver_version((glob,), pattern, "", "") == ""
    (tmp_path / "libze_intel_gpu.so.1.3.29735").touch()
    (tmp_path / "libze_intel_gpu.so.1").symlink_to("libze_intel_gpu.so.1.3.29735")
    assert machine.read_driver_version((glob,), pattern, "", "") == "1; 1.3.29735"


@pytest.mark.skipif(sys.platform != "linux", reason="as Linux has it")
def test_version_is_read_from_system_files() -> None:
    assert machine.read_driver_version(("/proc/version", "/proc/nosuch"), r"^(\w+) version", "", "") == "Linux"
    assert machine.count_cpus() >= 1
    assert machine.read_cpu_features()


class Registry(ModuleType):
    """Windows registry with the drivers of one device class."""

    HKEY_LOCAL_MACHINE = "HKLM"

    def __init__(self, devices: dict[str, dict[str, str]]) -> None:
        super().__init__("winreg")
        self.devices = devices

    def OpenKey(self, above: Any, name: str) -> Any:  # noqa: N802
        if above == "HKLM":
            if not name.endswith("{class}"):
                raise FileNotFoundError(name)
            return Key(self.devices)
        if name == "Properties":
            raise PermissionError(name)
        return Key(above.content[name])

    def QueryInfoKey(self, key: Any) -> tuple[int, int, int]:  # noqa: N802
        return len(key.content), 0, 0

    def EnumKey(self, key: Any, number: int) -> str:  # noqa: N802
        return str(list(key.content)[number])

    def QueryValueEx(self, key: Any, name: str) -> tuple[str, int]:  # noqa: N802
        if name not in key.content:
            raise FileNotFoundError(name)
        return str(key.content[name]), 1


class Key(SimpleNamespace):
    def __init__(self, content: Any) -> None:
        super().__init__(content=content)

    def __enter__(self) -> Key:
        return self

    def __exit__(self, *_: object) -> None: ...


def test_windows_driver_versions_are_read_from_the_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    nvidia = {"ProviderName": "NVIDIA", "DriverDesc": "NVIDIA RTX 4090", "DriverVersion": "32.0.15.6094"}
    intel = {"ProviderName": "Intel Corporation", "DriverDesc": "Intel(R) Arc(TM)", "DriverVersion": "31.0.101.5590"}
    registry = Registry({"0000": nvidia, "0001": intel, "0002": {"ProviderName": "NVIDIA"}, "Properties": {}})
    monkeypatch.setitem(sys.modules, "winreg", registry)
    with on_cpu("A CPU", platform="win32"):
        assert machine.read_driver_version((), "", "{class}", "^NVIDIA") == "NVIDIA RTX 4090 32.0.15.6094"
        assert machine.read_driver_version((), "", "{class}", "^Intel") == "Intel(R) Arc(TM) 31.0.101.5590"
        assert machine.read_driver_version((), "", "{other}", "^Intel") == ""
        assert machine.read_driver_version((), "", "", ".*") == ""


def test_cpu_stepping_does_not_change_the_cpu() -> None:
    with on_cpu("Intel64 Family 6 Model 170 Stepping 4, GenuineIntel", platform="win32"):
        assert machine.read_cpu_features() == "Intel64 Family 6 Model 170, GenuineIntel"
