"""Configurations of `winml` (microsoft/winml-cli): their section `compile`.

Sources (commit 0876e5ae1c98): src/winml/modelkit/compiler/configs.py for the keys of `compile`, as the program reads
them, and docs/reference/index.md for the keys of `compile.ep_config`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from epbuild.commands.importing.build import ImportedBuild, as_mapping, as_sequence, get_ep_start, make_import_error

TOOL = "winml"
_EPS = {
    "qnn": "QNNExecutionProvider",
    "openvino": "OpenVINOExecutionProvider",
    "vitisai": "VitisAIExecutionProvider",
    "nvtensorrtrtx": "NvTensorRTRTXExecutionProvider",
    "tensorrt": "TensorrtExecutionProvider",
    "cpu": "CPUExecutionProvider",
    "cuda": "CUDAExecutionProvider",
    "dml": "DmlExecutionProvider",
    "migraphx": "MIGraphXExecutionProvider",
}
_SECTIONS = {
    "loader": (
        "exports are not imported",
        "Set --model to the model that `winml export` wrote, or export the model in its `make`.",
    ),
    "optim": (
        "epbuild does not run winml's rewrites of the graph",
        "Set --model to the model that `winml optimize` wrote, or see `prepare`.",
    ),
    "quant": (
        "epbuild does not run winml's quantization",
        "Set --model to the model that `winml quantize` wrote, or see `prepare: quantize`.",
    ),
    "eval": ("task metrics that need winml", "To compare numbers with those of the source model, use a group's `verify`."),
}
_COMPILE = {
    *("execution_provider", "provider", "provider_options", "provider_option_file_keys", "enable_ep_context", "embed_context"),
    *("device", "ep_device", "compiler", "qnn_sdk_root", "validate", "verbose", "ep_config"),
}


def is_configuration(document: Mapping[str, Any]) -> bool:
    """Return whether a document is a configuration of winml."""
    return not document.keys().isdisjoint({"compile", "loader", "optim", "quant", "export"})


def read_configuration(document: Mapping[str, Any], path: Path, ep: str | None) -> ImportedBuild:
    """Return the build that a configuration describes. `ep` is the EP on the command line. Raises PlanError if nothing is compiled."""
    section = document.get("compile")
    settings = {**as_mapping(section), **as_mapping(as_mapping(section).get("ep_config"))}
    named = ep or str(
        settings.get("execution_provider") or settings.get("provider") or as_mapping(settings.get("ep_device")).get("ep") or ""
    )
    if not named:
        why = "the section `compile` is missing or null" if section is None else "winml chooses an EP that the machine supports"
        raise make_import_error(f"the configuration does not name the EP to compile for: {why}", path, "Name the EP with --ep.")
    if settings.get("enable_ep_context") is False and ep is None:
        raise make_import_error(
            "the configuration does not compile ahead of time: enable_ep_context is false",
            path,
            "To compile anyway, name the EP with --ep.",
        )
    device = str(settings.get("device") or as_mapping(settings.get("ep_device")).get("device") or "auto").lower()
    build = ImportedBuild(TOOL, get_ep_start(_EPS.get(named.lower(), named), device, path))
    _read_compile(build, settings, device)
    _read_export(build, as_mapping(document.get("export")))
    for name, (why, hint) in _SECTIONS.items():
        if document.get(name):
            build.skip_setting(name, why, hint)
    for name in document.keys() - {*_SECTIONS, "compile", "export", "auto"}:
        build.skip_setting(name, "recipes have no equivalent")
    return build


def _read_compile(build: ImportedBuild, settings: Mapping[str, Any], device: str) -> None:
    options = dict(as_mapping(settings.get("provider_options")))
    if build.kind.start.option != "device_type" and str(options.get("device_type") or "").lower() == device:
        del options["device_type"]  # winml uses this option only to distinguish devices in its cache.
    if build.kind.start.name == "qnn" and device in ("gpu", "cpu"):
        build.provider_options["backend_type"] = device
    elif build.kind.start.option == "device_type" and device in ("gpu", "cpu", "npu"):
        build.provider_options["device_type"] = device.upper()
    build.add_options(options, "provider_options")
    if settings.get("embed_context"):
        build.compile["embed"] = "true"
    if settings.get("validate", True):
        build.skip_setting("validate", "recipes compare numbers instead", "Set the group's `verify: true`.")
    if str(settings.get("compiler") or "ort") != "ort":
        build.skip_setting(
            f"compiler {settings['compiler']}",
            "epbuild compiles with ONNX Runtime",
            "A model that another tool compiled cannot be a source.",
        )
    if settings.get("qnn_sdk_root"):
        build.skip_setting(
            f"qnn_sdk_root {settings['qnn_sdk_root']}",
            "the compiler is part of the EP's package",
            "Pin the package's release in `packages`.",
        )
    for name in settings.keys() - _COMPILE:
        build.skip_setting(f"compile {name}={settings[name]}", "unknown key of winml")


def _read_export(build: ImportedBuild, export: Mapping[str, Any]) -> None:
    """Read the sizes of inputs from the section `export`. Its other settings do not affect compiles."""
    sizes = {}
    for tensor in as_sequence(export.get("input_tensors")):
        shape = as_mapping(tensor).get("shape")
        if isinstance(shape, list) and shape and all(isinstance(size, int) and size > 0 for size in shape):
            sizes[str(tensor.get("name"))] = tuple(shape)
    build.sizes = sizes
    if export:
        build.skip_setting(
            "export",
            "exports are not imported",
            "Set --model to the model that `winml export` wrote, or export the model in its `make`.",
        )
