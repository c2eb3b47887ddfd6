"""Shared assets of a model package: files that several variants share.

A shared asset is stored once, and variants refer to it. ONNX Runtime looks for all files of a model in one folder: the model's own folder,
or the folder that a session option names. The option applies to external data and context binaries alike (measured with onnxruntime 1.31.1,
QNN 2.7.0 and OpenVINO 1.8.1). So either all files that a model refers to are shared, or none.
"""

from __future__ import annotations

import posixpath
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from pathlib import PurePosixPath

from msgspec.structs import replace

from epbuild.output.files import OutputFile
from epbuild.output.package_manifest import DATA_FOLDER, PackageVariant, make_asset_uri, resolve

_Files = Mapping[str, OutputFile]
"""Files by their paths in the package."""


def share_files(
    planned: Sequence[OutputFile], variants: Sequence[PackageVariant]
) -> tuple[tuple[OutputFile, ...], tuple[PackageVariant, ...]]:
    """Move files to shared assets if several movable variants have them. Return the sorted files, and the variants in their order.

    All files that a model refers to are shared if models in several folders refer to equal files by equal names. A model is shared if
    several folders have it under one name, and if all files that it refers to are shared. The files of movable variants must be blobs or
    user's files, because their SHA-256 is known. A file also stays at its old path if an unmoved model refers to this path.
    """
    files = {file.path: file for file in planned}
    after = [_share_data(variant, uri) for variant, uri in _find_shared(variants, files, _list_data)]
    after = [_share_model(variant, uri) for variant, uri in _find_shared(after, files, _list_model)]
    moved = _find_moves(zip(variants, after, strict=True))
    needed = {path for variant in after for path in (variant.model_path, *variant.refers)}
    left = {path: file for path, file in files.items() if path not in moved or path in needed}
    for path, places in moved.items():
        left |= {place: replace(files[path], path=place) for place in places}
    ordered = sorted(left.values(), key=lambda file: PurePosixPath(file.path).parts)
    return tuple(ordered), tuple(_select_existing_folder(variant, left) for variant in after)


def _list_data(variant: PackageVariant, files: _Files) -> dict[str, str] | None:
    """Return the SHA-256 of each file that the model refers to, by its name in the model; None if the files cannot be moved."""
    home = _get_model_folder(variant)
    names = {posixpath.relpath(path, home or "."): files[path].content.identity for path in variant.refers}
    inside = all(not name.startswith("../") for name in names)
    return names if names and inside and DATA_FOLDER not in variant.session_options else None


def _list_model(variant: PackageVariant, files: _Files) -> dict[str, str] | None:
    """Return the SHA-256 of the model by its name; None if the model cannot be moved."""
    path = variant.model_path
    if path is None or (variant.refers and DATA_FOLDER not in variant.session_options):
        return None
    return {posixpath.basename(path): files[path].content.identity}


def _find_shared(
    variants: Sequence[PackageVariant], files: _Files, wanted: Callable[[PackageVariant, _Files], dict[str, str] | None]
) -> list[tuple[PackageVariant, str | None]]:
    """Return each variant with the URI of an asset for its `wanted` files, or with None if no other folder has the same files."""
    found = [wanted(variant, files) if variant.movable and variant.model_file is not None else None for variant in variants]
    homes: dict[Hashable, set[str]] = defaultdict(set)
    for variant, named in zip(variants, found, strict=True):
        if named is not None:
            homes[frozenset(named.items())].add(_get_model_folder(variant))
    return [
        (variant, make_asset_uri(named) if named is not None and len(homes[frozenset(named.items())]) > 1 else None)
        for variant, named in zip(variants, found, strict=True)
    ]


def _share_data(variant: PackageVariant, uri: str | None) -> PackageVariant:
    if uri is None:
        return variant
    home, there = _get_model_folder(variant), resolve("", uri)
    refers = tuple(posixpath.join(there, posixpath.relpath(path, home or ".")) for path in variant.refers)
    return replace(variant, refers=refers, session_options={**variant.session_options, DATA_FOLDER: uri})


def _share_model(variant: PackageVariant, uri: str | None) -> PackageVariant:
    if uri is None or variant.model_path is None:
        return variant
    return replace(variant, model_file=f"{uri}/{posixpath.basename(variant.model_path)}")


def _find_moves(pairs: Iterable[tuple[PackageVariant, PackageVariant]]) -> dict[str, set[str]]:
    """Return the new paths of each moved file, by the old path. A file that moves to several assets has several new paths."""
    moved: dict[str, set[str]] = defaultdict(set)
    for before, after in pairs:
        old, new = (before.model_path, *before.refers), (after.model_path, *after.refers)
        for was, now in zip(old, new, strict=True):
            if was is not None and now is not None and was != now:
                moved[was].add(now)
    return moved


def _select_existing_folder(variant: PackageVariant, left: _Files) -> PackageVariant:
    """Return the variant with a folder that exists: its own folder, or its model's folder if its own folder is empty."""
    prefix = f"{variant.folder}/" if variant.folder else ""
    if variant.model_path is None or any(path.startswith(prefix) for path in left):
        return variant
    return replace(variant, folder=_get_model_folder(variant))


def _get_model_folder(variant: PackageVariant) -> str:
    return posixpath.dirname(variant.model_path or "")
