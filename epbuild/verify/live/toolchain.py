"""Toolchains to load artifacts with, by manifest or by interpreter."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from epbuild.catalog.entries import EpEntry
from epbuild.core.errors import Position, Problem, ToolchainError
from epbuild.core.shown import ProgressLines
from epbuild.recipe.model import ToolchainSpec
from epbuild.recipe.requirement import read_requirement
from epbuild.toolchain.environment import Environment, Toolchains, list_provisioned_toolchains
from epbuild.toolchain.provision import LOCKED, Requirements, find_interpreter, get_own_python

_NAME = "verify"
_RUNTIME = "onnxruntime"


class Wanted(Struct, frozen=True):
    """Packages that an environment needs in addition to ONNX Runtime: packages of EPs, and modules of custom operators."""

    entries: Sequence[EpEntry]
    packages: Sequence[str] = ()

    def prepare(self, toolchain: ToolchainSpec, base: Path, toolchains: Toolchains) -> Environment:
        """Prepare the environment of a toolchain that is not in a recipe. Errors name a file, but no line in the file."""
        where = toolchain.where
        try:
            return toolchains.prepare(toolchain, base, self.entries, packages=dict.fromkeys(self.packages, where))
        except ToolchainError as error:
            # The usual hint is to add the package to a recipe.
            hints = {"EPB254": "Use --interpreter to specify an environment that has the package."}
            raise ToolchainError(
                *(replace(one, where=Path(where.file), hint=hints.get(one.code, one.hint)) for one in error.problems)
            ) from error

    def list_pins(self, distributions: Mapping[str, str]) -> list[str]:
        """Return requirements that pin packages to their releases in `distributions`.

        The packages include ONNX Runtime under all of its package names.
        """
        wanted = {name for entry in self.entries for name in entry.distributions} | {_RUNTIME}
        if not wanted & distributions.keys():
            return []
        # Assume that each package is named after its module. The check of the environment reports packages with other names.
        wanted.update(module.partition(".")[0].replace("_", "-").lower() for module in self.packages)
        return [f"{name}=={distributions[name]}" for name in sorted(wanted & distributions.keys())]


def provision_manifest_toolchain(
    document: Mapping[str, Any], wanted: Wanted, where: Path, toolchains: Toolchains, lines: ProgressLines
) -> Environment:
    """Return an environment that matches a manifest's toolchain. Raises ToolchainError.

    An existing environment with the same distributions, Python and platform is preferred. Otherwise, an environment is
    provisioned with the same releases of ONNX Runtime and the EPs' packages. `lines` receives a notice, because
    provisioning takes a while.
    """
    position = Position(str(where), 1, 1)
    for toolchain in _find_provisioned(document, position, toolchains.home):
        try:
            environment = wanted.prepare(toolchain, where.parent, toolchains)
        except ToolchainError:  # The environment lacks an EP's package, or its interpreter no longer exists.
            continue
        taken = environment.fingerprint
        if all(getattr(taken, part) == document[part] for part in ("python", "platform", "distributions")):
            return environment
    packages = wanted.list_pins(document["distributions"])
    if not packages:
        message = "the manifest does not name the version of ONNX Runtime that can load the models"
        raise ToolchainError(
            Problem("EPB305", message, where, "Use --interpreter to specify an environment that has ONNX Runtime.")
        )
    toolchain = ToolchainSpec(_NAME, position, python=_find_python_version(document), packages=tuple(packages))
    if not toolchains.is_ready(toolchain, where.parent):
        lines(f"creating an environment with {', '.join(packages)}")
    return wanted.prepare(toolchain, where.parent, toolchains)


def inspect_interpreter(
    interpreter: Path, packagings: Iterable[Sequence[EpEntry]], packages: Sequence[str], toolchains: Toolchains
) -> tuple[Environment, tuple[EpEntry, ...]]:
    """Return the environment of an interpreter, and the catalog entry of each EP in it.

    `packagings` has the possible entries of each EP. Raises ToolchainError if the interpreter does not run, or if it lacks
    an EP or one of the custom operators' `packages`.
    """
    place = interpreter.absolute()
    toolchain = ToolchainSpec(_NAME, Position(str(interpreter), 1, 1), interpreter=str(place))
    first, *others = itertools.product(*packagings)
    try:
        return Wanted(first, packages).prepare(toolchain, place.parent, toolchains), first
    except ToolchainError:
        for entries in others:
            with contextlib.suppress(ToolchainError):
                return Wanted(entries, packages).prepare(toolchain, place.parent, toolchains), entries
        raise


def _find_provisioned(document: Mapping[str, Any], where: Position, home: Path) -> Iterator[ToolchainSpec]:
    """Yield the provisioned toolchains below `home` whose requirements the manifest's distributions meet."""
    for made in list_provisioned_toolchains(home):
        requirements = map(read_requirement, made.packages)
        if not all(item.is_met_by(document["distributions"].get(item.distribution)) for item in requirements):
            continue
        if made.folder.name.startswith(LOCKED):  # A locked toolchain cannot be provisioned again without its lock.
            interpreter = find_interpreter(made.folder)
            if interpreter is not None:
                yield ToolchainSpec(_NAME, where, interpreter=str(interpreter), packages=made.packages)
            continue
        # A folder is named after the digest of its requirements. The digest shows for which Python it was provisioned.
        for python in (None, _find_python_version(document)):
            if Requirements(made.packages, python).digest() == made.folder.name:
                yield ToolchainSpec(_NAME, where, python=python, packages=made.packages)
                break


def _find_python_version(document: Mapping[str, Any]) -> str | None:
    """Return the Python version of a manifest in recipe notation, or None if epbuild runs on the same Python."""
    python = str(document["python"])
    return None if python == get_own_python() else python.rpartition("-")[2]
