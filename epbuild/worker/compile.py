"""Compile of one session group: `python -I compile.py request.json`.

The staging directory is its current directory. Results go to the pipe that was standard output when the process began, as JSON lines;
whatever the EP prints natively on standard output is turned to standard error, since EPs do print there. Standard input is a lifeline: when
it closes, epbuild is gone, and so is the worker.
"""

from __future__ import annotations

import json
import os
import runpy
import signal
import sys
import threading
import time
from typing import Any

# Now: where a limit of memory is met, there is no room for more modules any more.
if sys.platform != "win32":
    import resource

ON_WINDOWS: dict[str, Any] = {}
"""What `windows.py`, beside this script, has for Windows."""
if sys.platform == "win32":
    ON_WINDOWS = runpy.run_path(os.path.join(os.path.dirname(os.path.abspath(__file__)), "windows.py"))  # noqa: PTH100, PTH118, PTH120

CPU = "CPUExecutionProvider"
FAILED = 1
ORPHANED = 75
LONGEST_MESSAGE = 16_384

OPTIMIZATION_LEVELS = {
    "disable_all": "ORT_DISABLE_ALL",
    "basic": "ORT_ENABLE_BASIC",
    "extended": "ORT_ENABLE_EXTENDED",
    "layout": "ORT_ENABLE_LAYOUT",
    "all": "ORT_ENABLE_ALL",
}


class Unfit(Exception):
    """This machine or toolchain cannot do what was asked, whatever the model: no such EP, no such device."""


class NoDevice(Unfit):
    """The EP offers no device here that fits."""


class NotRegistered(Exception):
    """ONNX Runtime does not take a library of custom operators."""


class Channel:
    """The pipe to epbuild, one JSON document a line."""

    def __init__(self) -> None:
        self._descriptor = os.dup(1)
        os.dup2(2, 1)

    def send(self, event: str, **fields: Any) -> None:
        line = json.dumps({"event": event, **fields}, sort_keys=True) + "\n"
        data = line.encode("utf-8")
        while data:
            data = data[os.write(self._descriptor, data) :]


def follow_parent() -> None:
    """End this process, and the group that it leads, as soon as the other end of standard input is gone."""

    def wait() -> None:
        if ON_WINDOWS:
            if not ON_WINDOWS["wait_for_parent"]():
                return
        else:
            while os.read(0, 4096):
                pass
        if hasattr(os, "killpg") and os.getpgrp() == os.getpid():
            os.killpg(os.getpid(), signal.SIGKILL)  # with whatever the EP has started: nobody else is left to end it
        os._exit(ORPHANED)

    threading.Thread(target=wait, daemon=True).start()


def shortened(text: str) -> str:
    """The beginning and the end of a text that is longer than anybody reads: some exceptions quote a whole model."""
    left_out = len(text) - LONGEST_MESSAGE
    if left_out <= 0:
        return text
    half = LONGEST_MESSAGE // 2
    return f"{text[:half]} [{left_out} characters left out] {text[-half:]}"


def peak_memory() -> int | None:
    """The most bytes that were resident at once, or None where the platform does not report it."""
    if ON_WINDOWS:
        found: int | None = ON_WINDOWS["peak_memory"]()
        return found
    if sys.platform == "win32":
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def address_space() -> dict[str, int]:
    """The most bytes that were mapped at once, and those that may be; nothing where there is no limit, or where it is unknown."""
    if sys.platform == "win32":
        return {}
    try:
        with open("/proc/self/status", encoding="ascii", errors="replace") as file:  # noqa: PTH123
            peak = next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmPeak:"))
    except (OSError, StopIteration):
        return {}
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    return {} if limit == resource.RLIM_INFINITY else {"mapped": peak, "mappable": limit}


def package_of(wanted: dict[str, Any]) -> Any:
    import importlib

    try:
        return importlib.import_module(wanted["module"])
    except ImportError as error:
        raise Unfit(f"the toolchain has no Python package '{wanted['module']}': {error}") from error


def library_of(ep: dict[str, Any]) -> str:
    """The path of a plugin EP's library: the one that the request names, else asked of the package that ships it."""
    return str(ep["library"] or package_of(ep).get_library_path())


def operators_of(ops: dict[str, Any]) -> str:
    """The path of a library of custom operators: the one that the request names, else that of the package, and inside it."""
    if ops["library"]:
        return str(ops["library"])
    package = package_of(ops)
    try:
        library = str(os.path.abspath(package.get_library_path()))  # noqa: PTH100
    except Exception as error:
        raise NotRegistered(f"the package '{ops['module']}' does not name its library of custom operators: {error}") from error
    # What lies elsewhere is in no fingerprint: it could change, and nobody would compile again.
    folders = [os.path.join(os.path.abspath(folder), "") for folder in getattr(package, "__path__", ())]  # noqa: PTH100, PTH118
    if not any(os.path.normcase(library).startswith(os.path.normcase(folder)) for folder in folders):
        raise NotRegistered(
            f"the package '{ops['module']}' has its library of custom operators elsewhere: name it itself, {library}"
        )
    return library


def register_custom_ops(options: Any, custom_ops: list[dict[str, Any]]) -> None:
    """Let sessions with these options know custom operators. Raises NotRegistered, or Unfit where there is no such package."""
    for ops in custom_ops:
        library = operators_of(ops)
        try:
            options.register_custom_ops_library(library)
        except Exception as error:
            raise NotRegistered(f"the custom operators of {ops['name']} cannot be registered: {error}") from error


def kind_of(error: Exception) -> str:
    """What an exception blames: the machine or the toolchain, a library of custom operators, or else the model or the EP."""
    if isinstance(error, NotRegistered):
        return "custom_ops"
    return "unfit" if isinstance(error, (Unfit, ImportError, MemoryError)) else "error"


def describe(device: Any) -> dict[str, Any]:
    """What ONNX Runtime reports of an OrtEpDevice, as plain data."""
    return {
        "ep": device.ep_name,
        "type": device.device.type.name.lower(),
        "vendor": device.device.vendor,
        "metadata": {**dict(device.device.metadata), **dict(device.ep_metadata)},
    }


def choose_device(onnxruntime: Any, ep: dict[str, Any]) -> Any:
    """The OrtEpDevice that the request asks for; with no wish, the first of the types that the catalog prefers."""
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
        raise NoDevice(f"{ep['name']} offers no device that fits; it offers: {seen}")
    return fitting[0][1]


def make_known(onnxruntime: Any, ep: dict[str, Any]) -> None:
    """Have ONNX Runtime know an EP: a plugin EP is registered, and one that is built in has to be there. Raises Unfit."""
    if ep["kind"] == "plugin":
        if not hasattr(onnxruntime, "register_execution_provider_library"):
            raise Unfit(
                f"this onnxruntime, {onnxruntime.__version__}, loads no plugin EPs such as {ep['name']}; 1.23 and later do"
            )
        # The registration name becomes the EP's name and is written into its output.
        onnxruntime.register_execution_provider_library(ep["registration"], library_of(ep))
    elif ep["name"] not in onnxruntime.get_available_providers():
        known = ", ".join(onnxruntime.get_available_providers())
        raise Unfit(f"this onnxruntime has no {ep['name']}; it has: {known}")


def open_ep(onnxruntime: Any, ep: dict[str, Any], channel: Channel) -> Any:
    """Make an EP known to ONNX Runtime; its device, or None for one that is built in and chosen by name."""
    make_known(onnxruntime, ep)
    if ep["kind"] != "plugin":
        return None
    device = choose_device(onnxruntime, ep)
    channel.send("device", **describe(device))
    return device


def session_options(onnxruntime: Any, request: dict[str, Any], member: dict[str, Any], devices: list[Any]) -> Any:
    """Fresh SessionOptions for one member; the last of a sharing group stops the sharing and so writes the binary."""
    options = onnxruntime.SessionOptions()
    if request["node_log"]:
        # Only the session's: at this level the default logger makes the EP's libraries log everything too, five times as much.
        options.log_severity_level = request["node_log"]["severity"]
    register_custom_ops(options, request["custom_ops"])
    for ep, device in zip(request["eps"], devices):  # noqa: B905 - older interpreters
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
        # Relative, as the staged source is: the text is hashed into the output.
        entries["session.model_external_initializers_file_folder_path"] = member["source"].rpartition("/")[0]
    for key, value in entries.items():
        options.add_session_config_entry(key, value)
    for name, size in member["free_dimensions"].items():
        options.add_free_dimension_override_by_name(name, size)
    for denotation, size in member["denoted_dimensions"].items():
        options.add_free_dimension_override_by_denotation(denotation, size)
    return options


def providers_by_name(onnxruntime: Any, request: dict[str, Any]) -> list[tuple[str, dict[str, str]]]:
    """The EPs that a session is given beside its options: those of a request, in releases before 1.23, whose options hold none."""
    if hasattr(onnxruntime.SessionOptions, "add_provider"):
        return []
    return [(ep["name"], ep["options"]) for ep in request["eps"]]


def new_session(onnxruntime: Any, source: Any, options: Any, providers: list[Any]) -> Any:
    """A session on the EPs that it is given. Raises what ORT raises.

    ORT would try again with the CPU EP where an EP fails, and then report another failure or none. Its argument against that is
    one that older releases ignore, but for what it sets.
    """
    kept = property(lambda session: False, lambda session, value: None)
    session = type("Session", (onnxruntime.InferenceSession,), {"_enable_fallback": kept})
    return session(source, sess_options=options, providers=providers, enable_fallback=0)


def initializer_arguments(member: dict[str, Any]) -> dict[str, Any]:
    """Where ModelCompiler is to put the initializers of nodes that stay outside the EP."""
    if member["compile"]["initializers"] == "external":
        return {
            "external_initializers_file_path": member["compile"]["external_file"],
            "external_initializers_size_threshold": member["compile"]["external_threshold"],
        }
    if member["compile"]["initializers"] == "source":
        return {"get_initializer_location_func": lambda name, value, external: external}
    return {}


def compile_member(onnxruntime: Any, request: dict[str, Any], member: dict[str, Any], devices: list[Any]) -> Any:
    """Compile one model into its EPContext model; raises whatever ORT raises. What it returns is to be kept until its group is done."""
    source = member["source"]
    if member["read"] == "bytes":
        with open(source, "rb") as file:  # noqa: PTH123
            source = file.read()
    level = OPTIMIZATION_LEVELS[member["compile"]["graph_optimization_level"]]
    options = session_options(onnxruntime, request, member, devices)
    if not hasattr(onnxruntime, "ModelCompiler"):
        options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
        return compile_by_session(onnxruntime, request, member, source, options)
    compiler = onnxruntime.ModelCompiler(
        options,
        source,
        embed_compiled_data_into_model=member["compile"]["embed"],
        # Without this flag a backend that fails is a success, and the "compiled" model is the source.
        flags=onnxruntime.OrtCompileApiFlags.ERROR_IF_NO_NODES_COMPILED,
        graph_optimization_level=getattr(onnxruntime.GraphOptimizationLevel, level),
        **initializer_arguments(member),
    )
    compiler.compile_to_file(member["output"])
    return None


def compile_by_session(onnxruntime: Any, request: dict[str, Any], member: dict[str, Any], source: Any, options: Any) -> Any:
    """Compile one model as releases before 1.23 do it: a session writes what its EPs compiled. Returns the session."""
    entries = {
        "ep.context_enable": "1",
        "ep.context_file_path": member["output"],
        "ep.context_embed_mode": "1" if member["compile"]["embed"] else "0",
    }
    if member["compile"]["initializers"] == "external":
        entries["ep.context_model_external_initializers_file_name"] = member["compile"]["external_file"]
    for key, value in entries.items():
        options.add_session_config_entry(key, value)
    session = new_session(onnxruntime, source, options, providers_by_name(onnxruntime, request))
    if not os.path.exists(member["output"]):  # noqa: PTH110
        # In the words of ModelCompiler. Some releases write the source instead, which the verifier finds.
        reason = "Check that the session EPs support compilation and can execute at least one subgraph in the model."
        raise RuntimeError(f"Unable to compile any nodes. {reason}")
    return session


def check_release(onnxruntime: Any, request: dict[str, Any]) -> None:
    """Refuse what a release without ModelCompiler cannot do; raises Unfit."""
    if hasattr(onnxruntime, "ModelCompiler"):
        return
    here = f"this onnxruntime, {onnxruntime.__version__},"
    for member in request["members"]:
        if member["compile"]["initializers"] == "source":
            raise Unfit(f"{here} cannot leave the initializers of '{member['name']}' in its source; 1.23 and later can")
        if member["compile"]["initializers"] == "external" and member["compile"]["external_threshold"] > 0:
            what = "writes initializers of any size into the external file"
            raise Unfit(f"{here} {what}: give '{member['name']}' the threshold 0, or use 1.23 or later")


def compile_group(request: dict[str, Any], channel: Channel) -> None:
    """Compile the members in order, reporting each; the first failure ends the group."""
    import onnxruntime

    channel.send("started", onnxruntime=onnxruntime.__version__)
    check_release(onnxruntime, request)
    devices = [open_ep(onnxruntime, ep, channel) for ep in request["eps"]]
    kept = []
    for member in request["members"]:
        channel.send("member_started", member=member["name"])
        if request["node_log"]:
            # Into the log itself: it cannot be known how far a report, on another pipe, is ahead of it.
            sys.stderr.write(f"{request['node_log']['mark']}{member['name']}\n")
            sys.stderr.flush()
        begin = time.monotonic()
        kept.append(compile_member(onnxruntime, request, member, devices))
        channel.send("member_finished", member=member["name"], seconds=round(time.monotonic() - begin, 3))


def read_request(path: str) -> dict[str, Any]:
    """The request, in which EPs and custom operators are as this machine has them: libraries are paths there, and no digests."""
    with open(path, encoding="utf-8") as file:  # noqa: PTH123 - older interpreters, and no need of more
        request: dict[str, Any] = json.load(file)
    here = request.pop("here")
    request["eps"] = [{**ep, **place} for ep, place in zip(request["eps"], here.pop("eps"))]  # noqa: B905
    return {**request, **here}


def main(arguments: list[str], work: Any = compile_group) -> int:
    """The process, from the request to the exit status; `work` does what is requested, and reports it."""
    channel = Channel()
    follow_parent()
    request = read_request(arguments[0])
    try:
        work(request, channel)
    except Exception as error:  # noqa: BLE001 - ORT's exceptions have no base of their own
        what = {"kind": kind_of(error), "type": type(error).__name__, "message": shortened(str(error))}
        channel.send("failed", **what, peak_memory=peak_memory(), **address_space())
        return FAILED
    channel.send("finished", peak_memory=peak_memory())
    return 0


if __name__ == "__main__":
    status = main(sys.argv[1:])
    sys.stderr.flush()
    # An EP whose sharing was never stopped aborts in its destructors: leave without running them.
    os._exit(status)
