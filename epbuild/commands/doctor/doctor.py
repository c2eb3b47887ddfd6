"""`epbuild doctor`: checks of this machine and optionally of a recipe."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from msgspec import Struct, field

from epbuild.cache.location import find_cache_directory, find_toolchain_directory
from epbuild.cluster.address import ClusterAddress
from epbuild.commands.doctor.devices import EpSurvey, ToolchainHealth, check_eps
from epbuild.commands.doctor.folders import CheckedFolder, FileSystems, check_file_systems, check_folder, check_path_length
from epbuild.commands.doctor.health import HealthCheck, ThisMachine, check_machine, make_error_check
from epbuild.commands.doctor.servers import Servers, check_servers
from epbuild.core.errors import EpbuildError
from epbuild.core.shown import format_path
from epbuild.core.units import format_count
from epbuild.core.user_folders import find_settings_file
from epbuild.core.user_settings import read_user_settings
from epbuild.plan.steps import Plan
from epbuild.recipe.model import Recipe
from epbuild.session.planning import get_workspace_folder, read_plan
from epbuild.session.request import Request
from epbuild.toolchain.environment import Toolchains

_MOVE_CACHE = "set EPBUILD_CACHE_DIR to another folder"
_MOVE_TOOLCHAINS = "set EPBUILD_TOOLCHAIN_DIR to another folder"
_MOVE_WORKSPACE = "build in a copy of the recipe's folder"


class DoctorRequest(Struct, frozen=True):
    """Options of the checks. If `recipe` is None, only this machine is checked."""

    recipe: Path | None
    settings: tuple[str, ...] = ()
    attempts: bool = True
    """True to compile a small model with each EP."""
    offline: bool = False
    """True to contact no other machine."""
    insecure: bool = False
    cluster: ClusterAddress | EpbuildError | None = None
    machine: ThisMachine = field(default_factory=ThisMachine)
    disks: FileSystems = field(default_factory=FileSystems)


class Diagnoses(Struct, frozen=True):
    """Results of all checks, and the details of the toolchains."""

    checks: tuple[HealthCheck, ...]
    toolchains: tuple[ToolchainHealth, ...]

    @property
    def is_healthy(self) -> bool:
        """True if builds can work."""
        return all(check.state != "error" for check in self.checks)


HealthListener = Callable[[HealthCheck], None]
"""Callback that receives the result of each check, in order, as soon as it is known."""


def run_checks(request: DoctorRequest, listener: HealthListener) -> Diagnoses:
    """Run all checks, and return the results. Problems are part of the results and are not raised."""
    found: list[HealthCheck] = []

    def report(checks: Iterable[HealthCheck]) -> None:
        for check in checks:
            found.append(check)
            listener(check)

    recipe, plan, checks = _check_recipe(request)
    with _open_pool() as (pool, cancelled):
        servers = None
        if not request.offline:
            choice, folder = (recipe.cache, recipe.directory) if recipe is not None else (None, Path.cwd())
            asked = Servers(choice, folder, request.machine.environment, request.cluster, request.insecure)
            servers = pool.submit(check_servers, asked)
        devices = pool.submit(_check_toolchains, request, recipe, plan, cancelled)
        report((*check_machine(request.machine), _check_settings(), *_check_places(request), *checks))
        report(servers.result() if servers is not None else ())
        toolchains, more = devices.result()
    report((*check_eps(toolchains, needed=plan is not None), *more))
    return Diagnoses(tuple(found), tuple(toolchains))


def check_devices(request: DoctorRequest) -> Diagnoses:
    """Check only toolchains and EPs, and return the results. Problems are part of the results and are not raised."""
    recipe, plan, checks = _check_recipe(request)
    with _open_pool() as (pool, cancelled):
        toolchains, more = pool.submit(_check_toolchains, request, recipe, plan, cancelled).result()
    errors = (check for check in checks if check.state == "error")
    return Diagnoses((*errors, *check_eps(toolchains, needed=plan is not None), *more), tuple(toolchains))


@contextmanager
def _open_pool() -> Iterator[tuple[ThreadPoolExecutor, threading.Event]]:
    """Provide a thread pool, and an event that stops the pool's work. An exception, such as KeyboardInterrupt, sets the event."""
    cancelled = threading.Event()
    with ThreadPoolExecutor(2) as pool:
        try:
            yield pool, cancelled
        except BaseException:
            cancelled.set()
            raise


def _check_recipe(request: DoctorRequest) -> tuple[Recipe | None, Plan | None, list[HealthCheck]]:
    """Check the recipe. Return the recipe, its plan, and the results. Without a valid recipe, the recipe and the plan are None."""
    if request.recipe is None:
        return None, None, []
    try:
        recipe, plan = read_plan(Request(request.recipe, settings=request.settings))
    except EpbuildError as error:
        return None, None, [make_error_check("recipe", error)]
    except OSError as error:
        return None, None, [HealthCheck("recipe", "error", f"{request.recipe} cannot be read: {error.strerror or error}")]
    targets = len({group.target.name for group in plan.session_groups.values()})
    text = f"{request.recipe}: {format_count(len(plan.steps), 'step')} for {format_count(targets, 'target')}"
    if plan.warnings:
        hint = "Show the warnings with `epbuild validate`."
        return recipe, plan, [HealthCheck("recipe", "note", f"{text}; {format_count(len(plan.warnings), 'warning')}", hint)]
    return recipe, plan, [HealthCheck("recipe", "ok", text)]


def _check_settings() -> HealthCheck:
    """Check the user's settings. Name the keys that are set, but not their values."""
    path = find_settings_file()
    try:
        found = read_user_settings()
    except EpbuildError as error:
        return make_error_check("settings", error)
    if path is None or not Path(path).exists():
        return HealthCheck("settings", "ok", "defaults" if path is None else f"defaults, because {path} does not exist")
    return HealthCheck("settings", "ok", f"{path}: {', '.join(found) or 'empty'}")


def _check_places(request: DoctorRequest) -> Iterator[HealthCheck]:
    """Yield the checks of all folders that epbuild writes to."""
    try:
        places = [
            CheckedFolder("cache", find_cache_directory(), _MOVE_CACHE),
            CheckedFolder("toolchains", find_toolchain_directory(), _MOVE_TOOLCHAINS),
        ]
    except EpbuildError as error:
        yield make_error_check("cache", error)
        return
    if request.recipe is not None:
        places.append(CheckedFolder("workspace", get_workspace_folder(request.recipe), _MOVE_WORKSPACE))
    for place in places:
        try:
            yield from check_folder(place, request.disks)
        except OSError as error:
            yield HealthCheck(
                place.topic,
                "error",
                f"{format_path(place.path)} cannot be checked: {error.strerror or error}",
                f"Check the folder, or {place.move}.",
            )
    yield from filter(None, [check_path_length(places, request.disks)])
    if request.recipe is not None:
        yield from filter(None, [check_file_systems(places[0].path, places[-1].path)])


def _check_toolchains(
    request: DoctorRequest, recipe: Recipe | None, plan: Plan | None, cancelled: threading.Event
) -> tuple[list[ToolchainHealth], Iterable[HealthCheck]]:
    """Return the health of the toolchains and their EPs, and checks that belong to no single toolchain."""
    try:
        survey = EpSurvey(Toolchains(find_toolchain_directory()), request.attempts, cancelled)
        if recipe is not None and plan is not None:
            return survey.check_recipe_toolchains(recipe, plan), []
        found, more = survey.check_newest_toolchains()
    except EpbuildError as error:
        return [], [make_error_check("toolchain", error)]
    except OSError as error:
        return [], [HealthCheck("toolchain", "error", f"{error.filename or 'toolchains'}: {error.strerror or error}")]
    if more:
        return found, [
            HealthCheck(
                "toolchain",
                "note",
                f"{format_count(more, 'older toolchain')} skipped",
                "To check the toolchains of a recipe, name the recipe.",
            )
        ]
    if not found and request.recipe is None:
        hint = "Write a recipe with `epbuild init`, and provision its toolchain with `epbuild run`."
        return [], [HealthCheck("toolchain", "note", "no toolchain exists yet", hint)]
    return found, []
