"""Shared assets of a model package: files that several variants have in common.

They are there once, and the variants name them. What a model refers to is found in one folder: the model's own, or that of a session
option, which moves external data and context binaries alike (measured with onnxruntime 1.31.1, QNN 2.7.0 and OpenVINO 1.8.1). So either all
that a model refers to is shared, or none of it is.
"""

from __future__ import annotations

import posixpath
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from pathlib import PurePosixPath

from msgspec.structs import replace

from epbuild.archive.artifact import Artifact
from epbuild.output.package_manifest import DATA_FOLDER, PackageVariant, asset_uri, resolve

_Files = Mapping[str, Artifact]
"""Contents by their paths in the package."""


def share_files(
    artifacts: Sequence[Artifact], variants: Sequence[PackageVariant]
) -> tuple[tuple[Artifact, ...], tuple[PackageVariant, ...]]:
    """The package with the files that its movable variants have in common in shared assets, in the order of their paths; and the variants,
    in their own order, with what they then have in the manifest.

    Shared is all that a model refers to, where models in several folders refer to equal files by equal names; and a model itself, where
    several folders have it under one name and what it refers to is shared or there is nothing. Every file that the variants name must be
    among the contents. A file stays where it was while a model that is not moved needs it there too.
    """
    files = {artifact.path: artifact for artifact in artifacts}
    after = [_with_data(variant, uri) for variant, uri in _shared(variants, files, _data)]
    after = [_with_model(variant, uri) for variant, uri in _shared(after, files, _model)]
    moved = _moves(zip(variants, after, strict=True))
    needed = {path for variant in after for path in (variant.model_path, *variant.refers)}
    left = {path: artifact for path, artifact in files.items() if path not in moved or path in needed}
    for path, places in moved.items():
        left |= {place: replace(files[path], path=place) for place in places}
    ordered = sorted(left.values(), key=lambda artifact: PurePosixPath(artifact.path).parts)
    return tuple(ordered), tuple(_housed(variant, left) for variant in after)


def _data(variant: PackageVariant, files: _Files) -> dict[str, str] | None:
    """What the model refers to: the SHA-256 of each file, by what the model calls it; None where that cannot be moved."""
    home = _home(variant)
    names = {posixpath.relpath(path, home or "."): files[path].sha256 for path in variant.refers}
    inside = all(not name.startswith("../") for name in names)
    return names if names and inside and DATA_FOLDER not in variant.session_options else None


def _model(variant: PackageVariant, files: _Files) -> dict[str, str] | None:
    """The model itself, likewise."""
    path = variant.model_path
    if path is None or (variant.refers and DATA_FOLDER not in variant.session_options):
        return None
    return {posixpath.basename(path): files[path].sha256}


def _shared(
    variants: Sequence[PackageVariant], files: _Files, wanted: Callable[[PackageVariant, _Files], dict[str, str] | None]
) -> list[tuple[PackageVariant, str | None]]:
    """Each variant, with the asset that has what is wanted of it; None where no other folder has the same."""
    found = [wanted(variant, files) if variant.movable and variant.model_file is not None else None for variant in variants]
    homes: dict[Hashable, set[str]] = defaultdict(set)
    for variant, named in zip(variants, found, strict=True):
        if named is not None:
            homes[frozenset(named.items())].add(_home(variant))
    return [
        (variant, asset_uri(named) if named is not None and len(homes[frozenset(named.items())]) > 1 else None)
        for variant, named in zip(variants, found, strict=True)
    ]


def _with_data(variant: PackageVariant, uri: str | None) -> PackageVariant:
    if uri is None:
        return variant
    home, there = _home(variant), resolve("", uri)
    refers = tuple(posixpath.join(there, posixpath.relpath(path, home or ".")) for path in variant.refers)
    return replace(variant, refers=refers, session_options={**variant.session_options, DATA_FOLDER: uri})


def _with_model(variant: PackageVariant, uri: str | None) -> PackageVariant:
    if uri is None or variant.model_path is None:
        return variant
    return replace(variant, model_file=f"{uri}/{posixpath.basename(variant.model_path)}")


def _moves(pairs: Iterable[tuple[PackageVariant, PackageVariant]]) -> dict[str, set[str]]:
    """Where each file went, by where it was; it goes to several places when it is in several assets."""
    moved: dict[str, set[str]] = defaultdict(set)
    for before, after in pairs:
        old, new = (before.model_path, *before.refers), (after.model_path, *after.refers)
        for was, now in zip(old, new, strict=True):
            if was is not None and now is not None and was != now:
                moved[was].add(now)
    return moved


def _housed(variant: PackageVariant, left: _Files) -> PackageVariant:
    """The variant with a folder that is there: that of its model, when nothing is left in its own."""
    prefix = f"{variant.folder}/" if variant.folder else ""
    if variant.model_path is None or any(path.startswith(prefix) for path in left):
        return variant
    return replace(variant, folder=_home(variant))


def _home(variant: PackageVariant) -> str:
    return posixpath.dirname(variant.model_path or "")
