"""Command lines of ONNX Runtime's `ep_weight_sharing_ctx_gen`.

The syntax follows the tool's parser (onnxruntime/test/ep_weight_sharing_ctx_gen/command_args_parser.cc, commit 4448f6b7e7ac).
Options precede the models. A space between an option and its value is optional. Pairs are `key|value`, separated by spaces.
"""

from __future__ import annotations

import getopt
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from epbuild.commands.importing.build import ImportedBuild, as_mapping, get_ep_start, make_import_error, parse_json_text
from epbuild.core.safepath import read_regular

TOOL = "ep_weight_sharing_ctx_gen"
_EPS = {
    "qnn": "QNNExecutionProvider",
    "tensorrt": "TensorrtExecutionProvider",
    "openvino": "OpenVINOExecutionProvider",
    "vitisai": "VitisAIExecutionProvider",
}
_LIBRARIES = {
    r"qnn": "QNNExecutionProvider",
    r"openvino": "OpenVINOExecutionProvider",
    r"tensorrt.?rtx|trtrtx": "NvTensorRTRTXExecutionProvider",
    r"vitisai": "VitisAIExecutionProvider",
}
"""EPs by patterns that match the file names of their plugin libraries."""
_LEVEL = "graph optimization level"


def is_command(words: Sequence[str]) -> bool:
    """Return whether a command line calls the tool."""
    name = re.split(r"[\\/]", words[0])[-1].lower() if words else ""
    return name.removesuffix(".exe") == TOOL


def read_command(words: Sequence[str]) -> ImportedBuild:
    """Return the build that a command line describes. Raises PlanError for a command line that the tool itself rejects."""
    try:
        options, rest = getopt.getopt(list(words[1:]), "e:p:o:u:i:C:vh")
    except getopt.GetoptError as error:
        raise make_import_error(f"{TOOL} does not accept this command line: {error}", TOOL) from error
    if not rest or not rest[0]:
        raise make_import_error(
            "the command line does not name any models", TOOL, "Add the models at the end, separated by commas."
        )
    unknown = next((flag for flag, _ in options if flag in ("-o", "-u", "-h")), None)
    if unknown is not None:
        raise make_import_error(f"with '{unknown}', {TOOL} shows its help and builds nothing", TOOL)
    build = _start_build(dict(options))
    build.models = rest[0].split(",")
    build.share_weights = len(build.models) > 1
    for flag, value in options:
        if flag == "-i" and not any(flag == "-p" for flag, _ in options):
            build.add_options(dict(_parse_pairs(flag, value)), "-i")
        elif flag == "-i":
            build.skip_setting(
                f"-i {value}", "the tool passes only the options of the -p file to a plugin EP", "Add the options to the recipe."
            )
        elif flag == "-C":
            build.add_session_keys(dict(_parse_pairs(flag, value)), "-C")
        elif flag == "-v":
            build.skip_setting("-v", "the EP's log is always kept", "Print it with `epbuild log STEP`.")
    for word in rest[1:]:
        build.skip_setting(
            word, "the tool reads only the first list of models", "To build these models too, add them to the recipe."
        )
    build.skip_setting(
        _LEVEL,
        "the tool uses ONNX Runtime's default, `all`; epbuild uses the level that suits the EP",
        "For the tool's level, set the group's `compile: {graph_optimization_level: all}`.",
    )
    build.skip_setting(
        "the location of the outputs",
        "the tool writes outputs beside its models",
        "epbuild uses the same file names. Set the folder with the output's `path`.",
    )
    return build


def _start_build(options: Mapping[str, str]) -> ImportedBuild:
    if "-p" in options:
        return _read_plugin(Path(options["-p"]))
    name = options.get("-e", "qnn")
    if name != "qnn":
        known = "although its help lists this EP" if name in _EPS else "which the tool does not know"
        raise make_import_error(
            f"{TOOL} cannot compile for '{name}', {known}", f"-e {name}", "Write a recipe with `epbuild init --ep` instead."
        )
    return ImportedBuild(TOOL, get_ep_start(_EPS[name], "npu", f"-e {name}"))


def _read_plugin(path: Path) -> ImportedBuild:
    """Return the build that the configuration file of a plugin EP describes."""
    try:
        text = read_regular(path).decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise make_import_error(
            f"the file given with -p cannot be read: {getattr(error, 'strerror', None) or error}", path
        ) from error
    config = as_mapping(parse_json_text(text, path))
    library = str(config.get("ep_library_path") or "")
    named, numbers = config.get("selected_ep_name"), config.get("selected_ep_device_indices")
    if not library or not config.get("ep_library_registration_name") or bool(named) == bool(numbers):
        message = "the file needs ep_library_registration_name, ep_library_path, and either selected_ep_name or selected_ep_device_indices"
        raise make_import_error(message, path)
    file = re.split(r"[\\/]", library)[-1]
    stem = f"{file} {config['ep_library_registration_name']}".lower()
    ep = str(named) if named else next((ep for pattern, ep in _LIBRARIES.items() if re.search(pattern, stem)), "")
    if not ep:
        raise make_import_error("the file does not name an EP: it selects devices by number, and the library is unknown", path)
    build = ImportedBuild(TOOL, get_ep_start(ep, "npu", path))
    if numbers:
        build.skip_setting(
            f"selected_ep_device_indices {numbers}",
            "device numbers are valid on one machine only",
            "See the target's `device`.",
        )
    what = "epbuild uses the library from the EP's package in the toolchain"
    build.skip_setting(f"ep_library_path {library}", what, "To use your own library, set the target's `library`.")
    build.add_options(as_mapping(config.get("default_ep_options")), "default_ep_options")
    return build


def _parse_pairs(flag: str, text: str) -> Iterator[tuple[str, str]]:
    for word in text.split():
        key, sign, value = word.partition("|")
        if not sign or not key:
            raise make_import_error(f"invalid option '{word}': expected KEY|VALUE", flag)
        yield key, value
