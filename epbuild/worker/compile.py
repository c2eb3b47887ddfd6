"""Compilation of one session group: `python -I compile.py request.json`.

The current directory is the staging directory. Reports are written as JSON lines to the pipe that was standard output at the start.
Native output of EPs on standard output is redirected to standard error. Standard input is a lifeline: when it closes, epbuild has ended,
and the worker ends too.
"""

from __future__ import annotations

import fnmatch
import json
import os
import runpy
import signal
import sys
import threading
import time
from typing import Any

# Imported at the start, because no module can be imported after a memory limit is reached.
if sys.platform != "win32":
    import resource

ON_WINDOWS: dict[str, Any] = {}
"""Functions of `windows.py`, beside this script."""
if sys.platform == "win32":
    ON_WINDOWS = runpy.run_path(os.path.join(os.path.dirname(os.path.abspath(__file__)), "windows.py"))  # noqa: PTH100, PTH118, PTH120

CPU = "CPUExecutionProvider"
FAILED = 1
ORPHANED = 75
MAX_MESSAGE = 16_384
STRING_TYPE = 8
PAGE = 4096

OPTIMIZATION_LEVELS = {
    "disable_all": "ORT_DISABLE_ALL",
    "basic": "ORT_ENABLE_BASIC",
    "extended": "ORT_ENABLE_EXTENDED",
    "layout": "ORT_ENABLE_LAYOUT",
    "all": "ORT_ENABLE_ALL",
}


class Unfit(Exception):
    """Error of a machine or a toolchain that lacks something that every model needs, such as the EP or a device."""


class NoDevice(Unfit):
    """Error of an EP that offers no suitable device."""


class NotRegistered(Exception):
    """Error if ONNX Runtime rejects a library of custom operators."""


class Channel:
    """Pipe to epbuild, with one JSON document per line."""

    def __init__(self) -> None:
        self._descriptor = os.dup(1)
        os.dup2(2, 1)

    def send(self, event: str, **fields: Any) -> None:
        line = json.dumps({"event": event, **fields}, sort_keys=True) + "\n"
        data = line.encode("utf-8")
        while data:
            data = data[os.write(self._descriptor, data) :]


def follow_parent() -> None:
    """End this process, and the process group that it leads, as soon as the other end of standard input closes."""

    def wait() -> None:
        if ON_WINDOWS:
            if not ON_WINDOWS["wait_for_parent"]():
                return
        else:
            while os.read(0, 4096):
                pass
        if hasattr(os, "killpg") and os.getpgrp() == os.getpid():
            os.killpg(os.getpid(), signal.SIGKILL)  # this also kills processes that the EP started
        os._exit(ORPHANED)

    threading.Thread(target=wait, daemon=True).start()


def shorten(text: str) -> str:
    """Return a text, or only its beginning and end if it is very long, because some exceptions quote a whole model."""
    left_out = len(text) - MAX_MESSAGE
    if left_out <= 0:
        return text
    half = MAX_MESSAGE // 2
    return f"{text[:half]} [{left_out} characters left out] {text[-half:]}"


def measure_peak_memory() -> int | None:
    """Return the peak resident memory in bytes, or None if the platform does not report it."""
    if ON_WINDOWS:
        found: int | None = ON_WINDOWS["measure_peak_memory"]()
        return found
    if sys.platform == "win32":
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def measure_address_space() -> dict[str, int]:
    """Return the peak of mapped memory and its limit in bytes. Empty if there is no limit, or if the limit or the peak is unknown."""
    if sys.platform == "win32":
        return {}
    try:
        with open("/proc/self/status", encoding="ascii", errors="replace") as file:  # noqa: PTH123
            peak = next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmPeak:"))
    except (OSError, StopIteration):
        return {}
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    return {} if limit == resource.RLIM_INFINITY else {"mapped": peak, "mappable": limit}


def import_package(wanted: dict[str, Any]) -> Any:
    import importlib

    try:
        return importlib.import_module(wanted["module"])
    except ImportError as error:
        raise Unfit(f"the toolchain has no Python package '{wanted['module']}': {error}") from error


def find_ep_library(ep: dict[str, Any]) -> str:
    """Return the path of a plugin EP's library, from the request or else from the EP's package."""
    return str(ep["library"] or import_package(ep).get_library_path())


def find_operator_library(ops: dict[str, Any]) -> str:
    """Return the path of a library of custom operators, from the request or else from the package, which must contain the library."""
    if ops["library"]:
        return str(ops["library"])
    package = import_package(ops)
    try:
        library = str(os.path.abspath(package.get_library_path()))  # noqa: PTH100
    except Exception as error:
        raise NotRegistered(
            f"the package '{ops['module']}' does not provide the path of its custom operator library: {error}"
        ) from error
    # No fingerprint covers a library outside the package, so a changed library would not cause a new compile.
    folders = [os.path.join(os.path.abspath(folder), "") for folder in getattr(package, "__path__", ())]  # noqa: PTH100, PTH118
    if not any(os.path.normcase(library).startswith(os.path.normcase(folder)) for folder in folders):
        raise NotRegistered(
            f"the custom operator library of the package '{ops['module']}' is outside the package; add the library itself "
            f"to 'custom_ops': {library}"
        )
    return library


def register_custom_ops(options: Any, custom_ops: list[dict[str, Any]]) -> None:
    """Register custom operators with the options of a session. Raises NotRegistered, or Unfit if a package is missing."""
    for ops in custom_ops:
        library = find_operator_library(ops)
        try:
            options.register_custom_ops_library(library)
        except Exception as error:
            raise NotRegistered(f"the custom operators of {ops['name']} cannot be registered: {error}") from error


def classify_error(error: Exception) -> str:
    """Return the origin of an exception: `unfit` (machine or toolchain), `custom_ops`, or `error` (the model or the EP)."""
    if isinstance(error, NotRegistered):
        return "custom_ops"
    return "unfit" if isinstance(error, (Unfit, ImportError, MemoryError)) else "error"


def describe(device: Any) -> dict[str, Any]:
    """Return the properties of an OrtEpDevice as plain data."""
    return {
        "ep": device.ep_name,
        "type": device.device.type.name.lower(),
        "vendor": device.device.vendor,
        "metadata": {**dict(device.device.metadata), **dict(device.ep_metadata)},
    }


def choose_device(onnxruntime: Any, ep: dict[str, Any]) -> Any:
    """Return an OrtEpDevice that matches the request, preferring types in the order of the catalog. Raises NoDevice."""
    wanted = ep["device"]
    offered = [device for device in onnxruntime.get_ep_devices() if device.ep_name == ep["name"]]
    fitting = []
    for device in offered:
        facts = describe(device)
        metadata = facts["metadata"]
        if wanted["type"] and facts["type"] != wanted["type"]:
            continue
        if wanted["vendor"] and facts["vendor"].lower() != wanted["vendor"].lower():
            continue
        if any(metadata.get(key) != value for key, value in wanted["metadata"].items()):
            continue
        if wanted["virtual"] and metadata.get("is_virtual") != "1":
            continue
        fitting.append((facts["type"], device))
    order = {name: rank for rank, name in enumerate(ep["prefer"])}
    fitting.sort(key=lambda pair: order.get(pair[0], len(order)))
    if not fitting:
        seen = ", ".join(f"{fact['type']} from {fact['vendor']}" for fact in map(describe, offered)) or "none"
        raise NoDevice(f"{ep['name']} has no suitable device; available: {seen}")
    return fitting[0][1]


def register_ep(onnxruntime: Any, ep: dict[str, Any]) -> None:
    """Register a plugin EP with ONNX Runtime, or check that a built-in EP is available. Raises Unfit."""
    if ep["kind"] == "plugin":
        if not hasattr(onnxruntime, "register_execution_provider_library"):
            raise Unfit(
                f"this onnxruntime, {onnxruntime.__version__}, cannot load plugin EPs such as {ep['name']}; use 1.23 or later"
            )
        # The registration name becomes the EP's name and is written into its output.
        onnxruntime.register_execution_provider_library(ep["registration"], find_ep_library(ep))
    elif ep["name"] not in onnxruntime.get_available_providers():
        known = ", ".join(onnxruntime.get_available_providers())
        raise Unfit(f"this onnxruntime has no {ep['name']}; it has: {known}")


def open_ep(onnxruntime: Any, ep: dict[str, Any], channel: Channel) -> Any:
    """Register an EP and return its device, or None for a built-in EP, which sessions select by name."""
    register_ep(onnxruntime, ep)
    if ep["kind"] != "plugin":
        return None
    device = choose_device(onnxruntime, ep)
    channel.send("device", **describe(device))
    return device


def make_session_options(onnxruntime: Any, request: dict[str, Any], member: dict[str, Any], devices: list[Any]) -> Any:
    """Return new SessionOptions for one member. The last member of a sharing group ends the sharing, so that the EP writes the binary."""
    options = onnxruntime.SessionOptions()
    if request["node_log"]:
        # Only for the session: the default logger at this level makes the EP's libraries log five times as much.
        options.log_severity_level = request["node_log"]["severity"]
    register_custom_ops(options, request["custom_ops"])
    for ep, device in zip(request["eps"], devices):  # noqa: B905 - older interpreters
        if ep["name"] in member.get("compiled_by", ()):
            continue  # the EP fails if the source already has its nodes, and ONNX Runtime keeps them
        if device is not None:
            options.add_provider_for_devices([device], ep["options"])
        elif hasattr(options, "add_provider"):
            options.add_provider(ep["name"], ep["options"])
    entries = dict(request["session_options"])
    if request["share_weights"]:
        entries["ep.share_ep_contexts"] = "1"
        if member is request["members"][-1]:
            entries["ep.stop_share_ep_contexts"] = "1"
    if member["compile"]["node_name_prefix"]:
        entries["ep.context_node_name_prefix"] = member["compile"]["node_name_prefix"]
    if member["read"] == "bytes":
        # The path is relative, like the path of the staged source, because the EP's output depends on the text.
        entries["session.model_external_initializers_file_folder_path"] = member["source"].rpartition("/")[0]
    for key, value in entries.items():
        options.add_session_config_entry(key, value)
    for name, size in member["free_dimensions"].items():
        options.add_free_dimension_override_by_name(name, size)
    for denotation, size in member["denoted_dimensions"].items():
        options.add_free_dimension_override_by_denotation(denotation, size)
    return options


def list_providers(onnxruntime: Any, request: dict[str, Any]) -> list[tuple[str, dict[str, str]]]:
    """Return the EPs to pass to a session by name: none, because session options contain them.

    Before ONNX Runtime 1.23, session options cannot contain EPs, so all EPs are returned.
    """
    if hasattr(onnxruntime.SessionOptions, "add_provider"):
        return []
    return [(ep["name"], ep["options"]) for ep in request["eps"]]


def new_session(onnxruntime: Any, source: Any, options: Any, providers: list[Any]) -> Any:
    """Return a session with exactly the given EPs. Raises the exceptions of ORT.

    If an EP failed, ORT would retry with the CPU EP, and report a different error or none. Older releases ignore the argument that
    prevents this, so a property overrides the attribute that the argument sets.
    """
    kept = property(lambda session: False, lambda session, value: None)
    session = type("Session", (onnxruntime.InferenceSession,), {"_enable_fallback": kept})
    return session(source, sess_options=options, providers=providers, enable_fallback=0)


def is_named(member: dict[str, Any], name: str) -> bool:
    """Return whether the member's settings apply to this initializer. If not, it is stored in the compiled model."""
    patterns = member["compile"].get("initializer_names")
    return not patterns or any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def make_initializer_writer(onnxruntime: Any, member: dict[str, Any]) -> Any:
    """Return the callback that writes large initializers with certain names into the member's external file."""
    import ctypes

    file = member["compile"]["external_file"]
    path = os.path.join(os.path.dirname(member["output"]), file)  # noqa: PTH118, PTH120

    def write(name: str, value: Any, external: Any) -> Any:
        size = 0 if value.element_type() == STRING_TYPE else value.tensor_size_in_bytes()
        if not size or size < member["compile"]["external_threshold"] or not is_named(member, name):
            return None
        with open(path, "ab") as data:  # noqa: PTH123
            offset = -(-data.tell() // PAGE) * PAGE
            data.truncate(offset)
            data.write(ctypes.string_at(value.data_ptr(), size))
        return onnxruntime.OrtExternalInitializerInfo(file, offset, size)

    return write


def make_initializer_arguments(onnxruntime: Any, member: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of ModelCompiler that select the file for initializers of nodes that the EP does not take."""
    if member["compile"]["initializers"] == "external" and member["compile"].get("initializer_names"):
        return {"get_initializer_location_func": make_initializer_writer(onnxruntime, member)}
    if member["compile"]["initializers"] == "external":
        return {
            "external_initializers_file_path": member["compile"]["external_file"],
            "external_initializers_size_threshold": member["compile"]["external_threshold"],
        }
    if member["compile"]["initializers"] == "source":
        return {"get_initializer_location_func": lambda name, value, external: external if is_named(member, name) else None}
    return {}


def compile_member(onnxruntime: Any, request: dict[str, Any], member: dict[str, Any], devices: list[Any]) -> Any:
    """Compile one model. Callers must keep the returned object until the group is done. Raises the exceptions of ORT."""
    source = member["source"]
    if member["read"] == "bytes":
        with open(source, "rb") as file:  # noqa: PTH123
            source = file.read()
    level = OPTIMIZATION_LEVELS[member["compile"]["graph_optimization_level"]]
    options = make_session_options(onnxruntime, request, member, devices)
    if not hasattr(onnxruntime, "ModelCompiler"):
        options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
        return compile_by_session(onnxruntime, request, member, source, options)
    compiler = onnxruntime.ModelCompiler(
        options,
        source,
        embed_compiled_data_into_model=member["compile"]["embed"],
        # Without this flag, ORT ignores a failure of the backend, and the "compiled" model is the source.
        flags=onnxruntime.OrtCompileApiFlags.ERROR_IF_NO_NODES_COMPILED,
        graph_optimization_level=getattr(onnxruntime.GraphOptimizationLevel, level),
        **make_initializer_arguments(onnxruntime, member),
    )
    compiler.compile_to_file(member["output"])
    return None


def compile_by_session(onnxruntime: Any, request: dict[str, Any], member: dict[str, Any], source: Any, options: Any) -> Any:
    """Compile one model with a release before 1.23. A session writes the compiled model. Return the session."""
    entries = {
        "ep.context_enable": "1",
        "ep.context_file_path": member["output"],
        "ep.context_embed_mode": "1" if member["compile"]["embed"] else "0",
    }
    if member["compile"]["initializers"] == "external":
        entries["ep.context_model_external_initializers_file_name"] = member["compile"]["external_file"]
    for key, value in entries.items():
        options.add_session_config_entry(key, value)
    session = new_session(onnxruntime, source, options, list_providers(onnxruntime, request))
    if not os.path.exists(member["output"]):  # noqa: PTH110
        # The message of ModelCompiler. Some releases write the source instead, which the verifier detects.
        reason = "Check that the session EPs support compilation and can execute at least one subgraph in the model."
        raise RuntimeError(f"Unable to compile any nodes. {reason}")
    return session


def check_release(onnxruntime: Any, request: dict[str, Any]) -> None:
    """Raise Unfit for settings that a release without ModelCompiler does not support."""
    if hasattr(onnxruntime, "ModelCompiler"):
        return
    here = f"this onnxruntime, {onnxruntime.__version__},"
    for member in request["members"]:
        if member["compile"]["initializers"] == "source":
            raise Unfit(f"{here} cannot leave the initializers of '{member['name']}' in the source model; use 1.23 or later")
        if member["compile"].get("initializer_names"):
            raise Unfit(f"{here} cannot store the initializers of '{member['name']}' by name; use 1.23 or later")
        if member["compile"]["initializers"] == "external" and member["compile"]["external_threshold"] > 0:
            what = "writes initializers of any size into the external file"
            raise Unfit(f"{here} {what}; set the threshold of '{member['name']}' to 0, or use 1.23 or later")


def compile_group(request: dict[str, Any], channel: Channel) -> None:
    """Compile the members in order, and report on each. The first failure ends the compile."""
    import onnxruntime

    channel.send("started", onnxruntime=onnxruntime.__version__)
    check_release(onnxruntime, request)
    devices = [open_ep(onnxruntime, ep, channel) for ep in request["eps"]]
    kept = []
    for member in request["members"]:
        channel.send("member_started", member=member["name"])
        if request["node_log"]:
            # The mark is written to the log itself, because the reports on the other pipe may be ahead of the log.
            sys.stderr.write(f"{request['node_log']['mark']}{member['name']}\n")
            sys.stderr.flush()
        begin = time.monotonic()
        kept.append(compile_member(onnxruntime, request, member, devices))
        channel.send("member_finished", member=member["name"], seconds=round(time.monotonic() - begin, 3))


def read_request(path: str) -> dict[str, Any]:
    """Read the request, and add this machine's paths for libraries of EPs and custom operators."""
    with open(path, encoding="utf-8") as file:  # noqa: PTH123 - sufficient, also for older interpreters
        request: dict[str, Any] = json.load(file)
    here = request.pop("here")
    request["eps"] = [{**ep, **place} for ep, place in zip(request["eps"], here.pop("eps"))]  # noqa: B905
    return {**request, **here}


def main(arguments: list[str], work: Any = compile_group) -> int:
    """Run the process and return its exit status. `work` executes the request and sends reports."""
    channel = Channel()
    follow_parent()
    request = read_request(arguments[0])
    try:
        work(request, channel)
    except Exception as error:  # noqa: BLE001 - ORT's exceptions have no common base
        what = {"kind": classify_error(error), "type": type(error).__name__, "message": shorten(str(error))}
        channel.send("failed", **what, peak_memory=measure_peak_memory(), **measure_address_space())
        return FAILED
    channel.send("finished", peak_memory=measure_peak_memory())
    return 0


if __name__ == "__main__":
    status = main(sys.argv[1:])
    sys.stderr.flush()
    # An EP whose sharing was never stopped aborts in its destructors, so exit without running them.
    os._exit(status)
