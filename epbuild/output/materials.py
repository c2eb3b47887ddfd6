"""Materials of an output: recipe, source models, toolchains and session groups.

Provenance and bill of materials are both rendered from these values. The values contain no absolute path, no time and no host, and are
sorted. So equal builds have equal materials.
"""

from __future__ import annotations

import os.path
import posixpath
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PureWindowsPath
from typing import TypeVar
from urllib.parse import quote

from msgspec import Struct
from msgspec.structs import replace

from epbuild.plan.made import Made
from epbuild.plan.steps import Emission
from epbuild.recipe.address import BadAddress, PackageAddress, parse_address, resolve_beside
from epbuild.recipe.model import ModelSpec, Recipe

# Characters other than letters and digits that a URI may contain unquoted: https://www.rfc-editor.org/rfc/rfc3986, sections 2.1 to 2.3.
_URI = "%:/?#[]@!$&'()*+,;="


class InputFile(Struct, frozen=True, order=True):
    """Input file, by a name that is the same on every machine; `uri` is its address, if it has one."""

    name: str
    sha256: str
    uri: str = ""


class SourceMaterial(Struct, frozen=True, order=True):
    """Source model: its name in the recipe, its graph, and the external data that the graph names."""

    name: str
    graph: InputFile
    data: tuple[InputFile, ...]
    maker: str = ""
    """Id of the step that makes the model. Empty if the model is a user's file."""


class Distribution(Struct, frozen=True, order=True):
    """Installed Python distribution."""

    name: str
    version: str

    @property
    def purl(self) -> str:
        """Package URL, see https://github.com/package-url/purl-spec."""
        return f"pkg:pypi/{quote(self.name, safe='')}@{quote(self.version, safe='')}"


class ToolchainMaterial(Struct, frozen=True, order=True):
    """Environment: its name in the recipe, its packages, and the shared libraries of ONNX Runtime and the EPs."""

    name: str
    python: str
    platform: str
    packages: tuple[Distribution, ...]
    libraries: tuple[InputFile, ...]


class RecipeFiles(Struct, frozen=True):
    """Name of a recipe, and the files that it was read from, starting with the recipe's own file."""

    name: str
    files: tuple[InputFile, ...]


class Materials(Struct, frozen=True):
    """Inputs of an output: its recipe, session groups, models, toolchains and files."""

    recipe: RecipeFiles
    built: tuple[Made, ...]
    """Session groups with their results."""
    models: Mapping[str, SourceMaterial]
    toolchains: Mapping[str, ToolchainMaterial]
    assets: tuple[InputFile, ...]
    """User's files, other than models, that are shipped or read to generate a shipped file."""

    @property
    def preparations(self) -> tuple[Made, ...]:
        """Preparations of all session groups, sorted by id, without duplicates."""
        found = {item.action.id: item for built in self.built for item in list_preparations(built)}
        return tuple(item for _, item in sorted(found.items()))

    @property
    def option_files(self) -> tuple[InputFile, ...]:
        """Files that the options of all session groups name, without duplicates."""
        return tuple(sorted({file for built in self.built for file in list_option_files(built)}))


class OutputInputs(Struct, frozen=True):
    """Inputs for planning an output: the results of its session groups, and the user's files with their SHA-256."""

    emission: Emission
    made: tuple[Made, ...]
    recipe: Recipe
    digests: Mapping[Path, str]

    def gather_materials(self) -> Materials:
        """Return the materials of the output. They are not cached, since there may be thousands of outputs."""
        assets = (InputFile(path.name, self.digests[path]) for path in self.emission.files)
        return gather(RecipeFiles(self.recipe.name, list_recipe_files(self.recipe, self.digests)), self.made, assets)


def list_recipe_files(recipe: Recipe, digests: Mapping[Path, str]) -> tuple[InputFile, ...]:
    """Return the files that a recipe was read from, if they are in `digests`. A bill of materials alone does not need these files."""
    return tuple(describe_recipe_file(path, recipe.directory, digests[path]) for path in recipe.files if path in digests)


def list_preparations(built: Made) -> tuple[Made, ...]:
    """Return the preparations of a session group's members, without duplicates."""
    found = {item.action.id: item for member in built.group.members for item in built.prepared(member.name)}
    return tuple(found.values())


def list_option_files(built: Made) -> tuple[InputFile, ...]:
    """Return the files that options name, the user's plugin libraries, and libraries of custom operators."""
    eps, document = built.document["eps"], built.document
    named = {f"{ep['name']}/{option}": digest for ep in eps for option, digest in ep["files"].items()}
    libraries = {f"{ep['name']}/library": ep["library"] for ep in eps if ep["library"]}
    session = {f"session/{name}": digest for name, digest in document["session_files"].items()}
    # A library that a package ships is among those of its toolchain.
    ops = {f"custom_ops/{ops['name']}": ops["library"] for ops in document.get("custom_ops", ()) if ops["library"]}
    return tuple(sorted(InputFile(name, digest) for name, digest in {**named, **libraries, **session, **ops}.items()))


def get_toolchain(item: Made) -> str:
    """Return the name of the toolchain that an action ran in."""
    if item.action.runs_in is None:
        raise TypeError(item.action.id)
    return item.action.runs_in.toolchain.name


def gather(recipe: RecipeFiles, built: Iterable[Made], assets: Iterable[InputFile] = ()) -> Materials:
    """Return the materials of an output that consists of the results `built`, which may be in any order.

    Raises ValueError if two results use one name for different things. Such results do not belong to one plan.
    """
    ordered = tuple(sorted(built, key=lambda item: item.action.id))
    return Materials(
        recipe=recipe,
        built=ordered,
        models=_index_by_name(model for item in ordered for model in _list_models(item)),
        toolchains=_index_by_name(
            _add_all_libraries([_describe_toolchain(item) for built in ordered for item in (built, *list_preparations(built))])
        ),
        assets=tuple(sorted(set(assets))),
    )


def describe_recipe_file(path: Path, directory: Path, sha256: str) -> InputFile:
    """Describe a file that a recipe was read from, and name it by its path relative to the recipe's `directory`."""
    try:
        name = Path(os.path.relpath(path, directory)).as_posix()
    except ValueError:  # on another Windows drive
        name = path.name
    return InputFile(name, sha256)


def name_source(model: ModelSpec) -> str:
    """Return the name or URI of a model's source. A model that a command makes is named after the model in the recipe."""
    return get_source_name(_get_path(model))


def _get_path(model: ModelSpec) -> str:
    return model.origin.path if model.origin.make is None else f"{model.origin.name}.onnx"


def get_source_name(path: str) -> str:
    """Return the name or URI of the source model that a recipe gives as `path`. It contains no secrets or paths of this machine."""
    file = _describe_source(path, None, "")
    return file.uri or file.name


_Named = TypeVar("_Named", SourceMaterial, ToolchainMaterial)


def _index_by_name(items: Iterable[_Named]) -> dict[str, _Named]:
    found: dict[str, _Named] = {}
    for item in items:
        if found.setdefault(item.name, item) != item:
            message = f"two session groups use the name '{item.name}' for different items"
            raise ValueError(message)
    return dict(sorted(found.items()))


def _list_models(built: Made) -> Iterator[SourceMaterial]:
    for member, listed in zip(built.group.members, built.document["members"], strict=True):
        # A prepared model is listed as its source in the recipe.
        prepared = built.prepared(member.name)
        source = prepared[0].source if prepared else listed
        path, folder = _get_path(member.model), member.data_folder
        # Use a file in that folder, so that the data is found beside it.
        beside = path if folder is None else posixpath.join(folder, "graph")
        data = (_describe_source(beside, location, digest) for location, digest in source["external"].items())
        graph = _describe_source(path, None, source["graph"])
        yield SourceMaterial(member.model.name, graph, tuple(sorted(data)), member.maker or "")


def _describe_source(path: str, location: str | None, sha256: str) -> InputFile:
    """Describe the graph that `path` names in the recipe, or a file of the graph's external data at `location`."""
    try:
        address = parse_address(path)
    except BadAddress:
        # `PureWindowsPath` reads both kinds of slashes.
        written = PureWindowsPath(path)
        # The location of a folder on this machine is private.
        name = written.name if written.anchor else written.as_posix()
        return InputFile(name if location is None else posixpath.join(posixpath.dirname(name), location), sha256)
    if location is not None:
        address = resolve_beside(address, location)
    name = location or address.file.rpartition("/")[2]
    if isinstance(address, PackageAddress):
        # https://github.com/package-url/purl-spec: the part after '#' is a path in the package.
        return InputFile(name, sha256, f"{Distribution(address.distribution, address.version).purl}#{quote(address.file)}")
    # The text of an address has no query, which may hold a secret.
    return InputFile(name, sha256, quote(str(address), safe=_URI))


def _add_all_libraries(toolchains: Sequence[ToolchainMaterial]) -> Iterator[ToolchainMaterial]:
    """Yield each toolchain with the libraries of all EPs that it was used for. A session group names only its own EPs' libraries."""
    for toolchain in toolchains:
        used = {library for other in toolchains if other.name == toolchain.name for library in other.libraries}
        yield replace(toolchain, libraries=tuple(sorted(used)))


def _describe_toolchain(item: Made) -> ToolchainMaterial:
    # Facts of the host, such as the CPU, are in the action key alone.
    document = item.document["toolchain"]
    return ToolchainMaterial(
        name=get_toolchain(item),
        python=document["python"],
        platform=document["platform"],
        packages=tuple(sorted(Distribution(name, version) for name, version in document["distributions"].items())),
        libraries=tuple(sorted(InputFile(name, digest) for name, digest in document["libraries"].items())),
    )
