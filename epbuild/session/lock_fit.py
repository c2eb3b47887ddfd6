"""Deviations of a recipe from its lock, found by comparing only the two files."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

from epbuild.catalog.catalog import Catalog, read_session_revision
from epbuild.catalog.entries import EpEntry
from epbuild.catalog.userfile import BadCatalog
from epbuild.core.errors import Position, Problem
from epbuild.recipe.address import PackageAddress, parse_address
from epbuild.recipe.model import ModelSpec, Recipe, ToolchainSpec
from epbuild.toolchain.lock import Lock, LockedModel, LockedToolchain
from epbuild.toolchain.resolve import list_requirements, parse_named_python

_AGAIN = "Update the lock with `epbuild lock`."
_SESSION_KEYS = "session-keys"


class Misfit(Struct, frozen=True):
    """Deviation of a recipe from its lock, with the name of the affected toolchain, if any."""

    problem: Problem
    toolchain: str | None = None


def find_misfits(recipe: Recipe, lock: Lock, path: Path) -> Iterator[Misfit]:
    """Yield the deviations of a recipe from a lock, at most one for each toolchain, EP, model and wheel. `path` names the lock."""

    def misfit(code: str, message: str, where: Position | None = None, toolchain: str | None = None) -> Misfit:
        return Misfit(Problem(code, message, where or Position(str(path), 1, 1), _AGAIN), toolchain)

    if lock.recipe != recipe.name:
        message = f"{path.name} is the lock of another recipe: '{lock.recipe}', not '{recipe.name}'"
        yield misfit("EPB243", message)
        return
    for name, toolchain in recipe.toolchains.items():
        locked = lock.toolchains.get(name)
        reason = _explain_toolchain(toolchain, locked, path.name) if locked else None
        if locked is None and toolchain.packages:
            reason = f"the toolchain '{name}' is not in {path.name}"
        if reason is not None:
            yield misfit("EPB244", reason, toolchain.where, name)
    for name in lock.toolchains.keys() - recipe.toolchains.keys():
        yield misfit("EPB244", f"{path.name} contains the toolchain '{name}', which is not in the recipe")
    for reason in _explain_catalog(recipe, lock, path.name):
        yield misfit("EPB246", reason)
    remote = list_remote_models(recipe)
    for name, model in remote.items():
        reason = _explain_model(model, lock.models.get(name), path.name)
        if reason is not None:
            yield misfit("EPB247", reason, model.path_where)
    for name in lock.models.keys() - remote.keys():
        yield misfit("EPB247", f"{path.name} has a remote model '{name}', which the recipe does not use")
    releases = list_model_releases(recipe)
    reported: set[str] = set()
    held = {release.requirement: release.name for release in lock.wheels}
    for requirement, (address, model) in releases.items():
        if requirement not in held and model.name in lock.models:  # otherwise the model is reported already
            others = [other for other, name in held.items() if name == address.distribution and other not in releases]
            reported.update(others)
            instead = f"; the lock has the wheel of {', '.join(others)}" if others else ""
            message = f"{path.name} does not have the wheel of {requirement}, which contains the model '{model.name}'{instead}"
            yield misfit("EPB297", message, model.path_where)
    for requirement in sorted(held.keys() - releases.keys() - reported):
        yield misfit("EPB297", f"{path.name} has the wheel of {requirement}, which no model of the recipe uses")


def collect_catalog_facts(recipe: Recipe) -> dict[str, str]:
    """Return the catalog revisions to lock, by subject: one for each EP and package that targets use, and one for the session keys.

    Raises BadCatalog or OSError if a user's catalog file cannot be used, and KeyError for an unknown EP.
    """
    catalog = Catalog.with_files(recipe.directory / reference.name for reference in recipe.catalogs)
    used = {(choice.ep.name, target.toolchain.name) for target in recipe.targets.values() for choice in target.eps}
    facts = {_SESSION_KEYS: str(read_session_revision())}
    for ep, toolchain in used:
        entry = _get_entry(catalog, ep, recipe.toolchains[toolchain])
        subject = f"{ep}/{entry.distribution}" if entry.distribution else ep
        facts[subject] = f"{entry.revision} sha256:{entry.digest}"
    return facts


def list_toolchain_eps(recipe: Recipe, toolchain: ToolchainSpec) -> list[EpEntry]:
    """Return the entries of the EPs that targets use from a toolchain. Raises the same errors as `collect_catalog_facts`."""
    catalog = Catalog.with_files(recipe.directory / reference.name for reference in recipe.catalogs)
    targets = [target for target in recipe.targets.values() if target.toolchain.name == toolchain.name]
    names = {choice.ep.name for target in targets for choice in target.eps if choice.library is None}
    return [_get_entry(catalog, name, toolchain) for name in sorted(names)]


def list_remote_models(recipe: Recipe) -> dict[str, ModelSpec]:
    """Return the remote models that the recipe's groups use, by name. Other models are never fetched."""
    members = {member.model.name for group in recipe.groups.values() for member in group.members}
    used = {model.origin.name for name, model in recipe.models.items() if name in members}
    return {name: model for name, model in recipe.models.items() if name in used and model.is_remote}


def list_model_releases(recipe: Recipe) -> dict[str, tuple[PackageAddress, ModelSpec]]:
    """Return the releases whose wheels contain models, by requirement. Each has the address and the spec of its first model."""
    releases: dict[str, tuple[PackageAddress, ModelSpec]] = {}
    for model in list_remote_models(recipe).values():
        address = parse_address(model.path)
        if isinstance(address, PackageAddress):
            releases.setdefault(address.requirement, (address, model))
    return releases


def _get_entry(catalog: Catalog, ep: str, toolchain: ToolchainSpec) -> EpEntry:
    return catalog.entry(ep, (requirement.distribution for requirement in toolchain.requirements))


def _explain_toolchain(toolchain: ToolchainSpec, locked: LockedToolchain, lock: str) -> str | None:
    name, environments = toolchain.name, locked.platforms
    new = [text for text in list_requirements(toolchain) if _strip_spaces(text) not in map(_strip_spaces, locked.requires)]
    gone = [text for text in locked.requires if _strip_spaces(text) not in map(_strip_spaces, list_requirements(toolchain))]
    if new:
        before = f"for {', '.join(gone)}" if gone else "without it" if len(new) == 1 else "without them"
        return f"the toolchain '{name}' requires {', '.join(new)}, but {lock} was created {before}"
    if gone:
        return f"{lock} was created for {', '.join(gone)}, which the toolchain '{name}' no longer requires"
    for platform, environment in environments.items():
        if environment.is_installed and toolchain.interpreter is None:
            return f"epbuild creates the toolchain '{name}', but {lock} records an existing environment"
        if not environment.is_installed and toolchain.interpreter is not None:
            return f"the toolchain '{name}' is an existing environment, but {lock} records one that epbuild creates"
        for requirement in toolchain.requirements:
            package = environment.package(requirement.distribution)
            if package is None and requirement.is_plain:
                return f"the toolchain '{name}' requires {requirement.text}, but {lock} has no such package on {platform}"
            if package is not None and not requirement.is_met_by(package.version):
                return f"the toolchain '{name}' requires {requirement.text}, but {lock} has {package.version} on {platform}"
        python = parse_named_python(toolchain.python) if toolchain.python is not None else None
        if python is not None and environment.python != python:
            return f"the toolchain '{name}' requires Python {toolchain.python}, but {lock} has {environment.python} on {platform}"
    return None


def _explain_catalog(recipe: Recipe, lock: Lock, name: str) -> Iterator[str]:
    try:
        known = collect_catalog_facts(recipe)
    except (BadCatalog, KeyError, OSError):  # planning reports these better
        return
    for subject in sorted(known.keys() | lock.catalog.keys()):
        now, then = known.get(subject), lock.catalog.get(subject)
        if now is None:
            yield f"{name} has a catalog revision for {subject}, which no target uses"
        elif then is None:
            yield f"{name} has no catalog revision for {subject}"
        elif now != then:
            yield f"the catalog entry of {subject} has changed since {name} was created: {_format_revisions(then, now)}"


def _format_revisions(then: str, now: str) -> str:
    old, new = (value.partition(" ")[0] for value in (then, now))
    return f"revision {old} was replaced by {new}" if old != new else f"revision {old} has different content"


def _explain_model(model: ModelSpec, locked: LockedModel | None, lock: str) -> str | None:
    if locked is None:
        return f"the remote model '{model.name}' is not in {lock}"
    if model.sha256 and model.sha256 != locked.graph:
        return f"the recipe and {lock} pin different content for the model '{model.name}'"
    for location, digest in model.data_sha256.items():
        if locked.data.get(location) != digest:
            return f"the recipe and {lock} pin different content for {location} of the model '{model.name}'"
    return None


def _strip_spaces(requirement: str) -> str:
    """Return a requirement without insignificant spaces."""
    return re.sub(r"\s+", "", requirement)
