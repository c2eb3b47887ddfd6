"""Use of a recipe's lock in a build, and deviations from the lock.

With `strict` (`--locked`), a deviation is an error. Otherwise, it is a warning, and a deviating toolchain is provisioned without the lock.
Matching parts of the lock are used in both cases, so the same build has the same keys with and without `--locked`. A toolchain whose
`platforms` exclude this platform is for other machines. It is never provisioned here, but its identity may be known
(`session.toolchains`).
"""

from __future__ import annotations

import sysconfig
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct, field
from msgspec.structs import replace

from epbuild.cache.digests import Digests
from epbuild.core.errors import EpbuildError, PlanError, Position, Problem, ToolchainError
from epbuild.core.safepath import read_regular
from epbuild.plan.member import ModelFiles
from epbuild.plan.steps import Plan
from epbuild.recipe.model import ModelSpec, Recipe, ToolchainSpec
from epbuild.toolchain.environment import Environment

if TYPE_CHECKING:
    from epbuild.session.lock_fit import Misfit
    from epbuild.toolchain.lock import Lock, LockedEnvironment

_LEFT_ALONE = "The lock is not used. Run `epbuild lock` to replace it with a lock of this recipe."
_WITHOUT = "The toolchain is provisioned without the lock. Run `epbuild lock` to update the lock."


class HeldLock(Struct, frozen=True):
    """Parts of a recipe's lock that apply to a build."""

    path: Path
    exists: bool = False
    strict: bool = False
    lock: Lock | None = None
    """Lock of this recipe, or None if the recipe has no lock."""
    platform: str | None = None
    environments: Mapping[str, LockedEnvironment] = field(default_factory=dict)
    """Locked environments for this platform, by toolchain. Only toolchains of the plan that match the lock are included."""
    elsewhere: Mapping[str, Mapping[str, LockedEnvironment]] = field(default_factory=dict)
    """Locked environments for other platforms, by toolchain and platform. Toolchains that epbuild does not provision are excluded."""
    warnings: tuple[Problem, ...] = ()

    def deviations(self, plan: Plan, environments: Mapping[str, Environment], digests: Digests) -> tuple[Problem, ...]:
        """Return the deviations of existing toolchains and fetched models from the lock.

        Raises ToolchainError or PlanError if the lock is strict.
        """
        if self.lock is None:
            return ()
        toolchains = [needs.toolchain for needs in plan.toolchains().values()]
        return (
            *self.check_toolchains(toolchains, environments),
            *self._raise_if_strict(PlanError, self._check_models(plan, digests)),
        )

    def check_toolchains(self, toolchains: Iterable[ToolchainSpec], environments: Mapping[str, Environment]) -> list[Problem]:
        """Return the deviations of existing toolchains from the lock. If the lock is strict, raise ToolchainError for them."""
        problems = []
        for toolchain in toolchains:
            if toolchain.name in self.environments and toolchain.name in environments:
                problems += self._check_toolchain(toolchain, environments[toolchain.name])
        return self._raise_if_strict(ToolchainError, problems)

    def _check_toolchain(self, toolchain: ToolchainSpec, environment: Environment) -> list[Problem]:
        from epbuild.toolchain.resolve import describe_deviations

        reasons = describe_deviations(environment, str(self.platform), self.environments[toolchain.name])
        if not reasons:
            return []
        message = f"the toolchain '{toolchain.name}' does not match {self.path.name}: {', '.join(reasons)}"
        remedy = "Fix the toolchain's environment" if toolchain.interpreter else f"Remove {environment.memory.parent}"
        return [Problem("EPB308", message, toolchain.where, f"{remedy}, or run `epbuild lock`.")]

    def _check_models(self, plan: Plan, digests: Digests) -> list[Problem]:
        fetched = [(model, files) for model, files in plan.sources() if model.is_remote]
        found = digests.of_many(path for _, files in fetched for path in files.all)
        return [problem for model, files in fetched for problem in self._check_model(model, files, found)]

    def _check_model(self, model: ModelSpec, files: ModelFiles, digests: Mapping[Path, str]) -> list[Problem]:
        locked = self.lock.models.get(model.name) if self.lock else None
        if locked is None:  # reported already
            return []
        actual = {"graph": digests[files.graph], **{location: digests[path] for location, path in files.external.items()}}
        locked_digests = {"graph": locked.graph, **locked.data}
        other = [what for what in sorted(actual.keys() | locked_digests.keys()) if actual.get(what) != locked_digests.get(what)]
        if not other:
            return []
        message = f"the files of the remote model '{model.name}' differ from {self.path.name}: {', '.join(other)}"
        return [Problem("EPB247", message, model.path_where, "If the change is intended, run `epbuild lock`.")]

    def _raise_if_strict(self, kind: type[EpbuildError], problems: list[Problem]) -> list[Problem]:
        if problems and self.strict:
            raise kind(*problems)
        return problems


def get_lock_path(recipe: Path) -> Path:
    """Return the path of a recipe's lock: `epbuild.lock` beside `epbuild.yaml`."""
    return recipe.with_suffix(".lock")


def read_lock_text(path: Path) -> str | None:
    """Return the text of a lock, or None if the file does not exist. Raises PlanError (EPB242) if it cannot be read."""
    try:
        content = read_regular(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        message = f"the lock cannot be read: {error.strerror}"
        raise PlanError(
            Problem("EPB242", message, Position(str(path), 1, 1), "Check that the lock is a file that this user may read.")
        ) from error
    from epbuild.toolchain.lock_file import decode_lock

    return decode_lock(content)


def check_lock(recipe: Recipe) -> None:
    """Raise PlanError unless the recipe has a matching lock. Only the recipe and the lock are compared."""
    _check_fit(recipe, _read_lock_beside(recipe), strict=True)


def find_locked_wheels(recipe: Recipe) -> dict[str, tuple[str, ...]]:
    """Return the locked SHA-256 digests of the wheels that contain models, by the release's requirement, such as `name==1.0`.

    Raises PlanError (EPB242) for a lock that cannot be read.
    """
    if not any(model.is_remote for model in recipe.models.values()):
        return {}
    lock = _read_lock_beside(recipe)
    if lock is None or lock.recipe != recipe.name:
        return {}
    return {release.requirement: release.files for release in lock.wheels}


def hold_lock(recipe: Recipe, plan: Plan, *, strict: bool) -> HeldLock:
    """Return the parts of the recipe's lock that apply to a plan.

    Raises PlanError if the lock cannot be read or, with `strict`, if there is any deviation.
    """
    path, lock = get_lock_path(recipe.file), _read_lock_beside(recipe)
    unfit = _check_fit(recipe, lock, strict=strict)
    if lock is None:
        return HeldLock(path)
    if lock.recipe != recipe.name:
        return HeldLock(path, exists=True, warnings=tuple(replace(misfit.problem, hint=_LEFT_ALONE) for misfit in unfit))
    from epbuild.toolchain.platforms import get_own_platform

    platform = get_own_platform()
    environments, elsewhere, missing = {}, {}, []
    for name, (toolchain, *_) in plan.toolchains().items():
        if name in {misfit.toolchain for misfit in unfit}:
            continue
        platforms = lock.toolchains[name].platforms if name in lock.toolchains else {}
        elsewhere[name] = {other: found for other, found in platforms.items() if other != platform and not found.is_installed}
        if platform is not None and platform in platforms:
            environments[name] = platforms[platform]
        elif platform in toolchain.platforms or not toolchain.platforms or not elsewhere[name]:
            message = (
                f"{path.name} does not have the toolchain '{name}' for this platform, {platform or sysconfig.get_platform()}"
            )
            name_it = "" if toolchain.interpreter else ", or add the platform to the toolchain's 'platforms'"
            missing.append(
                Problem("EPB245", message, toolchain.where, f"Run `epbuild lock` here{name_it}." if strict else _WITHOUT)
            )
    if missing and strict:
        raise PlanError(*missing)
    warnings = [replace(misfit.problem, hint=_WITHOUT) if misfit.toolchain else misfit.problem for misfit in unfit]
    return HeldLock(path, True, strict, lock, platform, environments, elsewhere, (*warnings, *missing))


def _check_fit(recipe: Recipe, lock: Lock | None, *, strict: bool) -> list[Misfit]:
    """Return the deviations of a recipe from its lock. With `strict`, raise PlanError for deviations or a missing lock."""
    path = get_lock_path(recipe.file)
    if lock is None:
        if strict:
            message = f"--locked needs a lock, but {path.name} does not exist beside the recipe"
            raise PlanError(Problem("EPB241", message, Position(str(recipe.file), 1, 1), "Create it with `epbuild lock`."))
        return []
    from epbuild.session.lock_fit import find_misfits

    found = list(find_misfits(recipe, lock, path))
    if found and strict:
        raise PlanError(*(misfit.problem for misfit in found))
    return found


def _read_lock_beside(recipe: Recipe) -> Lock | None:
    """Return the recipe's lock, or None if the file does not exist. Raises PlanError (EPB242) if it cannot be read."""
    path = get_lock_path(recipe.file)
    text = read_lock_text(path)
    if text is None:
        return None
    from epbuild.toolchain.lock_file import read_lock

    return read_lock(text, str(path))
