"""Selection of the variant and the devices that fit this machine."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any

from .contents import Contents
from .operators import NoLibrary, Places, find_libraries, is_file
from .plugins import JUDGE_NPUS_ONLY, SHARED_NOT_ON_CPU
from .variants import Ep, OpenError, Variant

if TYPE_CHECKING:
    from onnxruntime import OrtEpDevice

process_wide = threading.RLock()
"""Lock for state that plugin EPs keep for the whole process: registrations, and contexts that sessions share."""

_DEVICE_TYPES = ("NPU", "GPU", "CPU")
"""Device types in order of preference."""

_OPTIMAL, _RECOMPILE, _UNKNOWN, _UNSUPPORTED = range(4)
"""ONNX Runtime's verdicts on whether a device can run a compiled model, starting with the best."""
_VERDICTS = {"EP_SUPPORTED_OPTIMAL": _OPTIMAL, "EP_SUPPORTED_PREFER_RECOMPILATION": _RECOMPILE, "EP_UNSUPPORTED": _UNSUPPORTED}

_registered: dict[ModuleType, set[str]] = {}


@dataclass(frozen=True)
class Fit:
    """Variant that can be opened on this machine. A lower `rank` means a better fit."""

    verdict: int
    kind: int
    """Rank of the device type for the first EP."""
    variant: Variant
    devices: tuple[OrtEpDevice | None, ...]
    """Device of each EP; None for an EP that is selected by name."""
    libraries: tuple[str, ...]
    """Paths of the libraries with the variant's custom operators."""

    @property
    def rank(self) -> tuple[int, int]:
        return self.verdict, self.kind


class _Unfit(Exception):
    """Error for a variant that does not fit this machine. The text completes a sentence that begins with the variant's target."""


def choose(
    onnxruntime: ModuleType,
    variants: list[Variant],
    devices: Sequence[OrtEpDevice] | None,
    places: Places,
    contents: Contents,
) -> Fit:
    """Return the best fit. Raises OpenError if no variant fits, or if several variants may fit equally well."""
    fits, misfits = [], []
    for variant in variants:
        try:
            fits.append(_check_fit(onnxruntime, variant, devices, places, contents))
        except _Unfit as reason:
            misfits.append(f"{variant.target} {reason}")
    if not fits:
        what = variants[0].group if len(variants) > 1 else variants[0].manifest
        raise OpenError("EPB634", f"no variant of {what} fits this machine", *misfits)
    best = min(fits, key=lambda fit: fit.rank)  # of equal fits, the first in the order of paths
    equal = [fit.variant.target for fit in fits if fit.rank == best.rank]
    if best.verdict == _UNKNOWN and len(equal) > 1:
        text = f"ONNX Runtime does not know which variant fits this machine: {', '.join(equal)}"
        raise OpenError("EPB633", f"{text}; select one with target=, or open its folder")
    return best


def _check_fit(
    onnxruntime: ModuleType,
    variant: Variant,
    devices: Sequence[OrtEpDevice] | None,
    places: Places,
    contents: Contents,
) -> Fit:
    """Return the fit of a variant with its best devices. The best devices are chosen by ONNX Runtime's verdict, and then by type.

    Raises _Unfit.
    """
    for file in (*variant.models.values(), *variant.files):
        is_context = file in variant.files and file not in variant.data
        if is_context and file in contents and not is_file(file) and file not in variant.encrypted:
            raise _Unfit(
                f"has the context binary {file} only in memory, but EPs read it from a file; write it there, or embed it"
            )
        if file not in contents and not is_file(file):
            raise _Unfit(f"is missing its file {file}")
    try:
        libraries = find_libraries(variant.custom_ops, places)
    except NoLibrary as reason:
        raise _Unfit(str(reason)) from reason
    best = [_choose_device(onnxruntime, variant, ep, devices) for ep in variant.eps]
    verdicts, kinds, chosen = zip(*best, strict=True)
    # EPs without a compatibility string in the models, such as the CPU EP, are ignored.
    counted = [verdict for ep, verdict in zip(variant.eps, verdicts, strict=True) if ep.name in variant.compatibility]
    return Fit(max(counted, default=_UNKNOWN), kinds[0], variant, chosen, libraries)


def _choose_device(
    onnxruntime: ModuleType, variant: Variant, ep: Ep, devices: Sequence[OrtEpDevice] | None
) -> tuple[int, int, OrtEpDevice | None]:
    """Return the verdict on the best device of an EP, the rank of the device's type, and the device itself. Raises _Unfit."""
    offered = _find_devices(onnxruntime, ep, devices)
    if not offered:
        # A registered plugin EP is among the available providers even if it has no device, so it is excluded here.
        if (
            ep.module is None
            and ep.name in onnxruntime.get_available_providers()
            and ep.name not in _registered.get(onnxruntime, ())
        ):
            return _UNKNOWN, len(_DEVICE_TYPES), None
        if ep.module is None:
            raise _Unfit(f"needs {ep.name}, which onnxruntime {onnxruntime.__version__} does not provide on this machine")
        raise _Unfit(
            f"needs a device for {ep.name}, but none is available"
            + (" among the devices in devices=" if devices is not None else " on this machine")
        )
    suitable = [device for device in offered if _matches(device, ep.device)]
    if not suitable:
        available = ", ".join(map(_describe, offered))
        raise _Unfit(f"needs {ep.name} with a device that has {_describe_request(ep.device)}; available devices: {available}")
    if variant.share_weights and variant.several and ep.name in SHARED_NOT_ON_CPU:
        suitable = [device for device in suitable if _get_type(device) != "CPU"]
        if not suitable:
            raise _Unfit(f"has models with shared weights, and such models {SHARED_NOT_ON_CPU[ep.name]}")
    ranked = [(_judge_device(onnxruntime, variant, ep, device), _rank_type(device), device) for device in suitable]
    # If any device has a verdict, all devices without a verdict are ignored: they must not win over an unsupported device.
    judged = [item for item in ranked if item[0] != _UNKNOWN]
    best = min(judged or ranked, key=lambda item: item[:2])
    if best[0] == _UNSUPPORTED:
        refusing, texts = ", ".join(_describe(item[2]) for item in judged), ", ".join(variant.compatibility[ep.name])
        raise _Unfit(
            f"was compiled for other devices: {ep.name} does not support the compiled models on {refusing} (compatibility: {texts})"
        )
    return best


def _find_devices(onnxruntime: ModuleType, ep: Ep, devices: Sequence[OrtEpDevice] | None) -> list[OrtEpDevice]:
    """Return the devices of an EP among `devices`. Raises _Unfit.

    If `devices` is None, return all devices of the EP, and register its plugin library if necessary.
    """
    if devices is not None:
        return [device for device in devices if device.ep_name == ep.name]
    with process_wide:
        offered = [device for device in onnxruntime.get_ep_devices() if device.ep_name == ep.name]
        if offered or ep.module is None or ep.name in _registered.get(onnxruntime, ()):
            return offered
        try:
            library = importlib.import_module(ep.module).get_library_path()
        except Exception as error:  # a module may raise anything while it is imported
            raise _Unfit(f"needs {ep.name} from the package {ep.package}, which cannot be imported: {error}") from error
        try:
            # The registered name becomes the EP's name, which compiled models refer to.
            onnxruntime.register_execution_provider_library(ep.name, str(library))
        except Exception as error:  # ONNX Runtime's exceptions have no common base class
            raise _Unfit(f"needs {ep.name}, whose library cannot be registered: {error}") from error
        _registered.setdefault(onnxruntime, set()).add(ep.name)
        return [device for device in onnxruntime.get_ep_devices() if device.ep_name == ep.name]


def _judge_device(onnxruntime: ModuleType, variant: Variant, ep: Ep, device: OrtEpDevice) -> int:
    """Return ONNX Runtime's verdict on whether a device can run a variant's models. If the models' verdicts differ, return the worst."""
    texts = variant.compatibility.get(ep.name, ())
    judge = _find_compatibility_function(onnxruntime)
    if judge is None or not texts or (ep.name in JUDGE_NPUS_ONLY and _get_type(device) != "NPU"):
        return _UNKNOWN
    verdicts = []
    for text in texts:
        try:
            verdicts.append(_VERDICTS.get(judge([device], text).name, _UNKNOWN))
        except Exception:  # noqa: BLE001 - an EP without a verdict may raise anything
            verdicts.append(_UNKNOWN)
    return max(verdicts)


def _find_compatibility_function(onnxruntime: ModuleType) -> Callable[..., Any] | None:
    """Return ONNX Runtime's function for verdicts on compiled models, or None if this version has none.

    Versions up to 1.31 have the function, but do not re-export it.
    """
    for place in (onnxruntime, getattr(getattr(onnxruntime, "capi", None), "onnxruntime_pybind11_state", None)):
        function: Callable[..., Any] | None = getattr(place, "get_model_compatibility_for_ep_devices", None)
        if function is not None:
            return function
    return None


def _matches(device: OrtEpDevice, request: Mapping[str, Any]) -> bool:
    """Return whether a device matches the recipe's request.

    Metadata of a virtual device is not compared, because the real device has other metadata.
    """
    if request.get("type") and _get_type(device) != str(request["type"]).upper():
        return False
    if request.get("vendor") and device.device.vendor.lower() != str(request["vendor"]).lower():
        return False
    if request.get("virtual"):
        return True
    metadata = {**dict(device.device.metadata), **dict(device.ep_metadata)}
    return all(metadata.get(name) == value for name, value in (request.get("metadata") or {}).items())


def _describe_request(request: Mapping[str, Any]) -> str:
    parts = {**{name: request.get(name) for name in ("type", "vendor")}, **(request.get("metadata") or {})}
    return ", ".join(f"{name} {value}" for name, value in parts.items() if value)


def _describe(device: OrtEpDevice) -> str:
    return f"{_get_type(device)} from {device.device.vendor}"


def _get_type(device: OrtEpDevice) -> str:
    return str(device.device.type.name).upper()


def _rank_type(device: OrtEpDevice) -> int:
    kind = _get_type(device)
    return _DEVICE_TYPES.index(kind) if kind in _DEVICE_TYPES else len(_DEVICE_TYPES)
