"""Content of a lock, and the changes from one lock to another."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal, TypeVar

from msgspec import Struct, field
from msgspec.structs import replace

from epbuild.recipe.requirement import normalize_name


class Package(Struct, frozen=True, order=True):
    """Version of a distribution in an environment."""

    name: str
    """Name of the distribution, normalized as in package indexes."""
    version: str
    files: tuple[str, ...] = ()
    """Sorted SHA-256 digests of the files that may be installed. Empty if the package is from an existing environment."""

    @property
    def requirement(self) -> str:
        return f"{self.name}=={self.version}"

    @property
    def is_installed(self) -> bool:
        """True if the package is from an existing environment."""
        return not self.files


class FileOrigin(Struct, frozen=True):
    """Location where the resolver found a file: ("url", ADDRESS) or ("path", PATH)."""

    place: tuple[str, str]
    is_wheel: bool


class LockedEnvironment(Struct, frozen=True):
    """Locked toolchain on one platform: its Python, such as `cpython-3.11`, and its distributions, sorted by name."""

    python: str
    packages: tuple[Package, ...]
    origins: Mapping[str, FileOrigin] = field(default_factory=dict)
    """Origin of each file by SHA-256, known only after resolving. A lock on disk has no origins, so equality ignores them."""

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, LockedEnvironment):
            return NotImplemented
        return (self.python, self.packages) == (other.python, other.packages)

    def __hash__(self) -> int:
        return hash((self.python, self.packages))

    def package(self, name: str) -> Package | None:
        return next((package for package in self.packages if package.name == normalize_name(name)), None)

    @property
    def is_installed(self) -> bool:
        return any(package.is_installed for package in self.packages)


class LockedToolchain(Struct, frozen=True):
    """Locked toolchain: its requirements when it was locked, and the resolved environment of each platform."""

    requires: tuple[str, ...] = ()
    """Distinct requirements, sorted."""
    platforms: Mapping[str, LockedEnvironment] = field(default_factory=dict)


class LockedModel(Struct, frozen=True):
    """Locked remote model: the SHA-256 of its graph, and of each external data file by its location in the graph."""

    graph: str
    data: Mapping[str, str] = field(default_factory=dict)


class Lock(Struct, frozen=True):
    """Lock of a recipe."""

    recipe: str
    """Name of the recipe."""
    toolchains: Mapping[str, LockedToolchain] = field(default_factory=dict)
    models: Mapping[str, LockedModel] = field(default_factory=dict)
    catalog: Mapping[str, str] = field(default_factory=dict)
    """Revision of each catalog entry, by subject: an EP, an EP and a package, or `session-keys`."""
    wheels: tuple[Package, ...] = ()
    """Releases that contain models, with all their wheels, sorted. A package may have several releases."""


Kind = Literal["added", "updated", "removed"]
About = Literal["recipe", "toolchain", "python", "package", "model", "catalog", "wheel"]

_Value = TypeVar("_Value")


class LockChange(Struct, frozen=True):
    """Entry of the lock that was added, updated or removed. `old` and `new` are shortened values.

    If the values are equal, the version is the same and the files differ. Packages and Pythons have a `toolchain` and `platforms`.
    """

    kind: Kind
    """Kind of the change."""
    about: About
    """Kind of the entry."""
    name: str
    """Name of the entry."""
    old: str | None = None
    """Old value; null if there was none."""
    new: str | None = None
    """New value; null if there is none. If it equals `old`, the version is the same and the files differ."""
    toolchain: str | None = None
    """Toolchain of a package or a Python."""
    platforms: tuple[str, ...] = ()
    """Platforms of a package or a Python."""


def compare_locks(old: Lock | None, new: Lock) -> list[LockChange]:
    """Return the changes from `old` (None: there was no lock) to `new`. They are ordered by kind of entry, then by name."""
    former = old or Lock("")
    found: list[LockChange] = []
    if old is not None and old.recipe != new.recipe:
        found.append(LockChange("updated", "recipe", new.recipe, old.recipe, new.recipe))
    for kind, name, old_revision, new_revision in _find_differences(former.catalog, new.catalog):
        found.append(LockChange(kind, "catalog", name, _shorten_revision(old_revision), _shorten_revision(new_revision)))
    for kind, name, old_model, new_model in _find_differences(former.models, new.models):
        found.append(LockChange(kind, "model", name, _shorten_digest(old_model), _shorten_digest(new_model)))
    old_releases, new_releases = ({release.requirement: release for release in lock.wheels} for lock in (former, new))
    for kind, requirement, old_release, new_release in _find_differences(old_releases, new_releases):
        name = requirement.partition("==")[0]
        found.append(LockChange(kind, "wheel", name, _get_version(old_release), _get_version(new_release)))
    for name in sorted(former.toolchains.keys() | new.toolchains.keys()):
        old_toolchain = former.toolchains.get(name, LockedToolchain())
        found += _compare_toolchains(name, old_toolchain, new.toolchains.get(name, LockedToolchain()))
    return found


def _compare_toolchains(name: str, old: LockedToolchain, new: LockedToolchain) -> Iterator[LockChange]:
    # The same change on several platforms is listed once.
    platforms: dict[LockChange, list[str]] = {}
    for platform in sorted(old.platforms.keys() | new.platforms.keys()):
        for change in _compare_environments(name, old.platforms.get(platform), new.platforms.get(platform)):
            platforms.setdefault(change, []).append(platform)
    merged = [replace(change, platforms=tuple(names)) for change, names in platforms.items()]
    if merged:
        yield from sorted(merged, key=lambda change: (change.about != "python", change.name, change.platforms))
    elif old.requires != new.requires:  # the changed requirements resolve to the same packages
        yield LockChange("updated", "toolchain", name, ", ".join(old.requires), ", ".join(new.requires))


def _compare_environments(toolchain: str, old: LockedEnvironment | None, new: LockedEnvironment | None) -> Iterator[LockChange]:
    old_pythons, new_pythons = ({"python": environment.python} if environment else {} for environment in (old, new))
    for kind, name, old_python, new_python in _find_differences(old_pythons, new_pythons):
        yield LockChange(kind, "python", name, old_python, new_python, toolchain)
    for kind, name, old_package, new_package in _find_differences(_index_packages(old), _index_packages(new)):
        yield LockChange(kind, "package", name, _get_version(old_package), _get_version(new_package), toolchain)


def _index_packages(environment: LockedEnvironment | None) -> Mapping[str, Package]:
    return {package.name: package for package in environment.packages} if environment else {}


def _find_differences(
    old: Mapping[str, _Value], new: Mapping[str, _Value]
) -> Iterator[tuple[Kind, str, _Value | None, _Value | None]]:
    """Yield the kind of change, the name, the old value and the new value of each entry that differs, sorted by name."""
    for name in sorted(old.keys() | new.keys()):
        old_value, new_value = old.get(name), new.get(name)
        if old_value != new_value:
            kind: Kind = "added" if old_value is None else "removed" if new_value is None else "updated"
            yield kind, name, old_value, new_value


def _get_version(package: Package | None) -> str | None:
    return package.version if package else None


def _shorten_revision(value: str | None) -> str | None:
    return value.partition(" ")[0] if value else None


def _shorten_digest(model: LockedModel | None) -> str | None:
    return model.graph[:12] if model else None
