"""The facts of a lock, as values."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct, field

from epbuild.recipe.requirement import plain_name


class Package(Struct, frozen=True, order=True):
    """One distribution of an environment, in one version."""

    name: str
    """In the spelling that package indexes compare."""
    version: str
    files: tuple[str, ...] = ()
    """The SHA-256 of each file that it may be installed from, sorted; none for what was found in an environment that was there."""

    @property
    def requirement(self) -> str:
        return f"{self.name}=={self.version}"

    @property
    def is_installed(self) -> bool:
        """Whether it was found in an environment that exists already."""
        return not self.files


class FileOrigin(Struct, frozen=True):
    """Where a file was found when it was resolved: ("url", ADDRESS) or ("path", PATH)."""

    place: tuple[str, str]
    is_wheel: bool


class LockedEnvironment(Struct, frozen=True):
    """A toolchain on one platform: its Python, such as `cpython-3.11`, and every distribution in it, sorted by name."""

    python: str
    packages: tuple[Package, ...]
    origins: Mapping[str, FileOrigin] = field(default_factory=dict)
    """By SHA-256, where it was resolved just now: a lock on disk has none. Equality ignores them."""

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, LockedEnvironment):
            return NotImplemented
        return (self.python, self.packages) == (other.python, other.packages)

    def __hash__(self) -> int:
        return hash((self.python, self.packages))

    def package(self, name: str) -> Package | None:
        return next((package for package in self.packages if package.name == plain_name(name)), None)

    @property
    def is_installed(self) -> bool:
        return any(package.is_installed for package in self.packages)


class LockedToolchain(Struct, frozen=True):
    """A toolchain: what the recipe asked for when it was locked, in its own words, and what that came to on each platform."""

    requires: tuple[str, ...] = ()
    """Sorted, each once."""
    platforms: Mapping[str, LockedEnvironment] = field(default_factory=dict)


class LockedModel(Struct, frozen=True):
    """A remote model: the SHA-256 of its graph, and of each external data file by the location that the graph names."""

    graph: str
    data: Mapping[str, str] = field(default_factory=dict)


class Lock(Struct, frozen=True):
    """A whole lock."""

    recipe: str
    """The name of the recipe that it was made for."""
    toolchains: Mapping[str, LockedToolchain] = field(default_factory=dict)
    models: Mapping[str, LockedModel] = field(default_factory=dict)
    catalog: Mapping[str, str] = field(default_factory=dict)
    """What was known of each EP, and of session keys: a revision that changes when that does, by subject."""
    wheels: tuple[Package, ...] = ()
    """The releases that models are taken from, each with all its wheels, sorted; one package may be here in several versions."""
