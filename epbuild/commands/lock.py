"""`epbuild lock`: lock packages of toolchains and digests of remote models."""

from __future__ import annotations

import sysconfig
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from msgspec import Struct
from msgspec.structs import replace

from epbuild.cache.blobs import BlobStore
from epbuild.cache.digests import Digests
from epbuild.cache.location import find_cache_directory
from epbuild.catalog.userfile import BadCatalog
from epbuild.core.atomic import write_file
from epbuild.core.errors import EnvironmentFailure, PlanError, Problem, ToolchainError, suggest_nearest
from epbuild.core.shown import format_path
from epbuild.core.summary import Summarized, Summary
from epbuild.engine.events import Progress, Warned
from epbuild.plan.planner import check_partial_recipe
from epbuild.plan.sources import find_source
from epbuild.recipe.address import PackageAddress, is_immutable, parse_address
from epbuild.recipe.load import load
from epbuild.recipe.model import ModelSpec, Recipe, ToolchainSpec
from epbuild.recipe.requirement import normalize_name
from epbuild.session.events import HashingEvents, ToolchainLocked, ToolchainStarted
from epbuild.session.lock import get_lock_path, read_lock_text
from epbuild.session.lock_fit import collect_catalog_facts, list_model_releases, list_remote_models, list_toolchain_eps
from epbuild.session.planning import ModelFetcher, RemoteModels, find_wheels, open_workspace
from epbuild.session.request import Request
from epbuild.toolchain import resolve
from epbuild.toolchain.environment import Toolchains
from epbuild.toolchain.lock import Lock, LockChange, LockedEnvironment, LockedModel, LockedToolchain, Package, compare_locks
from epbuild.toolchain.lock_file import render, salvage
from epbuild.toolchain.platforms import PLATFORMS, get_own_platform
from epbuild.toolchain.pylock import format_pylock, get_pylock_name
from epbuild.toolchain.resolve import Python, list_requirements, lock_installed_packages, parse_named_python

_CATALOG_PROBLEMS = ("EPB210", "EPB217")


class Upgrade(Struct, frozen=True):
    """Distributions to upgrade: `packages`, or all if `everything` is set. Other distributions keep their locked versions."""

    packages: Collection[str] = ()
    everything: bool = False

    def keeps(self, name: str) -> bool:
        return not self.everything and name not in map(normalize_name, self.packages)


class Resolver(Protocol):
    """Resolver of packages, such as `epbuild.toolchain.resolve`."""

    def find_python(self, toolchain: ToolchainSpec) -> Python:
        """Return the Python of a toolchain."""

    def resolve_packages(
        self, toolchain: ToolchainSpec, python: Python, platform: str, preferred: Mapping[str, str]
    ) -> LockedEnvironment:
        """Return the resolved packages of a toolchain on a platform. Use the `preferred` versions where possible."""


class Locking(Summarized, Struct, frozen=True):
    """New lock, and its differences from the existing lock."""

    recipe: Recipe
    path: Path
    lock: Lock
    changes: tuple[LockChange, ...]
    is_written: bool
    """True if the lock file is up to date."""

    def summarize(self) -> Summary:
        """Return the changes of the lock."""
        state = "is up to date" if self.is_written else "is out of date"
        rows = [
            (change.kind, change.toolchain or change.about, change.name, change.old or "", change.new or "")
            for change in self.changes
        ]
        return Summary(f"{format_path(self.path)} {state}", ("change", "in", "name", "before", "after"), rows)


def make_lock(
    request: Request,
    progress: Progress,
    upgrade: Upgrade | None = None,
    fetcher: ModelFetcher | None = None,
    resolver: Resolver | None = None,
) -> Locking:
    """Return a new lock for a recipe. Keep locked versions that still fit, except for the packages to upgrade.

    Writes nothing except fetched models. Raises RecipeError, PlanError, ToolchainError (EPB309 if locking is impossible)
    and FetchError.
    """
    recipe = load(request.recipe, settings=request.settings)
    path = get_lock_path(recipe.file)
    text, old = _read_lock(path, progress)
    builder = _LockBuilder(
        recipe,
        old or Lock(""),
        progress,
        upgrade or Upgrade(),
        get_own_platform(),
        fetcher,
        resolver or resolve,
        request.toolchains,
    )
    lock = builder.build()
    _check_upgraded(builder.upgrade, builder.old, lock)
    return Locking(recipe, path, lock, tuple(compare_locks(old, lock)), is_written=text == render(lock))


def write_lock(locking: Locking) -> None:
    """Write a lock beside its recipe, atomically, if the file is out of date. Raises EnvironmentFailure (EPB518)."""
    if not locking.is_written:
        _write_text(locking.path, render(locking.lock))


def export_lock(locking: Locking) -> dict[str, Path | None]:
    """Write a `pylock.toml` (PEP 751) for each toolchain. Return the path of the file by the name of the toolchain.

    A toolchain without locked files has no such file, and its path is None. Raises EnvironmentFailure (EPB518).
    """
    paths: dict[str, Path | None] = dict.fromkeys(locking.lock.toolchains)
    for name, toolchain in locking.lock.toolchains.items():
        text = format_pylock(toolchain)
        if text is not None:
            paths[name] = path = locking.path.with_name(get_pylock_name(name))
            _write_text(path, text)
    return paths


def _write_text(path: Path, text: str) -> None:
    try:
        write_file(path, text)
    except OSError as error:
        message = f"the lock {format_path(path)} cannot be written: {error.strerror or error}"
        hint = "Check the permissions and the free space of its folder."
        raise EnvironmentFailure(Problem("EPB518", message, hint=hint)) from error


def _read_lock(path: Path, progress: Progress) -> tuple[str | None, Lock | None]:
    """Return the text of the existing lock, and a lock with its valid facts. Return (None, None) if there is no lock."""
    text = read_lock_text(path)
    if text is None:
        return None, None
    text = text.replace("\r\n", "\n")  # Git may convert line endings on Windows
    lock, problem = salvage(text, str(path))
    if problem is not None:
        progress.report(Warned(replace(problem, hint="`epbuild lock` rewrites the lock and keeps its readable versions.")))
    return text, lock


def _check_upgraded(upgrade: Upgrade, old: Lock, new: Lock) -> None:
    """Raise PlanError (EPB248) if a package to upgrade is in neither the old nor the new lock."""
    names = {
        package.name
        for lock in (old, new)
        for toolchain in lock.toolchains.values()
        for environment in toolchain.platforms.values()
        for package in environment.packages
    }
    names |= {release.name for lock in (old, new) for release in lock.wheels}
    for name in upgrade.packages:
        if normalize_name(name) not in names:
            message = f"cannot upgrade '{name}': no toolchain or model of the recipe uses this package"
            raise PlanError(Problem("EPB248", message, None, suggest_nearest(name, names)))


@dataclass
class _LockBuilder:
    """Builder of a lock from a recipe and the existing lock."""

    recipe: Recipe
    old: Lock
    progress: Progress
    upgrade: Upgrade
    here: str | None
    fetcher: ModelFetcher | None
    resolver: Resolver
    toolchains: Toolchains

    def build(self) -> Lock:
        try:
            catalog = collect_catalog_facts(self.recipe)
        except (BadCatalog, KeyError, OSError) as error:
            problems = [problem for problem in check_partial_recipe(self.recipe) if problem.code in _CATALOG_PROBLEMS]
            if not problems:
                raise
            raise PlanError(*problems) from error
        toolchains = {name: self._lock_toolchain(toolchain) for name, toolchain in self.recipe.toolchains.items()}
        toolchains = {name: toolchain for name, toolchain in toolchains.items() if toolchain.requires or toolchain.platforms}
        wheels = self._find_wheels()  # Resolve wheels before fetching models, because models come from these wheels.
        models = {name: self._lock_model(model, wheels) for name, model in list_remote_models(self.recipe).items()}
        return Lock(self.recipe.name, toolchains, models, catalog, wheels)

    # -- Toolchains ----------------------------------------------------------------------------------------------------

    def _lock_toolchain(self, toolchain: ToolchainSpec) -> LockedToolchain:
        begin = time.monotonic()
        old = self.old.toolchains.get(toolchain.name, LockedToolchain())
        platforms = (
            self._resolve_packages(toolchain, old) if toolchain.interpreter is None else self._list_installed(toolchain, old)
        )
        if platforms:
            count = max(len(environment.packages) for environment in platforms.values())
            self.progress.report(ToolchainLocked(toolchain.name, tuple(platforms), count, time.monotonic() - begin))
        return LockedToolchain(list_requirements(toolchain), platforms)

    def _resolve_packages(self, toolchain: ToolchainSpec, locked: LockedToolchain) -> dict[str, LockedEnvironment]:
        """Resolve the packages of a toolchain that epbuild provisions, for each platform to lock. Return them by platform."""
        old = {
            platform: environment
            for platform, environment in locked.platforms.items()
            if platform in PLATFORMS and not environment.is_installed
        }
        platforms = toolchain.platforms or tuple(sorted({*old, *filter(None, [self.here])}))
        if not platforms:
            message = f"toolchain '{toolchain.name}' cannot be locked for this platform, {sysconfig.get_platform()}"
            raise ToolchainError(
                Problem("EPB309", message, toolchain.where, "List the platforms to lock in the toolchain's 'platforms'.")
            )
        self.progress.report(ToolchainStarted(toolchain.name, "searching for Python"))
        python = self.resolver.find_python(self._with_locked_python(toolchain, old))
        resolved: dict[str, LockedEnvironment] = {}
        for platform in platforms:
            self.progress.report(ToolchainStarted(toolchain.name, f"resolving packages for {platform}"))
            # Prefer one version on all platforms; the last entry of a package wins.
            sources = [*resolved.values(), *old.values(), *([old[platform]] if platform in old else [])]
            preferred = {
                package.name: package.version
                for environment in sources
                for package in environment.packages
                if self.upgrade.keeps(package.name) or environment in resolved.values()
            }
            environment = self.resolver.resolve_packages(toolchain, python, platform, preferred)
            old_packages = {package.name: package for package in old[platform].packages} if platform in old else {}
            packages = tuple(_keep_files(old_packages.get(package.name), package) for package in environment.packages)
            resolved[platform] = replace(environment, packages=packages)
        return resolved

    def _with_locked_python(self, toolchain: ToolchainSpec, old: Mapping[str, LockedEnvironment]) -> ToolchainSpec:
        """Return the toolchain with the locked Python version, unless the recipe specifies a Python or everything is upgraded."""
        pythons = {environment.python for environment in old.values()}
        if toolchain.python is not None or self.upgrade.everything or len(pythons) != 1:
            return toolchain
        python = pythons.pop().replace("-", "@")
        return replace(toolchain, python=python) if parse_named_python(python) else toolchain

    def _list_installed(self, toolchain: ToolchainSpec, old: LockedToolchain) -> dict[str, LockedEnvironment]:
        """Return the packages of an existing environment on this machine, and the packages that are locked for other platforms."""
        kept = old.platforms if old.requires == list_requirements(toolchain) else {}
        platforms = {platform: environment for platform, environment in kept.items() if environment.is_installed}
        if self.here is None or not self.toolchains.is_ready(toolchain, self.recipe.directory):
            message = (
                f"toolchain '{toolchain.name}' is not locked for this platform: "
                f"the toolchain's interpreter does not exist on this machine"
            )
            self.progress.report(
                Warned(
                    Problem("EPB304", message, toolchain.where, "Run `epbuild lock` again on a machine that has the interpreter.")
                )
            )
            platforms.pop(str(self.here), None)
            return platforms
        self.progress.report(ToolchainStarted(toolchain.name, "reading the environment"))
        environment = self.toolchains.prepare(toolchain, self.recipe.directory, list_toolchain_eps(self.recipe, toolchain))
        return {**platforms, self.here: lock_installed_packages(environment)}

    # -- Models --------------------------------------------------------------------------------------------------------

    def _find_wheels(self) -> tuple[Package, ...]:
        """Return the package releases that contain models, with their wheels. Prefer the locked wheels if they still exist."""
        old = {release.requirement: release for release in self.old.wheels}
        releases = []
        for requirement, (address, model) in list_model_releases(self.recipe).items():
            release = Package(address.distribution, address.version, find_wheels(address, model))
            keeps = self.upgrade.keeps(release.name)
            releases.append(_keep_files(old.get(requirement) if keeps else None, release))
        return tuple(sorted(releases))

    def _lock_model(self, model: ModelSpec, wheels: Sequence[Package]) -> LockedModel:
        """Return the digests of a remote model. Fetch the model, unless its address is mutable and the recipe pins the digests."""
        if model.sha256 is not None and not is_immutable(parse_address(model.path)):
            return LockedModel(model.sha256, model.data_sha256)
        with open_workspace(self.recipe.file) as workspace:
            allowed = {release.requirement: release.files for release in wheels}
            # The lock must describe the model in the wheel.
            is_in_wheel = isinstance(parse_address(model.path), PackageAddress)
            remote = RemoteModels(workspace, BlobStore(find_cache_directory()), allowed, is_in_wheel, self.fetcher)
            graph = remote.fetched(model, self.progress, threading.Event())
            source = find_source(model, self.recipe.directory, lambda model: graph)
            external = source.files.external if source is not None else {}
            digests = Digests(workspace.files, HashingEvents(self.progress).counting).of_many([graph, *external.values()])
        return LockedModel(digests[graph], {location: digests[path] for location, path in external.items()})


def _keep_files(locked: Package | None, package: Package) -> Package:
    """Return the locked package if its version is unchanged and its files still exist, or else the new package."""
    if locked is None or not locked.files or locked.version != package.version:
        return package
    return locked if set(locked.files) <= set(package.files) else package
