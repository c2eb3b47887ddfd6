"""Materials of an output: recipe, source models, toolchains and session groups.

Provenance and bill of materials are both made from these values. They hold no absolute path, no time and no host, and have one order
whatever order they were gathered in: equal builds have equal ones.
"""

from __future__ import annotations

import os.path
import posixpath
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PureWindowsPath
from typing import Any, TypeVar
from urllib.parse import quote

from epbuild.plan.made import Made
from epbuild.plan.preparing import Preparation
from epbuild.plan.steps import Emission
from epbuild.recipe.address import BadAddress, PackageAddress, parse_address
from epbuild.recipe.model import Recipe

# What a URI may hold as it is, beside letters and digits: https://www.rfc-editor.org/rfc/rfc3986, sections 2.1 to 2.3.
_URI = "%:/?#[]@!$&'()*+,;="


@dataclass(frozen=True, order=True)
class InputFile:
    """A file that went in, by a name that it has on every machine; `uri` is its address, if it has one."""

    name: str
    sha256: str
    uri: str = ""


@dataclass(frozen=True, order=True)
class SourceMaterial:
    """A source model: its name in the recipe, its graph, and the external data that the graph names."""

    name: str
    graph: InputFile
    data: tuple[InputFile, ...]


@dataclass(frozen=True, order=True)
class Distribution:
    """An installed Python distribution."""

    name: str
    version: str

    @property
    def purl(self) -> str:
        """Its package URL, see https://github.com/package-url/purl-spec."""
        return f"pkg:pypi/{quote(self.name, safe='')}@{quote(self.version, safe='')}"


@dataclass(frozen=True, order=True)
class ToolchainMaterial:
    """An environment: its name in the recipe, its packages, and the shared libraries of ONNX Runtime and the EPs in it."""

    name: str
    python: str
    platform: str
    packages: tuple[Distribution, ...]
    libraries: tuple[InputFile, ...]


@dataclass(frozen=True)
class RecipeFiles:
    """A recipe's name, and the files that it was read from, its own first."""

    name: str
    files: tuple[InputFile, ...]


@dataclass(frozen=True)
class Prepared:
    """A preparation that made what was compiled, or what that was made of: its action key with the document behind it."""

    action: str
    key: str
    document: Mapping[str, Any]
    toolchain: str

    @property
    def source(self) -> Mapping[str, Any]:
        """The digests of what it began with."""
        [found] = self.document["source"].values()
        return dict(found)

    @property
    def files(self) -> tuple[InputFile, ...]:
        """The files that it read beside the model."""
        return tuple(sorted(InputFile(name.partition("/")[2], digest) for name, digest in self.document["staged"].items()))

    @property
    def asked(self) -> dict[str, Any]:
        """What it did, in the words of the recipe."""
        document = self.document["prepare"]
        return {
            "step": self.action,
            "toolchain": self.toolchain,
            **{name: document[name] for name in sorted(document) if name != "option_files"},
        }


@dataclass(frozen=True)
class Built:
    """A session group that was built: its action key with the document behind it, and the names that the recipe has for its parts."""

    action: str
    key: str
    document: Mapping[str, Any]
    group: str
    target: str
    toolchain: str
    models: Mapping[str, str]
    """Where each member's source is, as the recipe has it: a path, `package:<package>/<file>`, or an address."""
    data_folders: Mapping[str, str] = field(default_factory=dict)
    """The folder of each member's external data, as the recipe has it, where that is not the folder of its source."""
    reproducible: bool = True
    """False where the recipe accepts that the same compile gives other bytes."""
    renamed: Mapping[str, str] = field(default_factory=dict)
    """The model that a member is, where the group has it under another name."""

    def model_of(self, member: str) -> str:
        """The name in the recipe of the model that a member is."""
        return self.renamed.get(member, member)

    prepared: Mapping[str, tuple[Prepared, ...]] = field(default_factory=dict)
    """What made each member's source of the model that the recipe has, in order."""

    @property
    def preparations(self) -> tuple[Prepared, ...]:
        """Those of all its members, each once."""
        return tuple({item.action: item for items in self.prepared.values() for item in items}.values())

    @property
    def option_files(self) -> tuple[InputFile, ...]:
        """The files that options name, plugin libraries of the user's own, by the EP and the option; libraries of custom operators."""
        named = {f"{ep['name']}/{option}": digest for ep in self.document["eps"] for option, digest in ep["files"].items()}
        libraries = {f"{ep['name']}/library": ep["library"] for ep in self.document["eps"] if ep["library"]}
        session = {f"session/{name}": digest for name, digest in self.document["session_files"].items()}
        # What a package ships is among the libraries of its toolchain.
        ops = {f"custom_ops/{ops['name']}": ops["library"] for ops in self.document.get("custom_ops", ()) if ops["library"]}
        return tuple(sorted(InputFile(name, digest) for name, digest in {**named, **libraries, **session, **ops}.items()))


@dataclass(frozen=True)
class Materials:
    """All that went into an output."""

    recipe: RecipeFiles
    built: tuple[Built, ...]
    models: Mapping[str, SourceMaterial]
    toolchains: Mapping[str, ToolchainMaterial]
    assets: tuple[InputFile, ...]
    """The user's own files that are shipped, or read to make one that is, beside the models."""

    @property
    def preparations(self) -> tuple[Prepared, ...]:
        """Those of every session group, each once, by their steps."""
        found = {item.action: item for built in self.built for item in built.preparations}
        return tuple(item for _, item in sorted(found.items()))

    @property
    def option_files(self) -> tuple[InputFile, ...]:
        """Those of every session group, each once."""
        return tuple(sorted({file for built in self.built for file in built.option_files}))


def materials_of(emission: Emission, made: Sequence[Made], recipe: Recipe, digests: Mapping[Path, str]) -> Materials:
    """All that an output was made of; `digests` are those of the user's files."""
    # A bill of materials alone does not name the recipe's files.
    read = tuple(recipe_file(path, recipe.directory, digests[path]) for path in recipe.files if path in digests)
    assets = (InputFile(path.name, digests[path]) for path in emission.files)
    return gather(RecipeFiles(recipe.name, read), (_built(item) for item in made), assets)


def _built(item: Made) -> Built:
    group = item.group
    return Built(
        action=group.id,
        key=item.key,
        document=item.document,
        group=group.group,
        target=group.target.name,
        reproducible=group.reproducible,
        toolchain=group.target.toolchain.name,
        models={member.name: member.model.path for member in group.members},
        data_folders={member.name: folder for member in group.members if (folder := member.data_folder) is not None},
        prepared={
            member.name: tuple(_prepared(made) for made in item.prepared(member.name))
            for member in group.members
            if member.prepared is not None
        },
        renamed={member.name: member.model.name for member in group.members if member.name != member.model.name},
    )


def _prepared(item: Made) -> Prepared:
    action = item.action
    if not isinstance(action, Preparation):
        raise TypeError(action.id)
    return Prepared(action.id, item.key, item.document, action.toolchain.name)


def gather(recipe: RecipeFiles, built: Iterable[Built], assets: Iterable[InputFile] = ()) -> Materials:
    """The materials of an output that consists of the results of session groups, in whatever order these are given.

    Raises ValueError where two of them differ in what one name stands for: then they are not of one plan.
    """
    ordered = tuple(sorted(built, key=lambda item: item.action))
    return Materials(
        recipe=recipe,
        built=ordered,
        models=_by_name(model for item in ordered for model in _models(item)),
        toolchains=_by_name(
            _with_all_libraries(
                [*map(_toolchain, ordered), *(_toolchain(item) for built in ordered for item in built.preparations)]
            )
        ),
        assets=tuple(sorted(set(assets))),
    )


def recipe_file(path: Path, directory: Path, sha256: str) -> InputFile:
    """A file that a recipe was read from, by its name as seen from the recipe's `directory`."""
    try:
        name = Path(os.path.relpath(path, directory)).as_posix()
    except ValueError:  # another drive of Windows
        name = path.name
    return InputFile(name, sha256)


def source_name(path: str) -> str:
    """What a source model that the recipe has at `path` is called, wherever it was built: without secrets and places of one machine."""
    file = _source(path, None, "")
    return file.uri or file.name


_Named = TypeVar("_Named", SourceMaterial, ToolchainMaterial)


def _by_name(items: Iterable[_Named]) -> dict[str, _Named]:
    found: dict[str, _Named] = {}
    for item in items:
        if found.setdefault(item.name, item) != item:
            message = f"two session groups mean different things by '{item.name}'"
            raise ValueError(message)
    return dict(sorted(found.items()))


def _models(built: Built) -> Iterator[SourceMaterial]:
    for member in built.document["members"]:
        name = member["name"]
        # A model that was prepared is known by what the recipe has of it.
        begins = built.prepared[name][0].source if built.prepared.get(name) else member
        external = begins["external"]
        folder = built.data_folders.get(name)
        # A file beside which the data would lie in that folder.
        beside = built.models[name] if folder is None else posixpath.join(folder, "graph")
        data = (_source(beside, location, digest) for location, digest in external.items())
        yield SourceMaterial(built.model_of(name), _source(built.models[name], None, begins["graph"]), tuple(sorted(data)))


def _source(path: str, location: str | None, sha256: str) -> InputFile:
    """The graph that `path` names in the recipe, or its external data at `location`."""
    try:
        address = parse_address(path)
    except BadAddress:
        # It reads both kinds of slashes.
        written = PureWindowsPath(path)
        # Where a folder is on one machine is private.
        name = written.name if written.anchor else written.as_posix()
        return InputFile(name if location is None else posixpath.join(posixpath.dirname(name), location), sha256)
    if location is not None:
        address = address.beside(location)
    name = location or address.path.rpartition("/")[2]
    if isinstance(address, PackageAddress):
        # https://github.com/package-url/purl-spec: what follows '#' is a place in the package.
        return InputFile(name, sha256, f"{Distribution(address.distribution, address.version).purl}#{quote(address.file)}")
    # As text for people it has no query, which may hold a secret.
    return InputFile(name, sha256, quote(str(address), safe=_URI))


def _with_all_libraries(toolchains: Sequence[ToolchainMaterial]) -> Iterator[ToolchainMaterial]:
    """Each toolchain with the libraries of all the EPs that it was used for: a session group names those of its own."""
    for toolchain in toolchains:
        used = {library for other in toolchains if other.name == toolchain.name for library in other.libraries}
        yield replace(toolchain, libraries=tuple(sorted(used)))


def _toolchain(built: Built | Prepared) -> ToolchainMaterial:
    # What it has of the host beside that, such as the CPU, is in the action key.
    document = built.document["toolchain"]
    return ToolchainMaterial(
        name=built.toolchain,
        python=document["python"],
        platform=document["platform"],
        packages=tuple(sorted(Distribution(name, version) for name, version in document["distributions"].items())),
        libraries=tuple(sorted(InputFile(name, digest) for name, digest in document["libraries"].items())),
    )
