"""EPs of toolchains: their devices and abilities on this machine."""

from __future__ import annotations

import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from epbuild.catalog.catalog import entries_for, known_eps
from epbuild.catalog.entries import EpEntry
from epbuild.commands.doctor.health import HealthCheck, HealthState, make_error_check
from epbuild.commands.init.choices import StarterKind
from epbuild.compile.probing import NAME, compile_probe, plan_probe, write_probe_model
from epbuild.core.errors import EpbuildError, Position
from epbuild.core.records import convert
from epbuild.core.shown import format_path
from epbuild.plan.ability import Ability
from epbuild.plan.planner import make_plan
from epbuild.plan.possible import find_obstacle
from epbuild.plan.steps import Plan, SessionGroup, ToolchainNeeds
from epbuild.plan.target import PlannedTarget
from epbuild.recipe.model import CompileSettings, DeviceChoice, Expectation, GroupMember, GroupSpec, ModelSpec, Recipe, Reference
from epbuild.recipe.requirement import read_requirement
from epbuild.session.lock import HeldLock, hold_lock
from epbuild.toolchain.environment import RUNTIME, Environment, ProvisionedToolchain, Toolchains, list_provisioned_toolchains
from epbuild.toolchain.platforms import is_driver_missing
from epbuild.verify.live.session import open_target_session, plan_ep
from epbuild.verify.live.worker import Load, Session, list_devices, run_models

_SECONDS = 60.0
"""Maximum number of seconds for listing devices, and for opening a model."""
_THREADS = 3
_MAX_TOOLCHAINS = 6
"""Maximum number of toolchains to check if there is no recipe. The newest are checked."""
_MACHINE_HINT = "Compile on a machine that supports the EP, such as a worker (`epbuild worker`) or a CI runner."
_LOG_HINT = "For the EP's full log, build one of your own models and run `epbuild log`."


class CompileAttempt(Struct, frozen=True):
    """Outcome of compiling and opening a small model."""

    target: str
    """Name of the target in the recipe, or the catalog's example target."""
    seconds: float | None = None
    """Duration of the compile in seconds, or None if it failed."""
    opened: bool = False
    why: str = ""
    """Reason why compiling or opening the model failed, as a clause."""
    unfit: bool = False
    """True if this machine lacks the device or the driver."""


class EpDevice(Struct, frozen=True):
    """Device as `get_ep_devices()` reports it."""

    type: str
    vendor: str
    metadata: dict[str, str]


class EpHealth(Struct, frozen=True):
    """EP in a toolchain, with its devices. `attempt` is None if no compile was attempted."""

    ep: str
    packages: str
    devices: tuple[EpDevice, ...] = ()
    missing: str = ""
    """Reason why ONNX Runtime lacks the EP, as a clause."""
    hint: str | None = None
    """Hint for a missing EP, or None."""
    limit: str = ""
    """Known reason why the EP cannot compile on this machine, as a clause."""
    attempt: CompileAttempt | None = None
    emulated: bool = False
    """True if the devices only emulate the device that the EP compiles for."""
    read_callback: bool | None = None
    """True if the EP can read context binaries through a callback of the application. None if this is unknown."""


class ToolchainHealth(Struct, frozen=True):
    """Toolchain with its health check and the health of its EPs."""

    name: str
    packages: str
    check: HealthCheck
    onnxruntime: str | None = None
    eps: tuple[EpHealth, ...] = ()


class _RequestedEp(Struct, frozen=True):
    """EP to check, alone or for a target of a recipe."""

    entry: EpEntry
    target: PlannedTarget | None = None


class EpSurvey(Struct, frozen=True):
    """Survey of the EPs of toolchains. If `attempts` is set, the survey compiles a small model with each EP."""

    toolchains: Toolchains
    attempts: bool = True
    cancelled: threading.Event = field(default_factory=threading.Event)
    """Event that stops the survey."""

    def check_recipe_toolchains(self, recipe: Recipe, plan: Plan) -> list[ToolchainHealth]:
        """Return the health of a recipe's toolchains. Installs nothing. Raises PlanError for an unreadable lock."""
        lock = hold_lock(recipe, plan, strict=False)
        targets = {group.target.name: group.target for group in plan.session_groups.values()}

        def check_toolchain(item: tuple[str, ToolchainNeeds]) -> ToolchainHealth:
            name, needs = item
            asked: dict[str, _RequestedEp] = {}
            for target in targets.values():
                if target.toolchain.name == name:
                    asked.setdefault(target.eps[0].entry.ep, _RequestedEp(target.eps[0].entry, target))
            return self._check_needs(recipe, name, needs, list(asked.values()), lock)

        with ThreadPoolExecutor(_THREADS) as pool:
            return list(pool.map(check_toolchain, plan.toolchains().items()))

    def check_newest_toolchains(self) -> tuple[list[ToolchainHealth], int]:
        """Return the health of this machine's newest toolchains with EPs that compile, and the number of older such toolchains."""
        found: dict[str, tuple[ProvisionedToolchain, list[EpEntry]]] = {}
        for made in list_provisioned_toolchains(self.toolchains.home):
            entries = [entry for ep in known_eps() for entry in entries_for(ep) if entry.sources and made.has(entry)]
            if entries:
                known = {RUNTIME, *(name for entry in entries for name in entry.distributions)}
                packages = sorted(text for text in made.packages if read_requirement(text).distribution in known)
                found.setdefault(", ".join(packages), (made, entries))
        chosen = list(found.items())[:_MAX_TOOLCHAINS]
        with ThreadPoolExecutor(_THREADS) as pool:
            return list(pool.map(lambda item: self._check_provisioned(item[0], *item[1]), chosen)), len(found) - len(chosen)

    def _check_needs(
        self, recipe: Recipe, name: str, needs: ToolchainNeeds, asked: Sequence[_RequestedEp], lock: HeldLock
    ) -> ToolchainHealth:
        spec, locked = needs.toolchain, lock.environments.get(name)
        shown = ", ".join(spec.packages) or str(spec.interpreter)
        try:
            if spec.interpreter is None and not self.toolchains.is_ready(spec, recipe.directory, locked):
                unmade = HealthCheck(
                    "toolchain", "note", f"{shown}: not provisioned yet; a build provisions it when needed", name=name
                )
                eps = (
                    EpHealth(one.entry.ep, "", limit=_find_limit(one), read_callback=one.entry.binary.read_callback)
                    for one in asked
                )
                return ToolchainHealth(name, shown, unmade, eps=tuple(eps))
            environment = self.toolchains.prepare(spec, recipe.directory, needs.entries, locked, needs.packages)
            other = lock.check_toolchains([spec], {name: environment})
        except EpbuildError as error:
            return ToolchainHealth(name, shown, make_error_check("toolchain", error, name=name))
        check: HealthCheck | None = None
        if other:
            check = HealthCheck("toolchain", "warning", other[0].message, other[0].hint, other[0].code, name)
        hint = (
            "Reinstall ONNX Runtime in the toolchain's environment."
            if spec.interpreter
            else _format_removal_hint(environment.memory.parent)
        )
        return self._examine(ToolchainHealth(name, shown, check or _make_passed_check(name)), environment, asked, recipe, hint)

    def _check_provisioned(self, packages: str, made: ProvisionedToolchain, entries: Sequence[EpEntry]) -> ToolchainHealth:
        environment = made.environment(entries)
        if environment is None:
            check = HealthCheck(
                "toolchain", "warning", f"{packages}: the interpreter no longer runs", _format_removal_hint(made.folder)
            )
            return ToolchainHealth("", packages, check)
        asked = [_RequestedEp(entry) for entry in entries]
        return self._examine(
            ToolchainHealth("", packages, _make_passed_check("")), environment, asked, None, _format_removal_hint(made.folder)
        )

    def _examine(
        self, known: ToolchainHealth, environment: Environment, asked: Sequence[_RequestedEp], recipe: Recipe | None, hint: str
    ) -> ToolchainHealth:
        """Return the health of an existing toolchain and its EPs. `hint` is the suggested fix if ONNX Runtime does not load."""
        python, check = environment.fingerprint.python, known.check
        if environment.onnxruntime == "unknown" and not asked:  # Toolchains without ONNX Runtime only prepare models.
            return replace(known, check=replace(check, text=check.text or f"{python}: {known.packages}"))
        release, why, _ = self._list_devices(environment, None)
        if why:
            state: HealthState = "warning" if recipe is None else "error"
            text = f"{known.packages}: ONNX Runtime does not load: {why}"
            return replace(known, check=HealthCheck("toolchain", state, text, hint, name=known.name))
        eps = tuple(replace(self._check_ep(environment, one, recipe), hint=hint) for one in asked)
        text = check.text or f"ONNX Runtime {release} on {python}: {known.packages}"
        return replace(known, check=replace(check, text=text), onnxruntime=release, eps=eps)

    def _check_ep(self, environment: Environment, asked: _RequestedEp, recipe: Recipe | None) -> EpHealth:
        entry, held = asked.entry, environment.fingerprint.distributions
        packages = ", ".join(f"{name} {held[name]}" for name in entry.distributions if name in held)
        _, why, devices = self._list_devices(environment, asked)
        own = tuple(device for name, device in devices if name == entry.ep)
        limit = _find_limit(asked)
        emulated = bool(own) and all(device.type in entry.emulator_devices for device in own)
        attempt = self._attempt_compile(environment, asked, recipe) if self.attempts and not why and not limit else None
        known = entry.binary.read_callback
        return EpHealth(entry.ep, packages, own, why, limit=limit, attempt=attempt, emulated=emulated, read_callback=known)

    def _attempt_compile(self, environment: Environment, asked: _RequestedEp, recipe: Recipe | None) -> CompileAttempt | None:
        """Compile and open a small model for the requested target, or else for the catalog's example target.

        Return None if the catalog has no example for the EP.
        """
        target = (
            asked.target.name
            if asked.target is not None
            else asked.entry.start.example
            if asked.entry.start is not None
            else None
        )
        if target is None:
            return None
        with tempfile.TemporaryDirectory(prefix="epbuild-doctor-", ignore_cleanup_errors=True) as scratch:
            folder = Path(scratch)
            try:
                if recipe is not None and asked.target is not None:
                    group = _plan_target_probe(recipe, target, folder)
                else:
                    group = plan_probe(Ability(asked.entry), environment, folder)
                return self._compile_and_open(target, group, environment, folder)
            except (EpbuildError, OSError) as error:
                why = error.problems[0].message if isinstance(error, EpbuildError) else str(error)
                return CompileAttempt(target, why=why)

    def _compile_and_open(self, target: str, group: SessionGroup, environment: Environment, folder: Path) -> CompileAttempt:
        begin = time.monotonic()
        found, compiled = compile_probe(group, environment, folder, self.cancelled)
        seconds = time.monotonic() - begin
        if compiled is None:
            return CompileAttempt(target, why=found.why, unfit=found.outcome == "cannot")
        opened = folder / "opened"
        opened.mkdir()
        session = open_target_session(group.target, environment, group.custom_ops, _SECONDS)
        try:
            failure = run_models([Load(NAME, compiled)], session, opened, self.cancelled).failure
        except EpbuildError as error:
            return CompileAttempt(target, seconds, why=error.problems[0].message)
        return CompileAttempt(target, seconds, failure is None, failure.message.rstrip(".") if failure is not None else "")

    def _list_devices(
        self, environment: Environment, asked: _RequestedEp | None
    ) -> tuple[str | None, str, list[tuple[str, EpDevice]]]:
        """List the devices of an environment.

        Return the release of ONNX Runtime, the reason why ONNX Runtime or the EP does not load, and pairs of EPs and devices.
        """
        eps = []
        if asked is not None:
            planned = asked.target.eps[0] if asked.target is not None else None
            eps.append(plan_ep(asked.entry, {}, planned, DeviceChoice())[0])
        with tempfile.TemporaryDirectory(prefix="epbuild-doctor-", ignore_cleanup_errors=True) as scratch:
            try:
                found = list_devices(Session(environment, tuple(eps), timeout=_SECONDS), Path(scratch), self.cancelled)
            except EpbuildError as error:
                return None, error.problems[0].message, []
        started = found.find_reports("started")
        devices = [(str(report["ep"]), convert(report, EpDevice)) for report in found.find_reports("offered")]
        why = found.failure.message.rstrip(".") if found.failure is not None else ""
        return (str(started[0]["onnxruntime"]) if started else None), why, devices


def _plan_target_probe(recipe: Recipe, target: str, folder: Path) -> SessionGroup:
    """Write a small model to a folder, and return its session group for a target of a recipe. Raises EpbuildError and OSError."""
    source = folder / f"{NAME}.onnx"
    write_probe_model(source)
    where = Position(str(recipe.file), 1, 1)
    member = GroupMember(NAME, Reference(NAME, where), CompileSettings(), Expectation(fallback_nodes="any"))
    group = GroupSpec(NAME, where, (member,), (Reference(target, where),), share_weights=False)
    model = ModelSpec(NAME, where, str(source), where)
    probe = replace(recipe, models={NAME: model}, groups={NAME: group}, outputs=())
    [planned] = make_plan(probe).session_groups.values()
    return planned


def _make_passed_check(name: str) -> HealthCheck:
    """Return a passed check of a toolchain. The caller adds the text."""
    return HealthCheck("toolchain", "ok", "", name=name)


def _format_removal_hint(folder: Path) -> str:
    return f"Remove {format_path(folder)}. The next build that needs the toolchain provisions it again."


def _find_limit(asked: _RequestedEp) -> str:
    """Return the reason from the catalog why an EP cannot compile here, as a clause, or an empty string. Drivers are checked."""
    entry = asked.entry
    if is_driver_missing(entry):
        return next(f"cannot {row.what} here: {row.why}" for row in entry.cannot if row.driver is not None)
    if asked.target is not None:
        return (find_obstacle(asked.target, sys.platform) or "").removeprefix(f"{entry.ep} ").rstrip(".")
    return (StarterKind(entry, entry.start).obstacle() or "") if entry.start is not None else ""


def check_eps(found: Iterable[ToolchainHealth], *, needed: bool) -> Iterator[HealthCheck]:
    """Yield the checks of toolchains and their EPs. Set `needed` if a recipe needs the toolchains."""
    for toolchain in found:
        yield toolchain.check
        for ep in toolchain.eps:
            yield _make_ep_check(ep, toolchain.name, needed=needed)


def _make_ep_check(ep: EpHealth, toolchain: str, *, needed: bool) -> HealthCheck:
    offered = ", ".join(dict.fromkeys(f"{device.type} from {device.vendor}" for device in ep.devices))
    devices = f"{offered}{', emulated' if ep.emulated else ''}; " if offered else ""
    attempt = ep.attempt

    def check(state: Any, text: str, hint: str | None = None) -> HealthCheck:
        return HealthCheck("ep", state, f"{ep.ep}: {text}", hint, name=toolchain)

    if ep.limit:
        return check("warning" if needed else "note", f"{devices}{ep.limit}", _MACHINE_HINT)
    if ep.missing:
        return check("error" if needed else "warning", ep.missing, ep.hint)
    if attempt is None:
        return check("note", f"{devices}not tested")
    if attempt.seconds is None:
        text = f"{devices}cannot compile for {attempt.target}: {attempt.why}"
        return check("error" if needed and not attempt.unfit else "warning", text, _MACHINE_HINT if attempt.unfit else _LOG_HINT)
    compiled = f"{devices}compiles for {attempt.target} ({attempt.seconds:.1f} s)"
    if attempt.opened:
        return check("ok", f"{compiled} and loads the result{' in emulation' if ep.emulated else ''}")
    of_ep = attempt.why.removeprefix(f"{ep.ep} ")
    why = of_ep if of_ep != attempt.why else f"cannot load the result on this machine: {attempt.why}"
    return check("note", f"{compiled}, but {why}", "Builds work. Verify numbers on the device.")
