"""Group of models with open sessions."""

from __future__ import annotations

import importlib
import os
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING

from .contents import Content, Contents, check_files
from .decryption import Decryption, read_key
from .devices import Fit, choose, process_wide
from .operators import Places, register
from .sdks import describe_newer_sdk
from .variants import OpenError, Variant, find_variants, format_path, read_variants, select

if TYPE_CHECKING:
    from onnxruntime import InferenceSession, OrtEpDevice, RunOptions, SessionOptions


class Group(Mapping[str, "InferenceSession"]):
    """Open sessions of a group, by model name, in the order in which they were opened.

    Close the group with `close`, or use it as a context manager. `variant` is the selected variant. Do not keep a session longer
    than its group, because a session closes only when it is no longer referenced.
    """

    def __init__(self, variant: Variant, sessions: dict[str, InferenceSession]) -> None:
        self.variant = variant
        self._sessions = sessions
        self._closed = False

    def __getitem__(self, model: str) -> InferenceSession:
        if self._closed:
            raise ValueError(f"the group {self.variant.group} is closed")
        if model not in self._sessions:
            raise KeyError(f"{model} (the group {self.variant.group} has: {', '.join(self._sessions)})")
        return self._sessions[model]

    def __iter__(self) -> Iterator[str]:
        return iter(self._sessions)

    def __len__(self) -> int:
        return len(self._sessions)

    def __enter__(self) -> Group:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def run_options(self, *adapters: str) -> RunOptions:
        """Return new run options with the variant's entries and with active LoRA adapters. `adapters` are names in `variant.adapters`.

        Pass the result as the last argument of `session.run`. Raises KeyError for an unknown adapter, and OpenError if an adapter
        cannot be read.
        """
        onnxruntime = importlib.import_module("onnxruntime")
        # ONNX Runtime keeps no reference to active adapters, and computes without an adapter that was freed.
        options = type("RunOptions", (onnxruntime.RunOptions,), {})()
        options.adapters = [self._load_adapter(onnxruntime, name) for name in adapters]
        for adapter in options.adapters:
            options.add_active_adapter(adapter)
        for key, value in self.variant.run_options.items():
            options.add_run_config_entry(key, value)
        return options

    def _load_adapter(self, onnxruntime: ModuleType, name: str) -> object:
        found = self.variant.adapters
        if name not in found:
            raise KeyError(f"{name} (the group {self.variant.group} has these adapters: {', '.join(found) or 'none'})")
        adapter = onnxruntime.LoraAdapter()
        try:
            adapter.Load(str(found[name]))
        except Exception as error:  # ONNX Runtime's exceptions have no common base class
            raise OpenError("EPB636", f"ONNX Runtime cannot read the adapter {found[name]}: {error}") from error
        return adapter

    def close(self) -> None:
        """Close the sessions in reverse order. A session that is still referenced stays open, and causes a ResourceWarning."""
        self._closed = True
        with process_wide:
            for model in _close(self._sessions):
                message = (
                    f"the session of the model {model} is still referenced, so it stays open after its group "
                    f"{self.variant.group} is closed"
                )
                warnings.warn(message, ResourceWarning, stacklevel=2)


def open_group(  # noqa: PLR0913 - these are options of a public function
    path: str | os.PathLike[str],
    *,
    group: str | None = None,
    target: str | None = None,
    devices: Sequence[OrtEpDevice] | None = None,
    configure: Callable[[str, SessionOptions], None] | None = None,
    custom_ops: Places | None = None,
    files: Mapping[str, Content] | None = None,
    decrypt: bytes | str | None = None,
) -> Group:
    """Open the group at `path`: a manifest, a folder with one manifest, or a folder of variants.

    A folder of variants has the manifest of each variant in a subfolder.

    `group` and `target` select a group and a target if the folder has several. `devices` restricts the choice to some devices of
    `onnxruntime.get_ep_devices()`. By default, all devices are candidates, after the plugin EPs of the variants have been
    registered. `configure` is called with each model's name and session options before its session is created. The function can set the
    application's own options, such as threads, logging and profiling. `custom_ops` maps names of custom operator libraries in the
    manifest to their paths on this machine. Libraries that a Python package ships are found automatically. `files` has the content of
    files in memory, by their paths relative to the folder at `path`: manifests, models and external data. All other files are read from
    the disk. EPs read context binaries from the disk, unless the models embed their contexts. `decrypt` is the key of encrypted files: 32
    bytes, or their text in hex or Base64. Files are decrypted only in memory.

    Raises OpenError if no variant fits this machine, if several variants may fit equally well, if a session cannot be created,
    or if an argument is invalid. Errors of `configure` are raised unchanged.
    """
    _check_arguments(path, group, target, devices, configure)
    check_files(files)
    places, key = _check_places(custom_ops), read_key(decrypt)
    onnxruntime = _import_onnxruntime()
    contents = Contents(Path(path), files)
    manifests = {manifest: bytes(contents[manifest]) for manifest in contents.list_manifests()}
    variants = select(read_variants(manifests) or find_variants(Path(path)), Path(path), group, target)
    fit = choose(onnxruntime, variants, devices, places, contents)
    decryption = Decryption(fit.variant, contents, key)
    sessions: dict[str, InferenceSession] = {}
    with process_wide:
        try:
            for model in fit.variant.models:
                sessions[model] = _open_session(onnxruntime, fit, model, configure, contents, decryption)
        except BaseException:
            _close(sessions)
            raise
    return Group(fit.variant, sessions)


def _check_arguments(path: object, group: object, target: object, devices: object, configure: object) -> None:
    """Raise OpenError (EPB654) if an argument has the wrong type."""
    if not _is_path(path):
        raise OpenError("EPB654", f"path must be a string or a path, not {path!r}")
    for name, value in (("group", group), ("target", target)):
        if not isinstance(value, (str, type(None))):
            raise OpenError("EPB654", f"{name} must be a name, not {value!r}")
    if configure is not None and not callable(configure):
        raise OpenError(
            "EPB654", f"configure must be a function that takes a model's name and its session options, not {configure!r}"
        )
    if devices is None:
        return
    given = devices if isinstance(devices, Sequence) and not isinstance(devices, (str, bytes)) else [devices]
    for device in given:
        if not (hasattr(device, "ep_name") and hasattr(device, "device")):
            raise OpenError("EPB654", f"devices must be a list of devices from onnxruntime.get_ep_devices(), not {device!r}")
    if given is not devices:
        raise OpenError("EPB654", f"devices must be a list, not {devices!r}")


def _is_path(value: object) -> bool:
    return isinstance(value, (str, os.PathLike)) and isinstance(os.fspath(value), str)


def _check_places(custom_ops: object) -> Places:
    """Return the argument `custom_ops`. Raises OpenError (EPB654) if it does not map names to paths."""
    if custom_ops is None:
        return {}
    if not isinstance(custom_ops, Mapping):
        raise OpenError("EPB654", f"custom_ops must be a mapping from library names to paths, not {custom_ops!r}")
    for name, path in custom_ops.items():
        if not _is_path(path):
            raise OpenError("EPB654", f"custom_ops must map {name!r} to a string or a path, not {path!r}")
    return custom_ops


def _import_onnxruntime() -> ModuleType:
    try:
        onnxruntime = importlib.import_module("onnxruntime")
    except Exception as error:  # a broken installation raises more than ImportError
        raise OpenError("EPB635", f"onnxruntime cannot be imported: {error}") from error
    if not hasattr(onnxruntime, "register_execution_provider_library"):
        raise OpenError("EPB635", f"onnxruntime {onnxruntime.__version__} is too old: it does not support plugin EPs")
    return onnxruntime


def _open_session(
    onnxruntime: ModuleType,
    fit: Fit,
    model: str,
    configure: Callable[[str, SessionOptions], None] | None,
    contents: Contents,
    decryption: Decryption,
) -> InferenceSession:
    variant, file = fit.variant, fit.variant.models[model]
    options = onnxruntime.SessionOptions()
    register(options, variant.custom_ops, fit.libraries)
    if configure is not None:
        configure(model, options)
    is_compiled = model not in variant.uncompiled
    newer = describe_newer_sdk(variant, model)
    if newer is not None:
        warnings.warn(newer, RuntimeWarning, stacklevel=3)  # before the session, because an EP may crash
    try:
        for ep, device in zip(variant.eps, fit.devices, strict=True) if is_compiled else ():
            if device is None:
                options.add_provider(ep.name, dict(ep.provider_options))
            else:
                options.add_provider_for_devices([device], dict(ep.provider_options))
        for key, value in variant.session_options.items() if is_compiled else ():
            options.add_session_config_entry(key, value)
        if variant.share_weights and is_compiled and model not in variant.alone:
            options.add_session_config_entry("ep.share_ep_contexts", "1")
        if is_compiled:
            decryption.register(options, file)
        source = _pass_contents(options, variant, model, contents, decryption)
        # The fallback is disabled: it prints, tries the CPU EP, which cannot run compiled models, and hides the first error.
        return onnxruntime.InferenceSession(source, sess_options=options, enable_fallback=0)
    except OpenError:
        raise
    except Exception as error:  # ONNX Runtime's exceptions have no common base class
        decryption.raise_failure()
        details = [newer] if newer is not None else []
        raise OpenError(
            "EPB636", f"ONNX Runtime cannot open {format_path(file)} for {variant.target}: {error}", *details
        ) from error


def _pass_contents(
    options: SessionOptions, variant: Variant, model: str, contents: Contents, decryption: Decryption
) -> str | bytes:
    """Return a model's path, or its content if it is in memory. Add the options with which ONNX Runtime then finds the other files."""
    # ONNX Runtime keeps no reference to the data, so `contents` must live until the session is created.
    file = variant.models[model]
    folder = variant.data_folders.get(model, file.parent)
    named = {data.relative_to(folder).as_posix(): data for data in sorted(variant.data) if data.is_relative_to(folder)}
    held = {name: contents[data] for name, data in named.items() if data in contents}
    if held:
        options.add_external_initializers_from_files_in_memory(
            list(held), list(held.values()), [len(data) for data in held.values()]
        )
    in_memory = file in contents or file in decryption
    if in_memory or folder != file.parent:
        options.add_session_config_entry("ep.context_file_path", str(file.absolute()))
        if len(held) < len(named):
            options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(folder.absolute()))
    if not in_memory:
        return str(file)
    if file in decryption:
        return decryption.read(file)
    content = contents[file]
    return content if isinstance(content, bytes) else bytes(content)


def _close(sessions: dict[str, InferenceSession]) -> list[str]:
    """Release the sessions in reverse order. Return the model names of sessions that are still referenced."""
    held = []
    while sessions:
        model, session = sessions.popitem()
        alive = weakref.ref(session)
        del session
        if alive() is not None:
            held.append(model)
    return held
