"""What of this machine is part of an identity, by what the catalog knows of EPs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

from epbuild.catalog.entries import EpEntry
from epbuild.catalog.facts import Driver
from epbuild.core.host import cpu_count, cpu_features, cpu_name, driver_version


def host_identity(entries: Iterable[EpEntry]) -> dict[str, Any] | None:
    """What the outputs of these EPs may depend on of this machine, as a key holds it; None where they do not."""
    found = [entry.host for entry in entries if entry.output_depends_on_host]
    if not found:
        return None
    document: dict[str, Any] = {}
    asked = {host.cpu for host in found}
    if "model" in asked:
        document["cpu"] = cpu_name()
    elif "instructions" in asked:
        document["cpu"] = _instructions()
    if any(host.cpu_count for host in found):
        document["cpus"] = cpu_count()
    drivers = {driver.name: version for host in found for driver in host.drivers if (version := _version(driver))}
    return {**document, **({"drivers": drivers} if drivers else {})} or None


def drivers_of(entries: Iterable[EpEntry]) -> Mapping[Any, str]:
    """The version of each driver that the outputs of these EPs may depend on, by how it is read."""
    return {driver.plain: _version(driver) for entry in entries if entry.output_depends_on_host for driver in entry.host.drivers}


def lacks_driver(entry: EpEntry) -> bool:
    """Whether this machine has no version of a driver without which the EP compiles nothing, as far as the catalog knows."""
    needed = {row.driver for row in entry.cannot} - {None}
    return any(driver.name in needed and not _version(driver) for driver in entry.host.drivers)


@cache
def _instructions() -> str:
    return cpu_features()


@cache  # one answer for all that a build does
def _version(driver: Driver) -> str:
    return driver_version(*driver.plain)
