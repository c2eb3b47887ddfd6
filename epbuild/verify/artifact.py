"""Artifacts at a path: folders with manifests, other folders, single models.

No file outside the path is read, except shared assets of the model package that contains the path. Links to other folders are not
followed.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any

from epbuild.cache.digests import Counting, uncounted
from epbuild.core.defaults import MANIFEST
from epbuild.core.errors import NothingToVerify, Problem
from epbuild.core.safepath import BadReference, locate, resolve_links
from epbuild.core.shown import format_path
from epbuild.onnxfile.read.model_header import ModelHeader
from epbuild.verify.facts import Model
from epbuild.verify.manifest import BadManifest, ListedFile, ListedModel, Manifest, read_manifest

_MODEL = ".onnx"


@dataclass(frozen=True)
class ArtifactFolder:
    """Models of one folder, with their manifest."""

    folder: Path
    models: tuple[Model, ...]
    place: str = ""
    """Path of the folder, relative to the path that the user passed: empty, or a POSIX path with a trailing slash."""
    manifest: Manifest | None = None
    flaw: str | None = None
    """Reason why the manifest of the folder cannot be used."""
    whole: bool = True
    """True if all files of the folder are checked. False if only one model is checked."""
    inner: frozenset[str] = field(default_factory=frozenset)
    """Folders below this one that are separate artifacts."""
    counting: Counting = field(default=uncounted, compare=False)
    """Counter of bytes that are hashed."""

    covered: frozenset[str] = field(default_factory=frozenset)
    """Files in shared assets that the artifact of the whole package checks, by the paths in this artifact's manifest."""

    def format_path(self, name: str) -> str:
        """Return the path of an artifact's file, as it appears in findings."""
        listed = self.manifest.files.get(name) if self.manifest is not None else None
        if listed is not None and listed.shared is not None:
            return posixpath.normpath(posixpath.join(self.place, *listed.shared))
        return f"{self.place}{name}"

    def locate(self, listed: ListedFile) -> Path:
        """Return the path of a listed file. Raises BadReference."""
        if listed.shared is None:
            return locate(self.folder, listed.path)
        folder, name = listed.shared
        return locate(self.folder / folder, name)

    @property
    def own_files(self) -> list[ListedFile]:
        """Listed files that no other artifact checks."""
        files = self.manifest.files.values() if self.manifest is not None else ()
        return [file for file in files if not self.is_inner(file.path) and file.path not in self.covered]

    @property
    def title(self) -> str:
        """Name of the folder in findings."""
        return self.place or "."

    def get_label(self, model: Model) -> str:
        """Return the name of a model: the name in the manifest, or else the path of its file."""
        return self.listed[model.file].name if model.file in self.listed else model.file

    @property
    def document(self) -> Mapping[str, Any] | None:
        return self.manifest.document if self.manifest is not None else None

    @cached_property
    def listed(self) -> Mapping[str, ListedModel]:
        return {model.file: model for model in self.manifest.models} if self.manifest is not None else {}

    @property
    def compiled(self) -> Iterator[tuple[str, Model, ModelHeader]]:
        """Compiled models that can be read, as triples: the path for findings, the model and its header."""
        for model in self.models:
            if not isinstance(model.header, str) and model.header.is_compiled:
                yield self.format_path(model.file), model, model.header

    @cached_property
    def encrypted(self) -> Mapping[str, ListedFile]:
        """Encrypted files, by path below the folder."""
        files = self.manifest.files if self.manifest is not None else {}
        return {name: file for name, file in files.items() if file.plain is not None}

    @property
    def has_manifest(self) -> bool:
        """True if there is a manifest, even an unusable one."""
        return self.manifest is not None or self.flaw is not None

    def is_inner(self, name: str) -> bool:
        """Return whether a file belongs only to an inner artifact. The manifest of an inner artifact belongs to both artifacts."""
        return any(name.startswith(f"{folder}/") and name != f"{folder}/{MANIFEST}" for folder in self.inner)

    def list_files(self) -> Iterator[str]:
        """Yield all files below the folder as `list_artifact_files` does, except files of inner artifacts."""
        return (
            name for name in list_artifact_files(self.folder) if not any(name.startswith(f"{folder}/") for folder in self.inner)
        )


def find_artifacts(path: Path) -> tuple[ArtifactFolder, ...]:
    """Find the artifacts at `path`, which is a folder, a manifest or a model. Raises NothingToVerify if there is none."""
    try:
        if path.is_dir():
            return _find_in_folder(path)
        if not path.is_file():
            raise _make_nothing_error(f"no such file or folder: {format_path(path)}")
    except (OSError, ValueError) as error:
        raise _make_nothing_error(f"{format_path(path)} cannot be read: {getattr(error, 'strerror', None) or error}") from error
    if path.suffix != ".json":
        return (ArtifactFolder(path.parent, (Model(path.parent, path.name, asked_for=True),), whole=False),)
    found = _read_artifact(path.parent, "", path.name)
    if found is None:
        raise _make_nothing_error(f"{format_path(path)} is not an epbuild manifest")
    return (found,)


def _find_in_folder(folder: Path) -> tuple[ArtifactFolder, ...]:
    listed = list(list_artifact_files(folder))
    places = [name[: -len(MANIFEST)] for name in listed if name == MANIFEST or name.endswith(f"/{MANIFEST}")]
    emitted = {place: found for place in places if (found := _read_artifact(folder / place, place, MANIFEST)) is not None}
    loose: dict[str, list[str]] = {}
    for name in listed:
        if name.endswith(_MODEL) and not any(name.startswith(place) for place in emitted):
            parent, _, file = name.rpartition("/")
            loose.setdefault(f"{parent}/" if parent else "", []).append(file)
    artifacts = [_divide_files(found, emitted) for found in emitted.values()]
    artifacts += [ArtifactFolder(folder / place, _make_models(folder / place, names), place) for place, names in loose.items()]
    if not artifacts:
        raise _make_nothing_error(f"{format_path(folder)} contains neither a manifest nor an ONNX model")
    return tuple(sorted(artifacts, key=lambda artifact: PurePosixPath(artifact.place).parts))


def _read_artifact(folder: Path, place: str, name: str) -> ArtifactFolder | None:
    """Read a folder with a manifest. Return None if the file `name` is not a manifest of epbuild."""
    try:
        manifest = read_manifest(locate(folder, name))
        if manifest is None:
            return None
        # The checks cannot read encrypted models. The check `encryption` reports them.
        names = (model.file for model in manifest.models if manifest.files[model.file].plain is None)
        return ArtifactFolder(folder, _make_models(folder, names, manifest), place, manifest)
    except (BadManifest, BadReference) as error:
        flaw = str(error)
    except OSError as error:
        flaw = f"it cannot be read: {error.strerror or error}"
    models = _make_models(folder, (name for name in list_artifact_files(folder) if name.endswith(_MODEL)))
    return ArtifactFolder(folder, models, place, flaw=flaw)


def _divide_files(outer: ArtifactFolder, emitted: Mapping[str, ArtifactFolder]) -> ArtifactFolder:
    """Return an artifact without the files that other artifacts check. `emitted` has all artifacts by their places."""
    inner = frozenset(place[len(outer.place) : -1] for place in emitted if place != outer.place and place.startswith(outer.place))
    return replace(outer, inner=inner, covered=_find_covered(outer, emitted))


def _find_covered(artifact: ArtifactFolder, emitted: Mapping[str, ArtifactFolder]) -> frozenset[str]:
    """Return the files in shared assets that an artifact around this one lists with the same digest."""
    shared = (
        [file for file in artifact.manifest.files.values() if file.shared is not None] if artifact.manifest is not None else []
    )
    around = [
        (place, outer.manifest.files)
        for place, outer in (emitted.items() if shared else ())
        if outer.manifest is not None and artifact.place.startswith(place)
    ]

    def is_covered(file: ListedFile) -> bool:
        path = artifact.format_path(file.path)
        listed = (files.get(path.removeprefix(place)) for place, files in around)
        return any(other is not None and other.shared is None and other.sha256 == file.sha256 for other in listed)

    return frozenset(file.path for file in shared if is_covered(file))


def _make_models(folder: Path, names: Iterable[str], manifest: Manifest | None = None) -> tuple[Model, ...]:
    """Return the models of a folder. Raises BadManifest if a shared asset is outside the model package."""
    assets = _find_assets(folder, manifest) if manifest is not None else {}
    return tuple(Model(folder, name, shared_data=assets.get(name)) for name in names)


def _find_assets(folder: Path, manifest: Manifest) -> dict[str, Path]:
    """Return the folder of the shared asset with a model's data, by the model's file. Raises BadManifest.

    If the data of one compiled model in a folder is shared, the data of all is. The data of uncompiled models is not.
    """
    shared = {file.path: file.shared for file in manifest.files.values() if file.shared is not None}
    for asset in {asset for asset, _ in shared.values()}:
        _check_asset(folder, asset)
    assets = {posixpath.dirname(path.removesuffix(name)): asset for path, (asset, name) in shared.items()}
    compiled = (model.file for model in manifest.models if model.compiled)
    return {file: folder / assets[home] for file in compiled if (home := posixpath.dirname(file)) in assets}


def _check_asset(folder: Path, asset: str) -> None:
    """Raise BadManifest if a shared asset exists and is a link, or is not beside the manifest of a model package."""
    up, place = asset.rsplit("../", 1)
    root = resolve_links(folder / f"{up}..")
    found = folder / asset
    if found.exists() and not (resolve_links(found) == root / place and (root / MANIFEST).is_file()):
        raise BadManifest(f"the shared asset '{asset}' is a link, or it is not in a model package with a {MANIFEST}")


def list_artifact_files(folder: Path) -> Iterator[str]:
    """Yield all files below a folder as sorted POSIX paths. Skip hidden folders and links to folders. Raises OSError."""

    def refuse(error: OSError) -> None:
        raise error

    for root, folders, names in os.walk(folder, onerror=refuse):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        here = Path(root).relative_to(folder)
        yield from ((here / name).as_posix() for name in sorted(names))


def _make_nothing_error(message: str) -> NothingToVerify:
    return NothingToVerify(Problem("EPB600", message))
