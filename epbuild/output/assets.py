"""Shared assets of a model package: files that several variants share.

A shared asset is stored once, and variants refer to it. ONNX Runtime looks for all external data of a model in one folder: the model's own
folder, or the folder that a session option names. The option also applies to context binaries, unless another option has the model's path
(measured with onnxruntime 1.31.1, QNN 2.7.0 and OpenVINO 1.8.1). So either all external data of a model is shared, or none.
"""

from __future__ import annotations

import posixpath
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from pathlib import PurePosixPath

from msgspec.structs import replace

from epbuild.output.files import OutputFile
from epbuild.output.package_manifest import DATA_FOLDER, MODEL_PATH, PackageVariant, make_asset_uri, resolve

_Files = Mapping[str, OutputFile]
"""Files by their paths in the package."""
_Named = Mapping[str, str]
"""SHA-256 of files, by their names relative to a model."""


def share_files(
    planned: Sequence[OutputFile], variants: Sequence[PackageVariant]
) -> tuple[tuple[OutputFile, ...], tuple[PackageVariant, ...]]:
    """Move files to shared assets if several variants have them. Return the sorted files, and the variants in their order.

    All files that a movable model refers to are shared if models in several folders refer to equal files by equal names. A movable model
    is shared if several folders have it under one name, and if all files that it refers to are shared. The weights of weightless contexts
    are also shared with models that need only some of them. Shared files must be blobs or user's files, because their SHA-256 is known. A
    file also stays at its old path if an unmoved model refers to this path.
    """
    files = {file.path: file for file in planned}
    data = _join_weights(variants, [_list_data(variant, files) for variant in variants])
    after = [_share_data(variant, uri) for variant, uri in _find_shared(variants, data)]
    models = [_list_model(variant, files) for variant in after]
    after = [_share_model(variant, uri) for variant, uri in _find_shared(after, models)]
    moved = _find_moves(zip(variants, after, strict=True))
    needed = {path for variant in after for path in (variant.model_path, *variant.refers)}
    left = {path: file for path, file in files.items() if path not in moved or path in needed}
    for path, places in moved.items():
        left |= {place: replace(files[path], path=place) for place in places}
    ordered = sorted(left.values(), key=lambda file: PurePosixPath(file.path).parts)
    return tuple(ordered), tuple(_select_existing_folder(variant, left) for variant in after)


def move_weights(variant: PackageVariant, shared: Mapping[str, str]) -> PackageVariant:
    """Return a variant with its weights in a shared asset. `shared` has the paths in assets by the paths without them."""
    place = next((shared[path] for path in variant.weights if path in shared), None)
    return variant if place is None else _share_data(variant, PurePosixPath(place).parts[1].replace("-", ":"))


def _list_movable(variant: PackageVariant) -> tuple[str, ...]:
    return variant.refers if variant.movable else variant.weights


def _list_data(variant: PackageVariant, files: _Files) -> dict[str, str] | None:
    """Return the SHA-256 of each file that can be moved, by its name in the model; None if the files cannot be moved."""
    home = _get_model_folder(variant)
    names = {posixpath.relpath(path, home or "."): files[path].content.identity for path in _list_movable(variant)}
    inside = all(not name.startswith("../") for name in names)
    return names if names and inside and DATA_FOLDER not in variant.session_options else None


def _list_model(variant: PackageVariant, files: _Files) -> dict[str, str] | None:
    """Return the SHA-256 of the model by its name; None if the model cannot be moved."""
    path = variant.model_path
    if path is None or not variant.movable or (variant.refers and DATA_FOLDER not in variant.session_options):
        return None
    return {posixpath.basename(path): files[path].content.identity}


def _join_weights(variants: Sequence[PackageVariant], found: Sequence[_Named | None]) -> list[_Named | None]:
    """Join the files of weightless contexts with the files of variants that have some of them, and no others of an equal name.

    `found` has the SHA-256 of each variant's files by name. All weightless contexts in a folder get the same files.
    """
    joined: list[dict[str, str]] = []

    def join(named: _Named) -> dict[str, str] | None:
        for other in joined:
            if named.items() & other.items() and _agree(named, other):
                other.update(named)
                return other
        return None

    homes: dict[str, dict[str, str]] = defaultdict(dict)
    for variant, named in zip(variants, found, strict=True):
        if variant.weights and named is not None:
            homes[_get_model_folder(variant)].update(named)
    for home, weights in homes.items():
        other = join(weights)
        if other is None:
            joined.append(weights)
        else:
            homes[home] = other
    return [
        named if named is None else homes[_get_model_folder(variant)] if variant.weights else join(named) or named
        for variant, named in zip(variants, found, strict=True)
    ]


def _agree(named: _Named, other: _Named) -> bool:
    """Return whether two sets of files fit into one folder. Names that differ only in case are equal on some platforms."""
    folded = {name.casefold(): (name, digest) for name, digest in other.items()}
    return all(folded.get(name.casefold(), (name, digest)) == (name, digest) for name, digest in named.items())


def _find_shared(variants: Sequence[PackageVariant], found: Sequence[_Named | None]) -> list[tuple[PackageVariant, str | None]]:
    """Return each variant with the URI of an asset for its files in `found`, or with None if no other folder has the same files."""
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
    movable = _list_movable(variant)
    refers = tuple(
        posixpath.join(there, posixpath.relpath(path, home or ".")) if path in movable else path for path in variant.refers
    )
    options = {**variant.session_options, DATA_FOLDER: uri}
    if len(movable) < len(refers) and variant.model_file is not None:
        options[MODEL_PATH] = variant.model_file
    return replace(variant, refers=refers, session_options=options)


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
