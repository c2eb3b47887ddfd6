"""Environments of toolchains: interpreters with their fingerprints."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from pathlib import Path
from types import MappingProxyType
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from epbuild.cache.location import find_toolchain_directory
from epbuild.catalog.catalog import entries_for
from epbuild.catalog.entries import EpEntry
from epbuild.catalog.packagings import find_additions, format_environments
from epbuild.core.digest import hash_bytes
from epbuild.core.errors import Position, Problem, ToolchainError
from epbuild.core.installer import UvListener
from epbuild.core.safepath import expand_home
from epbuild.recipe.model import ToolchainSpec
from epbuild.recipe.requirement import Requirement, read_requirement
from epbuild.toolchain.fingerprint import Fingerprint, read_fingerprint, select_package_files
from epbuild.toolchain.lock import LockedEnvironment
from epbuild.toolchain.packages import FileState, get_state, is_touched
from epbuild.toolchain.platforms import describe_host
from epbuild.toolchain.process import RunWorker, supervise
from epbuild.toolchain.provision import (
    Requirements,
    find_interpreter,
    get_complete_file,
    get_environment_folder,
    get_installed_file,
    provision,
    read_installed,
)

RUNTIME = "onnxruntime"


class Environment(Struct, frozen=True):
    """Environment of a usable toolchain."""

    name: str
    interpreter: Path
    fingerprint: Fingerprint
    memory: Path
    """Path of the file with the remembered fingerprint."""
    modules: frozenset[str] = frozenset()
    """Python packages whose files the fingerprint covers: ONNX Runtime, the EPs, and custom operators."""
    states: Mapping[str, FileState | None] = field(default_factory=dict)
    """State of each file and folder that the fingerprint was computed from."""
    run_worker: RunWorker = supervise

    def identity(self, entries: Iterable[EpEntry], packages: Iterable[str] = ()) -> dict[str, Any]:
        """Return the environment's part of the key document, for a compile with these EPs and custom operator packages."""
        used = list(entries)
        modules = {*find_ep_modules(used), *packages}
        return self.fingerprint.document(modules, describe_host(used))

    def list_watched(self) -> list[Path]:
        """Return the files and folders whose stats change when the environment changes."""
        installed = get_installed_file(self.memory.parent)
        return [self.interpreter, self.memory, *map(Path, self.states), *([installed] if installed.exists() else ())]

    def refresh(self) -> Environment:
        """Return this environment with a current fingerprint. Return `self` if no file was touched. Raises ToolchainError."""
        if all(get_state(path) == state for path, state in self.states.items()):
            return self
        seen = read_fingerprint(self.interpreter, self.modules, self.memory)
        return replace(self, fingerprint=seen.fingerprint, states=seen.states)

    def list_touched_since(self, before: Environment) -> list[str]:
        """Return the files that were written or temporarily replaced since the environment `before` was observed."""
        if self.states is before.states:
            return []
        return [path for path in self.states if os.path.isfile(path) and is_touched(path, before.states, self.states)]  # noqa: PTH113

    def list_rewritten(self) -> list[str]:
        """Return the sorted names of package files that have changed since they were installed from the lock."""
        installed = read_installed(self.memory.parent)
        found: set[str] = set()
        contents = {**self.fingerprint.libraries, **self.fingerprint.files}
        for module in self.modules:
            # In a fingerprint, the file names of a nested package begin with the last part of its name.
            outer, _, folder = module.rpartition(".")
            inside = f"{outer.replace('.', '/')}/" if outer else ""
            within = {name.removeprefix(inside): digest for name, digest in installed.items() if name.startswith(inside)}
            wanted = select_package_files(within, folder)
            held = select_package_files(contents, folder)
            found.update(name for name in wanted.keys() | held.keys() if wanted.get(name) != held.get(name))
        return sorted(found)

    @property
    def onnxruntime(self) -> str:
        """Version of ONNX Runtime, regardless of its distribution's name."""
        packages = self.fingerprint.distributions
        return packages.get(RUNTIME) or next((packages[name] for name in sorted(packages) if name.startswith(RUNTIME)), "unknown")


class Toolchains(Struct, frozen=True):
    """Environments of toolchains: provisioned below `home`, or existing ones with an interpreter that a recipe names."""

    home: Path
    may_run: bool = True
    """True if interpreters may be started. Otherwise, only remembered fingerprints are available."""

    def is_ready(self, toolchain: ToolchainSpec, base: Path, locked: LockedEnvironment | None = None) -> bool:
        """Return whether the environment exists, so that `prepare` need not provision it."""
        if toolchain.interpreter is not None:
            return os.path.exists(_get_interpreter(toolchain, base))  # noqa: PTH110 - also false if a folder is not readable
        return find_interpreter(get_environment_folder(_build_requirements(toolchain, locked), self.home)) is not None

    def place(self, toolchain: ToolchainSpec, base: Path, locked: LockedEnvironment | None = None) -> Path:
        """Return the path of a file that exists if and only if the environment is complete."""
        if toolchain.interpreter is not None:
            return _get_interpreter(toolchain, base)
        return get_complete_file(get_environment_folder(_build_requirements(toolchain, locked), self.home))

    def prepare(
        self,
        toolchain: ToolchainSpec,
        base: Path,
        entries: Sequence[EpEntry],
        locked: LockedEnvironment | None = None,
        packages: Mapping[str, Position] = MappingProxyType({}),
        listener: UvListener | None = None,
    ) -> Environment:
        """Provision a toolchain, compute its fingerprint, and return its environment.

        If the recipe names an interpreter (relative to `base`), nothing is provisioned.

        A provisioned environment contains exactly the `locked` packages. If `locked` is None, the installer chooses packages that meet the
        toolchain's requirements. `entries` are the EPs that the toolchain is used for. `packages` are the modules of custom operators, with
        their positions in the recipe. `listener` receives uv's log.

        Raises ToolchainError if provisioning fails, if an EP or a module is missing, or if an existing environment does not meet the
        recipe's requirements. Raises NotProbed if an interpreter must be started but `may_run` is false.
        """
        if toolchain.interpreter is not None:
            interpreter = _get_interpreter(toolchain, base)
            try:
                interpreter.stat()
            except OSError as error:
                why = "does not exist" if isinstance(error, FileNotFoundError) else f"cannot be read ({error.strerror})"
                message = f"toolchain '{toolchain.name}' names an interpreter that {why}: {toolchain.interpreter}"
                hint = "Write the path of a Python executable."
                raise ToolchainError(Problem("EPB304", message, toolchain.where, hint)) from error
            memory = self.home / "interpreters" / f"{hash_bytes(os.fsencode(interpreter))[:20]}.json"
        else:
            requirements = _build_requirements(toolchain, locked)
            interpreter = provision(requirements, self.home, name=toolchain.name, where=toolchain.where, listener=listener)
            memory = get_environment_folder(requirements, self.home) / "fingerprint.json"
        modules = frozenset({*find_ep_modules(entries), *packages})
        seen = read_fingerprint(interpreter, modules, memory, toolchain.where, may_run=self.may_run)
        fingerprint = seen.fingerprint
        problems = [
            *_check_requirements(toolchain, fingerprint),
            *_check_eps(toolchain, fingerprint, entries),
            *_check_modules(toolchain, fingerprint, packages),
        ]
        if problems:
            raise ToolchainError(*problems)
        return Environment(toolchain.name, interpreter, fingerprint, memory, modules, seen.states)


def list_toolchains() -> Toolchains:
    """Return the toolchains of this user. Raises StoreError as `find_toolchain_directory` does."""
    return Toolchains(find_toolchain_directory())


def find_ep_modules(entries: Iterable[EpEntry]) -> set[str]:
    """Return the Python packages of ONNX Runtime and of the EPs."""
    return {RUNTIME, *(entry.module for entry in entries)}


def _get_requirements_to_check(toolchain: ToolchainSpec) -> tuple[Requirement, ...]:
    """Return the requirements to check. There are none for a provisioned environment, as the installer has met its requirements."""
    return toolchain.requirements if toolchain.interpreter is not None else ()


def _check_requirements(toolchain: ToolchainSpec, fingerprint: Fingerprint) -> Iterator[Problem]:
    for requirement in _get_requirements_to_check(toolchain):
        found = fingerprint.distributions.get(requirement.distribution)
        if requirement.is_met_by(found):
            continue
        state = f"has {requirement.distribution} {found}" if found else "does not have it"
        message = f"toolchain '{toolchain.name}' requires {requirement.text}, but the environment of its interpreter {state}"
        hint = "Install the package in that environment, or change the toolchain's packages."
        yield Problem("EPB306", message, toolchain.where, hint)


def _check_eps(toolchain: ToolchainSpec, fingerprint: Fingerprint, entries: Sequence[EpEntry]) -> Iterator[Problem]:
    """Yield a problem for each EP without an installed package, unless a requirement already names the EP's package."""
    required = (requirement.distribution for requirement in _get_requirements_to_check(toolchain))
    known = {*fingerprint.distributions, *required}
    # An EP for which the catalog lists no packages may be part of any package.
    lacking = [entry for entry in entries if entry.distributions and known.isdisjoint(entry.distributions)]
    additions = find_additions([_list_packagings(entry) for entry in lacking], known)
    for entry in lacking:
        message = f"toolchain '{toolchain.name}' lacks the package {' or '.join(entry.distributions)} for {entry.ep}"
        yield Problem("EPB305", message, toolchain.where, _advise(toolchain, known, entry, additions))


def _advise(toolchain: ToolchainSpec, installed: Set[str], entry: EpEntry, additions: Sequence[str] | None) -> str:
    """Return a hint on how to get a toolchain with an EP.

    `additions` are the packages that add all missing EPs to the `installed` distributions.
    """
    packagings = _list_packagings(entry)
    if toolchain.interpreter is None:
        if additions:
            return f"Add {', '.join(additions)} to the toolchain's packages."
        return f"Use {format_environments(packagings)} instead."
    there = [name for packaging in packagings for name in packaging.distributions if name in installed]
    if there:
        return f"Add the installed package {there[0]}, which contains {entry.ep}, to the toolchain's packages."
    other = f"If another installed package contains {entry.ep}, add this package to the toolchain's packages."
    if additions:
        return f"Install {', '.join(additions)} in the toolchain's environment. {other}"
    return f"Use another environment, such as {format_environments(packagings)}. {other}"


def _list_packagings(entry: EpEntry) -> Sequence[EpEntry]:
    return [entry] if entry.user_file is not None else entries_for(entry.ep)


def _check_modules(toolchain: ToolchainSpec, fingerprint: Fingerprint, packages: Mapping[str, Position]) -> Iterator[Problem]:
    """Yield a problem for each missing package of custom operators."""
    for module, where in packages.items():
        folder = module.rpartition(".")[2]
        if not select_package_files(fingerprint.files, folder) and not select_package_files(fingerprint.libraries, folder):
            message = f"toolchain '{toolchain.name}' has no Python package '{module}', which should provide custom operators"
            action = (
                "Install the package in the toolchain's environment"
                if toolchain.interpreter is not None
                else "Add the package to the toolchain's packages"
            )
            yield Problem("EPB254", message, where, f"{action}, or write the path of the library itself.")


def _build_requirements(toolchain: ToolchainSpec, locked: LockedEnvironment | None) -> Requirements:
    return Requirements(toolchain.packages, toolchain.python, locked)


def _get_interpreter(toolchain: ToolchainSpec, base: Path) -> Path:
    # Not resolved: the interpreter of a virtual environment is a link, and its target is outside the environment. Absolute: a bare name
    # would be searched for on PATH, and the worker runs in another folder.
    return (base / expand_home(str(toolchain.interpreter))).absolute()


class ProvisionedToolchain(Struct, frozen=True):
    """Complete provisioned environment: its folder and its required packages."""

    folder: Path
    packages: tuple[str, ...]

    def has(self, entry: EpEntry) -> bool:
        """Return whether a package of the EP is among the required packages."""
        return not {read_requirement(package).distribution for package in self.packages}.isdisjoint(entry.distributions)

    def environment(self, entries: Sequence[EpEntry]) -> Environment | None:
        """Return the environment with a fingerprint for these EPs, or None if its interpreter no longer runs."""
        interpreter, memory = find_interpreter(self.folder), self.folder / "fingerprint.json"
        if interpreter is None:
            return None
        modules = frozenset(find_ep_modules(entries))
        try:
            seen = read_fingerprint(interpreter, modules, memory)
        except ToolchainError:
            return None
        return Environment(self.folder.name, interpreter, seen.fingerprint, memory, modules, seen.states)


def list_provisioned_toolchains(home: Path) -> Iterator[ProvisionedToolchain]:
    """Yield the complete environments of all recipes below `home`, newest first."""
    for marker in sorted(home.glob(f"*/{get_complete_file(home).name}"), key=_get_time, reverse=True):
        try:
            packages = tuple(str(package) for package in json.loads(marker.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            continue
        yield ProvisionedToolchain(marker.parent, packages)


def _get_time(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:  # the file was removed meanwhile
        return 0.0
