"""Variants of a group, as manifests list them."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PureWindowsPath
from typing import Any

from .plugins import PLUGINS

MANIFEST = "manifest.json"  # duplicated, because the runtime imports no other part of epbuild
FORMAT = 1

_MAX_QUOTE = 120
_SHARED = re.compile(r"((?:\.\./)+)(shared_assets/sha256-[0-9a-f]{64})/(.+)")
_BUILT_IN = "onnxruntime"
_DATA = "external-data"
_ADAPTER = "adapter"
_NEEDED = ("context-binary", _DATA)
"""Roles of the files that models need when they are opened. A manifest lists the role of each file."""


def format_path(path: Path) -> str:
    """Return a path as text for messages. Relative paths have `/` on every system."""
    return str(path) if path.is_absolute() else path.as_posix()


class OpenError(Exception):
    """Error for a group that cannot be opened. The text has a line for each detail. epbuild's docs/reference/errors.md explains `code`."""

    def __init__(self, code: str, text: str, *details: str) -> None:
        super().__init__("\n  ".join((f"{text} [{code}]", *details)))
        self.code = code


@dataclass(frozen=True)
class Ep:
    """Execution provider that a variant was compiled for."""

    name: str
    provider_options: Mapping[str, str]
    module: str | None
    """Python module of the plugin package that ships the EP; None if onnxruntime contains the EP, or if the module is unknown."""
    package: str | None
    """Pip requirement that installs the plugin package, such as `onnxruntime-qnn==2.7.0`."""
    device: Mapping[str, Any]
    """`type`, `vendor`, `metadata` and `virtual` of the device that the recipe requests."""


@dataclass(frozen=True)
class CustomOps:
    """Custom operators from one library, which ONNX Runtime has to load."""

    name: str
    """Python module that ships the library, or else the library's file name at compile time."""
    module: str | None
    """Python module that ships the library; None if the application provides the library."""
    package: str | None
    """Pip requirement of the module's package, if it is known."""


@dataclass(frozen=True)
class Variant:
    """Group compiled for one target, as its manifest describes it."""

    manifest: Path
    group: str
    target: str
    eps: tuple[Ep, ...]
    session_options: Mapping[str, str]
    share_weights: bool
    several: bool
    """True if the variant has several models, or a model that was merged from several models."""
    models: Mapping[str, Path]
    """Models by name, in the order in which they are opened."""
    compatibility: Mapping[str, tuple[str, ...]]
    """Compatibility strings in the models, by EP. Each EP uses its strings to decide whether the models fit a device."""
    files: tuple[Path, ...] = ()
    """Files that the models refer to and need: context binaries and external data."""
    data: frozenset[Path] = frozenset()
    """External data among `files`."""
    data_folders: Mapping[str, Path] = field(default_factory=dict)
    """Folder of a shared asset with a model's external data, by model. The data of other models is beside them."""
    custom_ops: tuple[CustomOps, ...] = ()
    """Custom operators in the models."""
    uncompiled: frozenset[str] = frozenset()
    """Names of the models that were not compiled and run on the CPU EP."""
    sdks: Mapping[str, tuple[tuple[str, str], ...]] = field(default_factory=dict)
    """Pairs of the `source` and the `ep_sdk_version` of the nodes that have an SDK version, by model."""
    alone: frozenset[str] = frozenset()
    """Names of the compiled models that share no weights, in a variant whose other models do."""
    run_options: Mapping[str, str] = field(default_factory=dict)
    """Configuration entries for each run of a compiled model."""
    adapters: Mapping[str, Path] = field(default_factory=dict)
    """LoRA adapters, by file name."""
    encrypted: Mapping[Path, tuple[str, str]] = field(default_factory=dict)
    """Name under which a file was encrypted, and the SHA-256 of its content, by path."""
    key_id: str | None = None
    """Name of the key of the encrypted files, if the recipe has one."""


def read_variants(manifests: Mapping[Path, bytes]) -> list[Variant]:
    """Return the variants of manifests in memory, by path. Raises OpenError."""
    return [_read_variant(path, _parse_manifest(path, content)) for path, content in manifests.items()]


def find_variants(path: Path) -> list[Variant]:
    """Return the variants at `path`, which is a manifest or a folder. Raises OpenError.

    A folder with a manifest has one variant. Otherwise, return the variants of all manifests below the folder.
    """
    try:
        if not path.is_dir():
            return [_read_variant(path, _read_manifest(path))]
        own = path / MANIFEST
        if own.is_file() and (document := _read_manifest(own, or_none=True)):
            return [_read_variant(own, document)]
        documents = ((manifest, _read_manifest(manifest, or_none=True)) for manifest in _find_manifests(path))
        variants = [_read_variant(manifest, document) for manifest, document in documents if document]
    except (OSError, ValueError) as error:  # a folder without permission, or an invalid name
        raise OpenError("EPB632", f"'{format_path(path)}' cannot be read: {error}") from error
    if not variants:
        raise OpenError("EPB632", f"there is no epbuild manifest in {format_path(path)}")
    return variants


def _find_manifests(folder: Path) -> Iterator[Path]:
    for root, folders, files in os.walk(folder):
        # Hidden folders are skipped, because a build first writes its output to a hidden folder.
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        if MANIFEST in files:
            yield Path(root) / MANIFEST


def _read_manifest(path: Path, *, or_none: bool = False) -> dict[str, Any] | None:
    """Read a manifest. Raises OpenError. If `or_none` is True, return None for a file that is not an epbuild manifest."""
    if path.exists() and not path.is_file():  # reading a pipe would block
        raise OpenError("EPB632", f"the manifest {format_path(path)} cannot be read: it is not a regular file")
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise OpenError("EPB632", f"there is no manifest at {format_path(path)}") from None
    except (OSError, ValueError) as error:
        raise OpenError("EPB632", f"the manifest {format_path(path)} cannot be read: {error}") from error
    return _parse_manifest(path, content, or_none=or_none)


def _parse_manifest(path: Path, content: bytes, *, or_none: bool = False) -> dict[str, Any] | None:
    """Return the document of a manifest. With `or_none`, return None for another document. Raises OpenError."""
    try:
        document = json.loads(content.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise OpenError("EPB632", f"the manifest {format_path(path)} cannot be read: {error}") from error
    if not (isinstance(document, dict) and {"format", "group", "target", "models"} <= set(document)):
        if or_none:
            return None
        raise OpenError("EPB632", f"{format_path(path)} is not an epbuild manifest")
    if document["format"] != FORMAT:
        text = f"the manifest {format_path(path)} has the format {document['format']}, but this reader supports only {FORMAT}"
        text += "; use the epbuild.runtime of the release that wrote the manifest"
        raise OpenError("EPB632", text)
    return document


def _read_variant(path: Path, document: Any) -> Variant:
    try:
        target, models = _check_type(document["target"], dict, "target"), _check_list_of_dicts(document["models"], "models")
        name = _check_type(target["name"], str, "name")
        toolchain = _check_type(document.get("toolchain", {}), dict, "toolchain")
        distributions = _check_dict_of_texts(toolchain.get("distributions", {}), "distributions")
        eps = tuple(_read_ep(ep, distributions) for ep in _check_list_of_dicts(target["eps"], "eps"))
        files = {_check_type(model["name"], str, "name"): path.parent / _check_relative_path(model["file"]) for model in models}
        listed = [
            (_locate(path.parent, item), item["role"])
            for item in _check_list_of_dicts(document.get("files", []), "files")
            if item["role"] in (*_NEEDED, _ADAPTER)
        ]
        needed = {file: role for file, role in listed if role != _ADAPTER}
        variant = Variant(
            manifest=path,
            group=_check_type(document["group"], str, "group"),
            target=name,
            eps=eps,
            session_options=_check_dict_of_texts(target["session_options"], "session_options"),
            share_weights=_check_type(document["share_weights"], bool, "share_weights"),
            several=len(models) > 1 or any("merged" in model for model in models),
            models=files,
            compatibility=_read_compatibility(models),
            files=tuple(needed),
            data=frozenset(file for file, role in needed.items() if role == _DATA),
            custom_ops=tuple(
                _read_custom_ops(item, distributions)
                for item in _check_list_of_dicts(document.get("custom_ops", []), "custom_ops")
            ),
            sdks={model["name"]: _read_sdks(model) for model in models},
            alone=_find_alone(models),
            run_options=_check_dict_of_texts(target.get("run_options", {}), "run_options"),
            data_folders=_find_data_folders(path.parent, document, files),
            adapters={file.name: file for file, role in listed if role == _ADAPTER},
            uncompiled=frozenset(model["name"] for model in models if model.get("compiled") is False),
            encrypted={
                path.parent / _check_relative_path(item["path"]): (item["path"], item["plain"]["sha256"])
                for item in _check_list_of_dicts(document.get("files", []), "files")
                if "plain" in item
            },
            key_id=document.get("encryption", {}).get("key_id"),
        )
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise OpenError("EPB632", f"the manifest {format_path(path)} is invalid: {type(error).__name__}: {error}") from error
    if not eps or not files or len(files) < len(models):
        raise OpenError(
            "EPB632", f"the manifest {format_path(path)} is invalid: it names no EP, no model, or two models with the same name"
        )
    return variant


def _find_alone(models: Iterable[Mapping[str, Any]]) -> frozenset[str]:
    """Return the names of the compiled models that share no weights. Models with one action key were compiled together."""
    keys = {model["name"]: model.get("action_key") for model in models if model.get("compiled", True)}
    counts = Counter(keys.values())
    return frozenset(name for name, key in keys.items() if counts[key] == 1) if len(counts) > 1 else frozenset()


def _read_sdks(model: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    nodes = _check_list_of_dicts(model.get("ep_context_nodes", []), "ep_context_nodes")
    return tuple((str(node.get("source")), str(node["ep_sdk_version"])) for node in nodes if node.get("ep_sdk_version"))


def _read_ep(ep: Mapping[str, Any], distributions: Mapping[str, str]) -> Ep:
    name = _check_type(ep["ep"], str, "ep")
    shipped = {PLUGINS[package][1]: package for package in distributions if PLUGINS.get(package, ("",))[0] == name}
    named = ep.get("module")
    module = next(iter(shipped), None) if named in (None, "") else _check_type(named, str, "module")
    package = shipped.get(module or "")
    device = _check_type(ep.get("device") or {}, dict, "device")
    return Ep(
        name=name,
        provider_options=_check_dict_of_texts(ep["provider_options"], "provider_options"),
        module=None if module == _BUILT_IN else module,
        package=f"{package}=={distributions[package]}" if package else module,
        device={
            **{part: _check_type(device[part], str, part) for part in ("type", "vendor") if device.get(part) is not None},
            "metadata": _check_dict_of_texts(device.get("metadata") or {}, "metadata"),
            "virtual": bool(device.get("virtual")),
        },
    )


def _read_custom_ops(listed: Mapping[str, Any], distributions: Mapping[str, str]) -> CustomOps:
    if "module" not in listed:
        return CustomOps(_check_type(listed["library"], str, "library"), None, None)
    module = _check_type(listed["module"], str, "module")
    # This is a guess, because a module's package may have another name.
    package = module.partition(".")[0].replace("_", "-").lower()
    return CustomOps(module, module, f"{package}=={distributions[package]}" if package in distributions else None)


def _check_type(value: Any, kind: type, key: str) -> Any:
    """Return a value of the manifest. Raises TypeError, which names `key`, if the value has the wrong type."""
    if not isinstance(value, kind):
        raise TypeError(f"{key} is {_quote(value)}")
    return value


def _check_list_of_dicts(value: Any, key: str) -> list[dict[str, Any]]:
    return [_check_type(item, dict, key) for item in _check_type(value, list, key)]


def _check_dict_of_texts(value: Any, key: str) -> dict[str, str]:
    for item in _check_type(value, dict, key).values():
        if isinstance(item, (dict, list, type(None))):
            raise TypeError(f"{key} has {_quote(item)}")
    return {name: str(item) for name, item in value.items()}


def _quote(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _MAX_QUOTE else f"{text[:_MAX_QUOTE]}…"


def _check_relative_path(file: Any) -> str:
    """Return a relative path from the manifest.

    Raises ValueError if the path could leave the manifest's folder, and TypeError if it is not a string.
    """
    windows = PureWindowsPath(_check_type(file, str, "file"))  # Windows rules also recognize absolute POSIX paths
    if windows.drive or windows.root or ".." in windows.parts or not windows.parts or "\0" in file:
        raise ValueError(f"{file!r} is not a path inside the manifest's folder")
    return str(file)


def _locate(folder: Path, item: Mapping[str, Any]) -> Path:
    """Return the path of a listed file. Raises ValueError if the path is neither in `folder` nor in a shared asset."""
    if "shared" in item:
        _, asset, name = _find_asset(folder, item)
        return asset / name
    return folder / _check_relative_path(item["path"])


def _find_data_folders(folder: Path, document: Mapping[str, Any], files: Mapping[str, Path]) -> dict[str, Path]:
    """Return the folder of the shared asset with a model's data, by model. Raises ValueError.

    If the data of one compiled model in a folder is shared, the data of all is. The data of uncompiled models is not.
    """
    assets = {
        home: asset for home, asset, _ in (_find_asset(folder, item) for item in document.get("files", []) if "shared" in item)
    }
    compiled = (model["name"] for model in document["models"] if model.get("compiled", True))
    return {name: assets[files[name].parent] for name in compiled if files[name].parent in assets}


def _find_asset(folder: Path, item: Mapping[str, Any]) -> tuple[Path, Path, str]:
    """Return the folder of the models that use a shared file, the folder of its asset, and its name there. Raises ValueError."""
    match = _SHARED.fullmatch(_check_type(item["shared"], str, "shared"))
    if match is None or item["role"] != _DATA:
        raise ValueError(f"{item['shared']!r} is not external data in a shared asset")
    up, place, name = match.groups()
    beside = _check_relative_path(item["path"])
    if not f"/{beside}".endswith(f"/{_check_relative_path(name)}"):
        raise ValueError(f"{beside!r} has another name in its shared asset")
    root = _ascend(folder, up.count("/"))
    asset = root / place
    if asset.exists() and (
        Path(os.path.realpath(asset)) != Path(os.path.realpath(root), place) or not (root / MANIFEST).is_file()
    ):
        raise ValueError(f"the shared asset {format_path(asset)} is a link, or it is not in a model package with a {MANIFEST}")
    return folder / beside.removesuffix(name), asset, name


def _ascend(folder: Path, levels: int) -> Path:
    """Return the folder `levels` above a folder. A link to a folder is in the parent folder of its target."""
    for _ in range(levels):
        if folder.is_symlink() or folder.name in ("", ".."):
            folder = Path(os.path.realpath(folder))
        folder = folder.parent
    return folder


def _read_compatibility(models: Iterable[Mapping[str, Any]]) -> dict[str, tuple[str, ...]]:
    texts_by_ep: dict[str, dict[str, None]] = {}
    for model in models:
        for ep, text in _check_type(model.get("compatibility", {}), dict, "compatibility").items():
            texts_by_ep.setdefault(ep, {})[_check_type(text, str, "compatibility")] = None
    return {ep: tuple(texts) for ep, texts in texts_by_ep.items()}


def select(variants: list[Variant], path: Path, group: str | None, target: str | None) -> list[Variant]:
    """Return the variants of one group, or only its variant for `target`.

    Raises OpenError if no variant matches, or if variants of several groups match.
    """
    groups = sorted({variant.group for variant in variants})
    if group is None and len(groups) > 1:
        raise OpenError(
            "EPB633",
            f"{format_path(path)} contains several groups: {', '.join(groups)}; select one with group=, or open its folder",
        )
    if group is not None and group not in groups:
        raise OpenError("EPB633", f"{format_path(path)} has no group '{group}'; available groups: {', '.join(groups)}")
    candidates = [variant for variant in variants if variant.group == (group or groups[0])]
    targets = sorted({variant.target for variant in candidates})
    if target is not None and target not in targets:
        raise OpenError(
            "EPB633", f"{format_path(path)} has no variant for the target '{target}'; available targets: {', '.join(targets)}"
        )
    return [variant for variant in candidates if target in (None, variant.target)]
