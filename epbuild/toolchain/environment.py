"""A toolchain that can be started: its interpreter and its fingerprint."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from epbuild.cache.location import toolchain_directory
from epbuild.catalog.catalog import known_environments
from epbuild.catalog.entries import EpEntry
from epbuild.core.digest import digest_of
from epbuild.core.errors import Position, Problem, ToolchainError
from epbuild.core.installer import UvListener
from epbuild.core.safepath import user_path
from epbuild.recipe.model import ToolchainSpec
from epbuild.recipe.requirement import Requirement, read_requirement
from epbuild.toolchain.fingerprint import Fingerprint, look, of_package
from epbuild.toolchain.lock import LockedEnvironment
from epbuild.toolchain.packages import FileState, is_touched, state_of
from epbuild.toolchain.platforms import host_identity
from epbuild.toolchain.process import RunWorker, supervise
from epbuild.toolchain.provision import (
    Requirements,
    complete_file,
    environment_folder,
    installed_file,
    provision,
    provisioned,
    read_installed,
)

RUNTIME = "onnxruntime"


class Environment(Struct, frozen=True):
    """A usable toolchain."""

    name: str
    interpreter: Path
    fingerprint: Fingerprint
    memory: Path
    """The file in which the fingerprint is kept."""
    modules: frozenset[str] = frozenset()
    """The Python packages whose bytes the fingerprint is of: ONNX Runtime's, those of the EPs, and those of custom operators."""
    states: Mapping[str, FileState | None] = field(default_factory=dict)
    """What the file system had of each file and folder that the fingerprint came from."""
    run_worker: RunWorker = supervise

    def identity(self, entries: Iterable[EpEntry], packages: Iterable[str] = ()) -> dict[str, Any]:
        """What the environment is to a compile with these EPs, and these packages of custom operators, as a key holds it."""
        used = list(entries)
        modules = {*modules_of(used), *packages}
        return self.fingerprint.document(modules, host_identity(used))

    def watched(self) -> list[Path]:
        """The files and folders whose stats show whether the environment is still this one."""
        installed = installed_file(self.memory.parent)
        return [self.interpreter, self.memory, *map(Path, self.states), *([installed] if installed.exists() else ())]

    def now(self) -> Environment:
        """This environment as it is now: itself, as long as nobody has touched anything in it. Raises ToolchainError."""
        if all(state_of(path) == state for path, state in self.states.items()):
            return self
        seen = look(self.interpreter, self.modules, self.memory)
        return replace(self, fingerprint=seen.fingerprint, states=seen.states)

    def touched_since(self, before: Environment) -> list[str]:
        """The files that were written to, or were others for a while, since the environment was the one of `before`."""
        if self.states is before.states:
            return []
        return [path for path in self.states if os.path.isfile(path) and is_touched(path, before.states, self.states)]  # noqa: PTH113

    def rewritten(self) -> list[str]:
        """The files of its packages that are not those that were installed from a lock: by their names, sorted."""
        installed = read_installed(self.memory.parent)
        found: set[str] = set()
        there = {**self.fingerprint.libraries, **self.fingerprint.files}
        for module in self.modules:
            # A package inside another goes by its last name.
            outer, _, folder = module.rpartition(".")
            inside = f"{outer.replace('.', '/')}/" if outer else ""
            within = {name.removeprefix(inside): digest for name, digest in installed.items() if name.startswith(inside)}
            wanted = of_package(within, folder)
            held = of_package(there, folder)
            found.update(name for name in wanted.keys() | held.keys() if wanted.get(name) != held.get(name))
        return sorted(found)

    @property
    def onnxruntime(self) -> str:
        """The version of ONNX Runtime, under whatever name it is packaged."""
        packages = self.fingerprint.distributions
        return packages.get(RUNTIME) or next((packages[name] for name in sorted(packages) if name.startswith(RUNTIME)), "unknown")


@dataclass(frozen=True)
class Toolchains:
    """The environments of toolchains: those that are made below `home`, and those of interpreters that recipes name."""

    home: Path
    may_run: bool = True
    """Whether interpreters may be started; else only what is remembered of an environment is known."""

    def ready(self, toolchain: ToolchainSpec, base: Path, locked: LockedEnvironment | None = None) -> bool:
        """Whether the environment is there, so that `prepare` has nothing to make."""
        if toolchain.interpreter is not None:
            return os.path.exists(_existing(toolchain, base))  # noqa: PTH110 - which is false, too, where nobody may look
        return provisioned(environment_folder(_requirements(toolchain, locked), self.home)) is not None

    def place(self, toolchain: ToolchainSpec, base: Path, locked: LockedEnvironment | None = None) -> Path:
        """A file that is there as soon as the environment is."""
        if toolchain.interpreter is not None:
            return _existing(toolchain, base)
        return complete_file(environment_folder(_requirements(toolchain, locked), self.home))

    def prepare(
        self,
        toolchain: ToolchainSpec,
        base: Path,
        entries: Sequence[EpEntry],
        locked: LockedEnvironment | None = None,
        packages: Mapping[str, Position] = MappingProxyType({}),
        listener: UvListener | None = None,
    ) -> Environment:
        """Provision (unless the recipe names an interpreter, relative to `base`) and fingerprint a toolchain.

        One that is made holds exactly what is `locked` (None: what the installer chooses for the toolchain's packages). `entries` are the
        EPs that it is used for, `packages` the modules of custom operators and where each is asked for. Raises ToolchainError, also when
        one of them is not in it, or when an existing environment does not hold what the recipe requires; NotProbed where nothing may be
        started and its fingerprint is not remembered. `listener`: that of uv.
        """
        if toolchain.interpreter is not None:
            interpreter = _existing(toolchain, base)
            try:
                interpreter.stat()
            except OSError as error:
                why = "does not exist" if isinstance(error, FileNotFoundError) else f"cannot be looked at ({error.strerror})"
                message = f"toolchain '{toolchain.name}' names an interpreter that {why}: {toolchain.interpreter}"
                raise ToolchainError(
                    Problem("EPB304", message, toolchain.where, "Give the path of a python executable.")
                ) from error
            memory = self.home / "interpreters" / f"{digest_of(os.fsencode(interpreter))[:20]}.json"
        else:
            requirements = _requirements(toolchain, locked)
            interpreter = provision(requirements, self.home, name=toolchain.name, where=toolchain.where, listener=listener)
            memory = environment_folder(requirements, self.home) / "fingerprint.json"
        modules = frozenset({*modules_of(entries), *packages})
        seen = look(interpreter, modules, memory, toolchain.where, may_run=self.may_run)
        taken = seen.fingerprint
        wrong = [*_unmet(toolchain, taken), *_missing(toolchain, taken, entries), *_without(toolchain, taken, packages)]
        if wrong:
            raise ToolchainError(*wrong)
        return Environment(toolchain.name, interpreter, taken, memory, modules, seen.states)


def toolchains_here() -> Toolchains:
    """Return the toolchains of this user. Raises StoreError as `toolchain_directory` does."""
    return Toolchains(toolchain_directory())


def modules_of(entries: Iterable[EpEntry]) -> set[str]:
    """The Python packages whose libraries take part: ONNX Runtime's, and those of the EPs."""
    return {RUNTIME, *(entry.module for entry in entries)}


def _held(toolchain: ToolchainSpec) -> tuple[Requirement, ...]:
    """What the recipe requires of an existing environment; in one that is made, the installer sees to the requirements."""
    return toolchain.requirements if toolchain.interpreter is not None else ()


def _unmet(toolchain: ToolchainSpec, taken: Fingerprint) -> Iterator[Problem]:
    """What an existing environment lacks of what it must hold."""
    for requirement in _held(toolchain):
        found = taken.distributions.get(requirement.distribution)
        if requirement.is_met_by(found):
            continue
        holds = f"holds {requirement.distribution} {found}" if found else "does not hold it"
        message = f"toolchain '{toolchain.name}' asks for {requirement.text}, and the environment of its interpreter {holds}"
        yield Problem("EPB306", message, toolchain.where, "Install it there, or change the toolchain's packages.")


def _missing(toolchain: ToolchainSpec, taken: Fingerprint, entries: Sequence[EpEntry]) -> Iterator[Problem]:
    """The EPs that come in no package that is there, or is reported as missing."""
    known = {*taken.distributions, *(requirement.distribution for requirement in _held(toolchain))}
    for entry in entries:
        # What a catalog file names no package for may come in any.
        if entry.distributions and known.isdisjoint(entry.distributions):
            message = f"toolchain '{toolchain.name}' has no package {entry.distribution}, which {entry.ep} comes in"
            hint = known_environments([entry])
            if toolchain.interpreter is not None:
                is_released = entry.start is None or bool(entry.start.packages)
                other = f"If {entry.ep} comes in another package there, add that one to the toolchain's packages."
                hint = f"{'Install it there. ' if is_released else ''}{other} {hint}"
            yield Problem("EPB305", message, toolchain.where, hint)


def _without(toolchain: ToolchainSpec, taken: Fingerprint, packages: Mapping[str, Position]) -> Iterator[Problem]:
    """The packages of custom operators that are not there."""
    for module, where in packages.items():
        folder = module.rpartition(".")[2]
        if not of_package(taken.files, folder) and not of_package(taken.libraries, folder):
            message = f"toolchain '{toolchain.name}' has no Python package '{module}', which is to bring custom operators"
            place = "Install it there" if toolchain.interpreter is not None else "Add it to the toolchain's packages"
            yield Problem("EPB254", message, where, f"{place}, or name the library itself by its path.")


def _requirements(toolchain: ToolchainSpec, locked: LockedEnvironment | None) -> Requirements:
    return Requirements(toolchain.packages, toolchain.python, locked)


def _existing(toolchain: ToolchainSpec, base: Path) -> Path:
    # Not resolved: the python of a virtual environment is a link, and following it leaves the environment.
    # From the root: a name alone would be looked for among the programs of the system, and the worker runs in another folder.
    return (base / user_path(str(toolchain.interpreter))).absolute()


class MadeToolchain(Struct, frozen=True):
    """The folder of a complete environment, and the requirements that it was made for."""

    folder: Path
    packages: tuple[str, ...]

    def has(self, entry: EpEntry) -> bool:
        """Whether the packages that were asked for have the EP's among them."""
        return not {read_requirement(package).distribution for package in self.packages}.isdisjoint(entry.distributions)

    def environment(self, entries: Sequence[EpEntry]) -> Environment | None:
        """The environment, for these EPs; None where it does not run any more."""
        interpreter, memory = provisioned(self.folder), self.folder / "fingerprint.json"
        if interpreter is None:
            return None
        modules = frozenset(modules_of(entries))
        try:
            seen = look(interpreter, modules, memory)
        except ToolchainError:
            return None
        return Environment(self.folder.name, interpreter, seen.fingerprint, memory, modules, seen.states)


def made_toolchains(home: Path) -> Iterator[MadeToolchain]:
    """The complete environments below the folder of all, the newest first."""
    for marker in sorted(home.glob(f"*/{complete_file(home).name}"), key=_time_of, reverse=True):
        try:
            packages = tuple(str(package) for package in json.loads(marker.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            continue
        yield MadeToolchain(marker.parent, packages)


def _time_of(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:  # it has gone meanwhile
        return 0.0
