"""Configurations of Microsoft Olive.

Olive compiles in the pass EPContextBinaryGenerator. Sources: olive/workflows/run/config.py and
olive/passes/onnx/context_binary.py (commit ee6f40fbefcc).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from epbuild.commands.importing.build import (
    DecoderPasses,
    ImportedBuild,
    as_mapping,
    as_sequence,
    get_ep_start,
    make_import_error,
)
from epbuild.commands.importing.decoders import read_assignments
from epbuild.commands.init.choices import list_starter_kinds

TOOL = "Olive"
_OWN_EP = "QNNExecutionProvider"
"""The only EP that the compiling pass supports."""
_COMPILER = "epcontextbinarygenerator"
_LEVELS = {0: "disable_all", 1: "basic", 2: "extended", 3: "layout", 99: "all"}
"""Names of the values of onnxruntime.GraphOptimizationLevel."""
_PASSES = {
    "composeonnxmodels": (
        "merging of compiled parts",
        "onnxruntime-genai runs parts in order, as a group's `genai` lists them. To merge parts into one model, use `merge`.",
    ),
    "capturesplitinfo": ("without SplitModel, it splits nothing", "To split a model, set its `split`."),
    "onnxstaticquantization": (
        "quantization with a calibration script",
        "See `prepare: quantize`, or use the model that Olive quantized.",
    ),
    "onnxfloattofloat16": ("half precision", "See `prepare: float16`, or use the model that Olive converted."),
    "addolivemetadata": ("Olive's metadata", "The manifest records the sources of an artifact."),
}
"""Purpose and hint, by type of the pass."""
_RUN_FIRST = "Run Olive up to this pass, and set --model to its result."
_OTHER_KEYS = {
    "data_configs": (
        "data for Olive's own passes and evaluators",
        "To compare numbers on your own samples, use a group's `verify`.",
    ),
    "evaluators": (
        "task metrics that need Olive's scripts",
        "To compare numbers with those of the source model, use a group's `verify`.",
    ),
    "evaluator": ("task metrics that need Olive's scripts", ""),
    "builds": ("only the unnamed workflow is imported", "Import the configuration of each workflow separately."),
    "output_dir": ("a recipe sets the folder of each output", "Set the output's `path`, relative to the recipe's folder."),
    "packaging_config": ("Olive's own packages", "See the layouts of `outputs`."),
    "search_strategy": ("epbuild builds the given configuration and does not search for a better one", ""),
    "auto_optimizer_config": ("epbuild builds the given configuration and does not search for a better one", ""),
}
_IGNORED_KEYS = {
    *("input_model", "systems", "passes", "target", "host", "cache_dir", "clean_cache", "evaluate_input_model", "no_artifacts"),
    *(
        "log_severity_level",
        "log_to_file",
        "ort_log_severity_level",
        "ort_py_log_severity_level",
        "workflow_id",
        "plot_pareto_frontier",
    ),
}
"""Keys that are skipped without a message: they are imported elsewhere or affect only Olive itself."""


def is_configuration(document: Mapping[str, Any]) -> bool:
    """Return whether a document is a configuration of Olive."""
    return "passes" in document or "input_model" in document


def read_configuration(document: Mapping[str, Any], path: Path) -> ImportedBuild:
    """Return the build that a configuration describes. Raises PlanError if nothing is compiled."""
    passes = dict(_list_passes(document))
    found = [name for name, (kind, _) in passes.items() if kind.lower() == _COMPILER]
    if not found:
        named = ", ".join(kind for kind, _ in passes.values()) or "none"
        raise make_import_error(f"the pass EPContextBinaryGenerator, which compiles for an EP, is missing; passes: {named}", path)
    ep, device = _find_accelerator(document)
    known = any(kind.entry.ep == ep for kind in list_starter_kinds().values())
    build = ImportedBuild(TOOL, get_ep_start(ep if known else _OWN_EP, device, path))
    if not known:
        device = "npu"
        build.skip_setting(
            f"the target's {ep}", f"the pass only compiles with {_OWN_EP}", "If another EP is intended, change the recipe's `ep`."
        )
    build.device = "gpu" if device == "gpu" else None
    _read_pass(build, passes[found[0]][1])
    _read_model(build, _read_settings(document.get("input_model")))
    build.decoder, imported = _read_decoder_passes(build, passes)
    before = True
    for name, (kind, _) in passes.items():
        if name == found[0]:
            before = False
            continue
        if name in imported:
            continue
        why, hint = _PASSES.get(kind.lower(), ("a change to the source model" if before else "a change to the result", ""))
        build.skip_setting(
            f"pass {name} ({kind})", f"epbuild does not run this pass ({why})", hint or (_RUN_FIRST if before else "")
        )
    _read_systems(build, document)
    for key in document.keys() - _IGNORED_KEYS:
        why, hint = _OTHER_KEYS.get(key, ("recipes have no equivalent", ""))
        build.skip_setting(key, why, hint)
    build.left.sort(key=lambda item: list(document).index(item.what) if item.what in document else -1)
    return build


def _list_passes(document: Mapping[str, Any]) -> Iterator[tuple[str, tuple[str, Mapping[str, Any]]]]:
    """Yield the name, the type and the settings of each pass."""
    for name, value in as_mapping(document.get("passes")).items():
        settings = _read_settings(value[0] if isinstance(value, list) and value else value)
        yield name, (str(settings.pop("type", "")), settings)


def _read_settings(value: object) -> dict[str, Any]:
    """Return the settings of a pass, a system or a model. Older configurations have the settings in `config`."""
    settings = dict(as_mapping(value))
    older = as_mapping(settings.pop("config", None))
    return {**settings, **older}


def _find_accelerator(document: Mapping[str, Any]) -> tuple[str, str | None]:
    """Return the EP and the device of a configuration's target. Without a target, use the first system that has an EP."""
    systems = as_mapping(document.get("systems"))
    target = document.get("target")
    chosen = (
        [target] if isinstance(target, Mapping) else [systems[str(target)]] if str(target) in systems else list(systems.values())
    )
    for system in chosen:
        for accelerator in as_sequence(_read_settings(system).get("accelerators")):
            eps = as_sequence(as_mapping(accelerator).get("execution_providers"))
            first = eps[0] if eps else ""
            name = first[0] if isinstance(first, list) and first else first
            if name:
                device = as_mapping(accelerator).get("device")
                return str(name), str(device).lower() if device else "npu"
    return _OWN_EP, "npu"


def _read_pass(build: ImportedBuild, settings: Mapping[str, Any]) -> None:
    if build.device == "gpu":
        build.provider_options["backend_type"] = "gpu"
    build.share_weights = bool(settings.get("weight_sharing"))
    if settings.get("embed_context") and build.share_weights:
        build.skip_setting("embed_context", "an embedded context cannot share weights, and Olive does not embed it either")
    elif settings.get("embed_context"):
        build.compile["embed"] = "true"
    build.fallback_nodes = "0" if settings.get("disable_cpu_fallback") else "any"
    build.add_options(as_mapping(settings.get("provider_options")), "provider_options")
    session = dict(as_mapping(settings.get("session_options")))
    build.add_session_keys(as_mapping(session.pop("extra_session_config", None)), "extra_session_config")
    level = session.pop("graph_optimization_level", None)
    if isinstance(level, int) and level in _LEVELS:
        build.compile["graph_optimization_level"] = _LEVELS[level]
    elif level is not None:
        build.skip_setting(
            f"graph_optimization_level {level}",
            "ONNX Runtime does not have this level",
            "See `compile.graph_optimization_level`.",
        )
    for name, value in session.items():
        build.skip_setting(f"session_options {name}={value}", "affects only the compiling session, not the result")
    if settings.get("update_genai_config"):
        build.skip_setting("update_genai_config", "the recipe itself lists the models of a pipeline", "See a group's `genai`.")
    known = {
        "weight_sharing",
        "embed_context",
        "disable_cpu_fallback",
        "provider_options",
        "session_options",
        "update_genai_config",
    }
    for name in settings.keys() - known:
        build.skip_setting(f"EPContextBinaryGenerator {name}={settings[name]}", "unknown option of the pass")


def _read_decoder_passes(
    build: ImportedBuild, passes: Mapping[str, tuple[str, Mapping[str, Any]]]
) -> tuple[DecoderPasses | None, set[str]]:
    """Return the passes that split a decoder and that fix its sizes, and the names of these passes."""
    named = {kind.lower(): (name, f"{name} ({kind})", settings) for name, (kind, settings) in passes.items()}
    decoder, imported = DecoderPasses(), set()
    if "splitmodel" in named:
        name, shown, settings = named["splitmodel"]
        info, _, captured = named.get("capturesplitinfo", ("", "", {}))
        decoder = DecoderPasses(
            shown,
            parts=_read_count(captured.get("num_splits")) if captured.get("block_to_split") is None else 0,
            has_ends=bool(captured.get("unique_embeds_lm_head_splits")),
            assignments=read_assignments(settings.get("split_assignments")),
        )
        imported |= {name, info}
    if "staticllm" in named:
        name, shown, settings = named["staticllm"]
        tokens = _read_count(settings.get("context_length", 64))
        batch = _read_count(settings.get("batch_size", 1))
        if tokens and batch:
            is_single = build.device == "gpu" and settings.get("prefill_decode_models") is False
            phases = {"decoder": tokens} if is_single else {"prefill": tokens, "decode": 1} if tokens > 1 else {"decode": 1}
            decoder = decoder._replace(static=shown, batch=batch, tokens=phases)
            imported.add(name)
        if options := settings.get("group_session_options"):
            why = "they apply at run time"
            build.skip_setting(
                f"group_session_options {options}", why, "Set them in genai_config.json, and see a group's `genai`."
            )
    return (decoder if imported else None), imported


def _read_count(value: object) -> int:
    """Return a positive integer, or 0 for another value."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


def _read_model(build: ImportedBuild, settings: Mapping[str, Any]) -> None:
    kind = str(settings.get("type") or "")
    components = [_read_settings(one) for one in as_sequence(settings.get("model_components"))]
    if kind.lower() == "compositemodel" and components:
        build.models = [str(one.get("model_path") or "") for one in components]
    elif kind.lower() == "onnxmodel" and settings.get("model_path"):
        path = Path(str(settings["model_path"]), str(settings.get("onnx_file_name") or ""))
        build.models = [str(path)]
    else:
        what = f"input_model {kind} {settings.get('model_path') or ''}".strip()
        build.skip_setting(
            what, "exports are not imported", "Set --model to the model that Olive exported, or export the model in its `make`."
        )


def _read_systems(build: ImportedBuild, document: Mapping[str, Any]) -> None:
    for name, system in as_mapping(document.get("systems")).items():
        config = _read_settings(system)
        if place := config.get("python_environment_path"):
            why = "epbuild creates its own environment with the recipe's packages"
            build.skip_setting(
                f"system {name}: {place}", why, "To use an existing environment, set the toolchain's `interpreter`."
            )
        elif str(config.get("type") or "LocalSystem") not in ("LocalSystem", "PythonEnvironment"):
            build.skip_setting(
                f"system {name} ({config['type']})",
                "epbuild builds on this machine or on workers",
                "See docs/guides/cluster.md.",
            )
