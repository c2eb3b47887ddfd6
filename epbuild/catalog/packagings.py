"""Distributions that provide EPs or other distributions, and their conflicts."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from epbuild.catalog.catalog import CPU_EP, entry
from epbuild.catalog.entries import EpEntry

RUNTIME = "onnxruntime"
"""Name of ONNX Runtime's Python package, and of its distribution without accelerators."""
_DATA = Path(__file__).with_name("packages.toml")


def find_runtimes(distributions: Iterable[str]) -> dict[str, str]:
    """Return the builds of ONNX Runtime that `distributions` install.

    Keys are the builds, and values are the distributions that install them.
    """
    builds, with_runtime = entry(CPU_EP).distributions, find_dependents(RUNTIME)
    named = dict.fromkeys(distributions)
    found = {name: name for name in named if name in builds}
    for name in named:
        if name in with_runtime:
            found.setdefault(RUNTIME, name)
    return found


def find_exclusion(distributions: Iterable[str]) -> str | None:
    """Return a clause that names two conflicting builds of ONNX Runtime in `distributions`.

    Return None if there is no conflict.
    """
    found = find_runtimes(distributions)
    if len(found) < 2:
        return None
    first, second = [by if build == by else f"{by} (which installs {build})" for build, by in found.items()][:2]
    return f"{first} and {second} exclude each other"


def find_additions(eps: Sequence[Sequence[EpEntry]], present: Collection[str]) -> tuple[str, ...] | None:
    """Return the requirements that add EPs to the distributions `present`.

    `eps` lists the alternative packagings of each EP. Return None if all combinations conflict or if an EP has no released
    package.
    """
    released = ([packaging for packaging in packagings if _list_requirements(packaging)] for packagings in eps)
    for packagings in itertools.product(*released):
        added: dict[str, str] = {}
        wanted = _list_wanted_requirements(packagings, present)
        for requirement in sorted(wanted, key=lambda requirement: "==" not in requirement):
            if (name := requirement.partition("==")[0]) not in present:
                added.setdefault(name, requirement)
        if find_exclusion((*present, *added)) is None:
            return tuple(added.values())
    return None


def _list_wanted_requirements(packagings: Sequence[EpEntry], present: Collection[str]) -> Iterator[str]:
    """Yield the requirements of packagings. A plugin works with any build of ONNX Runtime, so a second build is not required."""
    built_in = [requirement for one in packagings if one.kind == "provider" for requirement in _list_requirements(one)]
    yield from built_in
    has_runtime = bool(find_runtimes((*present, *map(_extract_distribution, built_in))))
    for requirement in (requirement for one in packagings if one.kind == "plugin" for requirement in _list_requirements(one)):
        if not (has_runtime and _extract_distribution(requirement) in entry(CPU_EP).distributions):
            yield requirement


def format_environments(packagings: Iterable[EpEntry]) -> str:
    """Return, as YAML, toolchains that are known to provide an EP in one of the given packagings."""
    return " or ".join(f"`{text}`" for packaging in packagings for text in _list_environments(packaging))


def _list_environments(packaging: EpEntry) -> Iterator[str]:
    if packaging.start is not None:
        yield packaging.start.environment
    elif packaging.distributions:
        yield f"packages: [{', '.join(_list_requirements(packaging))}]"


def _list_requirements(packaging: EpEntry) -> tuple[str, ...]:
    """Return the requirements of a toolchain with this packaging. Return an empty tuple if no package index offers the packaging."""
    if packaging.start is not None:
        return packaging.start.packages
    needs_runtime = packaging.kind == "plugin" and packaging.distribution not in find_dependents(RUNTIME)
    return (*([RUNTIME] if needs_runtime else []), *packaging.distributions[:1])


def _extract_distribution(requirement: str) -> str:
    return requirement.partition("==")[0]


def pin_package(distribution: str) -> str:
    """Return a requirement that pins `distribution` to the version with which the preparations were measured."""
    return f"{distribution}=={_read_data()['versions'][distribution]}"


def list_providers(distribution: str) -> set[str]:
    """Return all distributions that provide `distribution`. A toolchain needs only one of them, such as any build of ONNX Runtime."""
    builds = entry(CPU_EP).distributions if distribution == RUNTIME else ()
    return {distribution, *builds, *find_dependents(distribution)}


def find_dependents(distribution: str) -> tuple[str, ...]:
    """Return the distributions that install `distribution` as a dependency."""
    return tuple(_read_data()["brought_by"].get(distribution, ()))


@cache
def _read_data() -> dict[str, Any]:
    import tomllib

    return tomllib.loads(_DATA.read_text(encoding="utf-8"))
