"""Manifest of an ONNX Runtime model package: components and variants.

An application opens one session for a component. A variant is a component compiled for one target. The format is schema 1 of ONNX
Runtime's `model_package/README.md`. Statements marked as measured were tested with the OrtModelPackageApi of onnxruntime 1.31.1.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

from msgspec import Struct, field

from epbuild.archive.artifact import FileEntry
from epbuild.catalog.catalog import CPU_EP
from epbuild.core.canonical import JsonFile
from epbuild.core.digest import hash_bytes
from epbuild.output.inference import WRITES_FILES
from epbuild.output.manifest import FORMAT, list_files
from epbuild.plan.outputs import GENAI_CONFIG

ASSETS = "shared_assets"
"""Folder of a package for the files that variants share."""
DATA_FOLDER = "session.model_external_initializers_file_folder_path"
"""Session option with the folder of a model's external data and context binaries. It may name a shared asset."""
MODEL_PATH = "ep.context_file_path"
"""Session option with the path of a model. With this option, EPs look for context binaries beside the model, not in `DATA_FOLDER`."""

_SCHEMA_VERSION = "1.0"
_ASSET = re.compile(r"sha256:(?P<digest>[0-9a-f]{64})(?:/(?P<path>.+))?")


class PackageVariant(Struct, frozen=True):
    """Variant of a component for one target. Paths are POSIX paths below the package's root, unless noted otherwise."""

    component: str
    name: str
    folder: str
    """Folder of the variant's files. Components that share a context binary have variants in the same folder."""
    model_file: str | None
    """Path of the model relative to the folder, or in a shared asset: `sha256:<digest>/<path>`. None if the folder has a configuration of
    onnxruntime-genai, which opens several models."""
    ep: str
    device: str | None = None
    """`npu`, `gpu` or `cpu`; None unless the EP is a plugin. ONNX Runtime knows no devices of other EPs. If a
    variant for one of them names a device, ONNX Runtime never selects the variant (measured)."""
    compatibility: str = ""
    """Compatibility string that the EP wrote into the model. The EP uses it later to decide whether the model fits a device."""
    session_options: Mapping[str, str] = field(default_factory=dict)
    provider_options: Mapping[str, str] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)
    refers: tuple[str, ...] = ()
    """Paths of the files that the model refers to: external data and context binaries."""
    movable: bool = False
    """True if the model and all its files may be in shared assets, because only ONNX Runtime's package API opens the model."""
    weights: tuple[str, ...] = ()
    """External data of weightless contexts, which may be in a shared asset."""

    @property
    def model_path(self) -> str | None:
        """Path of the model in the package."""
        return resolve(self.folder, self.model_file) if self.model_file is not None else None


def build_package_manifest(
    *,
    name: str,
    description: str,
    variants: Sequence[PackageVariant],
    recipe: str,
    files: Sequence[FileEntry],
    provenance: str | None = None,
) -> JsonFile:
    """Return the `manifest.json` of a package.

    `files` are all files of the package except the manifest and the statement at `provenance`. The order of `variants` is kept, because
    ONNX Runtime selects the first of several variants that fit equally well.
    """
    components: dict[str, Any] = {}
    for variant in variants:
        components.setdefault(variant.component, {"variants": {}})["variants"][variant.name] = _describe_variant(variant)
    metadata = {
        "format": FORMAT,
        "recipe": recipe,
        "files": list_files(files),
        **({"provenance": provenance} if provenance is not None else {}),
    }
    document = {
        "additional_metadata": {"epbuild": _sort_keys(metadata)},
        "components": components,
        **({"description": description} if description else {}),
        "layout": "portable",
        "package_name": name,
        "schema_version": _SCHEMA_VERSION,
    }
    return JsonFile(document, sort_keys=False)


def check_package(files: Sequence[FileEntry], variants: Sequence[PackageVariant]) -> list[str]:
    """Return a message for each defect that ONNX Runtime would not report until it fails to create a session."""
    defects = (*_check_variants(variants), *_check_components(variants), *_check_files(files, variants), *_check_assets(files))
    return list(dict.fromkeys(defects))


def make_asset_uri(files: Mapping[str, str]) -> str:
    """Return the URI by which ONNX Runtime identifies a shared asset. `files` maps POSIX paths in the asset to SHA-256."""
    lines = "".join(f"{files[path]}  {path}\n" for path in sorted(files))
    return f"sha256:{hash_bytes(lines)}"


def resolve(folder: str, reference: str) -> str:
    """Resolve a reference to a path in the package. A reference is relative to `folder` or names a file in a shared asset."""
    asset = _ASSET.fullmatch(reference)
    if asset is None:
        return posixpath.normpath(posixpath.join(folder, reference))
    return posixpath.join(ASSETS, f"sha256-{asset['digest']}", asset["path"] or "").rstrip("/")


def _describe_variant(variant: PackageVariant) -> dict[str, Any]:
    ort = {
        "model_file": variant.model_file,
        **({"provider_options": dict(variant.provider_options)} if variant.provider_options else {}),
        **({"session_options": dict(variant.session_options)} if variant.session_options else {}),
    }
    # ONNX Runtime 1.31.1 never selects a variant for its own CPU EP if the variant has a device.
    device = None if variant.ep == CPU_EP else variant.device
    body = {
        "variant_directory": variant.folder or ".",
        "ep": variant.ep,
        **({"device": device} if device is not None else {}),
        **({"compatibility_string": variant.compatibility} if variant.compatibility else {}),
        **({"executor_info": {"ort": ort}} if variant.model_file is not None else {}),
        **({"additional_metadata": {"epbuild": dict(variant.metadata)}} if variant.metadata else {}),
    }
    sorted_body: dict[str, Any] = _sort_keys(body)
    return sorted_body


def _sort_keys(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _sort_keys(value[key]) for key in sorted(value)}
    return [_sort_keys(item) for item in value] if isinstance(value, list | tuple) else value


def _check_variants(variants: Sequence[PackageVariant]) -> Iterator[str]:
    seen = set()
    for variant in variants:
        if (variant.component, variant.name) in seen:
            yield f"two variants of the component '{variant.component}' have the name '{variant.name}'"
        seen.add((variant.component, variant.name))
        for option in sorted(WRITES_FILES.intersection(variant.session_options)):
            yield f"{_format_title(variant)} has the session option {option}; ONNX Runtime rejects packages with this option"
        for path in (variant.folder, *([] if variant.model_file is None else [variant.model_file])):
            if not _is_portable(path):
                yield f"{_format_title(variant)} refers to '{path}', which is not a portable path inside the package"


def _check_components(variants: Sequence[PackageVariant]) -> Iterator[str]:
    components = dict.fromkeys(variant.component for variant in variants)
    if len(components) > 1 and any(variant.model_file is None for variant in variants):
        yield f"onnxruntime-genai opens only packages with one component; this package has {', '.join(components)}"


def _check_files(files: Sequence[FileEntry], variants: Sequence[PackageVariant]) -> Iterator[str]:
    paths = {file.path for file in files}
    folders = {folder.as_posix() for path in paths for folder in PurePosixPath(path).parents}
    for variant in variants:
        if posixpath.normpath(variant.folder) not in folders:
            yield f"{_format_title(variant)} has the folder '{variant.folder}', which is empty"
        model = variant.model_path
        needed = [posixpath.join(variant.folder, GENAI_CONFIG) if model is None else model, *variant.refers]
        data_option = variant.session_options.get(DATA_FOLDER)
        if model is not None and data_option is not None and MODEL_PATH not in variant.session_options:
            data_folder = resolve(variant.folder, data_option)
            outside = [path for path in variant.refers if not path.startswith(f"{data_folder}/")]
            needed += [posixpath.join(data_folder, _get_reference(variant, path)) for path in outside]
        for path in needed:
            if path not in paths:
                yield f"{_format_title(variant)} needs '{path}', which is not in the package"


def _check_assets(files: Sequence[FileEntry]) -> Iterator[str]:
    assets: dict[str, dict[str, str]] = {}
    for file in files:
        top, *below = PurePosixPath(file.path).parts
        if top == ASSETS and len(below) > 1:
            assets.setdefault(below[0], {})["/".join(below[1:])] = file.digest
    for name, digests in assets.items():
        if name != make_asset_uri(digests).replace(":", "-"):
            yield f"the name of the shared asset '{name}' does not match its content"


def _format_title(variant: PackageVariant) -> str:
    return f"the variant '{variant.name}' of the component '{variant.component}'"


def _get_reference(variant: PackageVariant, path: str) -> str:
    """Return the path of a model's file relative to the model, as in the model's references."""
    return posixpath.relpath(path, posixpath.dirname(variant.model_path or variant.folder) or ".")


def _is_portable(path: str) -> bool:
    """Return whether a portable package may contain a path. The path must be relative POSIX without `..`, or in a shared asset."""
    asset = _ASSET.fullmatch(path)
    if asset is None and ":" in path:
        return False
    relative = path if asset is None else asset["path"] or ""
    return not relative.startswith("/") and "\\" not in relative and ".." not in relative.split("/")
