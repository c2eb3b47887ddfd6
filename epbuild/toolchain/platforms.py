"""Names of platforms, and facts about this machine that are part of keys."""

from __future__ import annotations

import platform as machine
import sysconfig
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

from epbuild.catalog.entries import EpEntry
from epbuild.catalog.facts import Driver
from epbuild.core.host import count_cpus, read_cpu_features, read_cpu_name, read_driver_version

PLATFORMS = {
    # manylinux_2_40 is the newest C library that uv supports. With an older one, packages such as onnxruntime-qnn (2.35) could not be
    # locked at all. On a machine that is too old for a locked release, the installation fails. The recipe can then pin an older release.
    "linux-x86_64": "x86_64-manylinux_2_40",
    "linux-arm64": "aarch64-manylinux_2_40",
    "windows-x86_64": "x86_64-pc-windows-msvc",
    "windows-arm64": "aarch64-pc-windows-msvc",
    "macos-arm64": "aarch64-apple-darwin",
    "macos-x86_64": "x86_64-apple-darwin",
}
"""Argument of `uv --python-platform` for each platform of a recipe."""

_MACHINE_MARKERS: Mapping[str, tuple[str, ...]] = {
    "linux": ("linux", "x86_64", "aarch64"),
    "windows": ("win32", "AMD64", "ARM64"),
    "macos": ("darwin", "x86_64", "arm64"),
}
MARKERS = {
    f"{system}-{kind}": f"sys_platform == '{name}' and platform_machine == '{model}'"
    for system, (name, *machines) in _MACHINE_MARKERS.items()
    for kind, model in zip(("x86_64", "arm64"), machines, strict=True)
}
"""Environment marker of each platform (PEP 508)."""

PYTHON_SYSTEMS = {f"{system}-{kind}": _MACHINE_MARKERS[system][0] for system in _MACHINE_MARKERS for kind in ("x86_64", "arm64")}
"""Value of `sys.platform` on each platform."""

MACOS_VERSION = "26.0"
"""Newest macOS version. uv reads it from MACOSX_DEPLOYMENT_TARGET, and chooses packages for this version.

On Linux, uv likewise chooses packages for the newest C library.
"""

_SYSTEMS = {"linux": "linux", "win": "windows", "macosx": "macos"}
_MACHINES = {"x86_64": "x86_64", "amd64": "x86_64", "aarch64": "arm64", "arm64": "arm64"}


def translate_platform_tag(tag: str) -> str | None:
    """Return epbuild's name for a platform tag of Python, such as `win-amd64`. Return None if the platform cannot be locked."""
    system, _, rest = tag.partition("-")
    kind = rest.rpartition("-")[2]
    if kind == "universal2":  # built for both machines
        kind = machine.machine().lower()
    name = f"{_SYSTEMS.get(system)}-{_MACHINES.get(kind)}"
    return name if name in PLATFORMS else None


def get_own_platform() -> str | None:
    """Return epbuild's name for this Python's platform. Return None if the platform cannot be locked."""
    return translate_platform_tag(sysconfig.get_platform())


def describe_host(entries: Iterable[EpEntry]) -> dict[str, Any] | None:
    """Return the facts about this machine that the EPs' outputs may depend on, for a key.

    Return None if there are no such facts.
    """
    found = [entry.host for entry in entries if entry.output_depends_on_host]
    if not found:
        return None
    document: dict[str, Any] = {}
    cpu_facts = {host.cpu for host in found}
    if "model" in cpu_facts:
        document["cpu"] = read_cpu_name()
    elif "instructions" in cpu_facts:
        document["cpu"] = _read_instructions()
    if any(host.cpu_count for host in found):
        document["cpus"] = count_cpus()
    drivers = {driver.name: version for host in found for driver in host.drivers if (version := _read_version(driver))}
    return {**document, **({"drivers": drivers} if drivers else {})} or None


def read_drivers(entries: Iterable[EpEntry]) -> Mapping[Any, str]:
    """Return the version of each driver that the EPs' outputs may depend on, by the arguments of `read_driver_version`."""
    return {
        driver.plain: _read_version(driver) for entry in entries if entry.output_depends_on_host for driver in entry.host.drivers
    }


def is_driver_missing(entry: EpEntry) -> bool:
    """Return whether this machine lacks a driver that the EP needs to compile, according to the catalog."""
    needed = {row.driver for row in entry.cannot} - {None}
    return any(driver.name in needed and not _read_version(driver) for driver in entry.host.drivers)


@cache
def _read_instructions() -> str:
    return read_cpu_features()


@cache  # all actions of a build must see the same version
def _read_version(driver: Driver) -> str:
    return read_driver_version(*driver.plain)
