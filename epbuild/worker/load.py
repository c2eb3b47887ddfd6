"""Loading of compiled models: `python -I load.py request.json`.

The current directory is a scratch directory. Sessions are opened in order, run if the request has inputs for them, and closed in reverse
order. Each step is reported before it starts, so that the origin of a crash is known. Pipes, lifeline, registration and devices work as in
`compile.py`.
"""

from __future__ import annotations

import gc
import os
import runpy
import sys
import time
from types import SimpleNamespace
from typing import Any

_VERBOSE = 0


compiling = SimpleNamespace(**runpy.run_path(os.path.join(os.path.dirname(os.path.abspath(__file__)), "compile.py")))  # noqa: PTH100, PTH118, PTH120
"""`compile.py`, beside this script, where an isolated Python does not search for modules."""


def ask_compatibility(ep: dict[str, Any], device: Any, model: dict[str, Any], channel: Any) -> None:
    """Query whether the EP's device accepts the compatibility string in a model. Report ORT's answer, or why there is no answer."""
    from onnxruntime.capi import onnxruntime_pybind11_state as runtime

    written = model["compatibility"].get(ep["name"])
    if written is None:
        return
    if device is None:
        answer, reason = None, "ONNX Runtime queries only plugin EPs"
    elif not hasattr(runtime, "get_model_compatibility_for_ep_devices"):
        answer, reason = None, "this onnxruntime does not support the query"
    else:
        try:
            answer, reason = runtime.get_model_compatibility_for_ep_devices([device], written).name, ""
        except Exception as error:  # noqa: BLE001 - ORT's exceptions have no common base
            answer, reason = None, compiling.shorten(str(error))
    channel.send("compatibility", model=model["name"], ep=ep["name"], answer=answer, reason=reason)


def report_sdks(request: dict[str, Any], channel: Any) -> None:
    """Report the SDK's version of each EP whose package has it in an attribute."""
    for ep in request["eps"]:
        attribute = request["sdk_attributes"].get(ep["name"])
        if attribute is None or ep["library"]:
            continue
        try:
            version = compiling.import_package(ep)
            for name in attribute.split("."):
                version = getattr(version, name)
        except (compiling.Unfit, AttributeError):  # another release of the package
            continue
        channel.send("sdk", ep=ep["name"], version=str(version))


def list_devices(onnxruntime: Any, request: dict[str, Any], channel: Any) -> None:
    """Register the EPs, and report every device that ONNX Runtime offers. Releases before 1.23 offer no devices."""
    for ep in request["eps"]:
        compiling.register_ep(onnxruntime, ep)
    for device in getattr(onnxruntime, "get_ep_devices", list)():
        channel.send("offered", **compiling.describe(device))


def open_session(onnxruntime: Any, request: dict[str, Any], model: dict[str, Any], devices: list[Any]) -> Any:
    """Return a session for a model with the EPs of the request, or with the CPU EP if there are none. Raises the exceptions of ORT."""
    options = compiling.make_session_options(onnxruntime, request, model, devices)
    if model["profile"]:
        options.enable_profiling = True
        options.profile_file_prefix = model["profile"]
    providers = compiling.list_providers(onnxruntime, request) if request["eps"] else [compiling.CPU]
    source: Any = model["file"]
    data: list[bytes] = []
    if model["data_folder"] is not None:
        pass_data_folder(options, model)
    if model["data_in_memory"] is not None:
        source, data = read_contents(model)
        pass_contents(options, model, data)
    # With ORT's fallback, a failing EP would be reported as missing from the session.
    session = compiling.new_session(onnxruntime, source, options, providers)
    del data  # ONNX Runtime reads the data while it creates the session, and keeps no reference.
    return session


def read_contents(model: dict[str, Any]) -> tuple[bytes, list[bytes]]:
    """Return the content of a model and of each file of its external data."""
    folder, contents = model["data_folder"] or os.path.dirname(model["file"]), []  # noqa: PTH120
    for path in (model["file"], *(os.path.join(folder, name) for name in model["data_in_memory"])):  # noqa: PTH118
        with open(path, "rb") as file:  # noqa: PTH123
            contents.append(file.read())
    return contents[0], contents[1:]


def pass_contents(options: Any, model: dict[str, Any], data: list[bytes]) -> None:
    """Pass external data to the options, and the path from which the EP derives the folder of context binaries."""
    options.add_session_config_entry("ep.context_file_path", model["file"])
    if hasattr(options, "add_external_initializers_from_files_in_memory"):
        options.add_external_initializers_from_files_in_memory(model["data_in_memory"], data, [len(content) for content in data])
    else:
        pass_data_folder(options, model)


def pass_data_folder(options: Any, model: dict[str, Any]) -> None:
    """Pass the folder of external data to the options. ONNX Runtime would also search it for context binaries without the model's path."""
    folder = model["data_folder"] or os.path.dirname(model["file"])  # noqa: PTH120
    options.add_session_config_entry("ep.context_file_path", model["file"])
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", folder)


def run(session: Any, inputs: dict[str, Any], outputs: str) -> tuple[list[str], float]:
    """Run a session on the arrays in a file, and write the outputs in order to the file `outputs`.

    Return the names of the outputs, and the duration of the run without the files.
    """
    import numpy

    with numpy.load(inputs["file"], allow_pickle=False) as arrays:
        values = {name: arrays[f"arr_{number}"] for number, name in enumerate(inputs["names"])}
    # ONNX Runtime reads texts as objects, which the file cannot contain.
    feeds = {name: value.astype(object) if value.dtype.kind == "U" else value for name, value in values.items()}
    names = [output.name for output in session.get_outputs()]
    begin = time.perf_counter()
    results = session.run(names, feeds)
    seconds = time.perf_counter() - begin
    for name, result in zip(names, results):  # noqa: B905 - older interpreters
        if not isinstance(result, numpy.ndarray):
            raise compiling.Unfit(f"the output '{name}' is not a tensor")
    numpy.savez(outputs, *[result.astype(str) if result.dtype.kind == "O" else result for result in results])
    return names, seconds


def load_models(request: dict[str, Any], channel: Any) -> None:
    """Open, run and close the models, and report each step. The first failure ends the run."""
    import onnxruntime

    if request["verbose"]:
        onnxruntime.set_default_logger_severity(_VERBOSE)  # the logger for messages of the EPs' backends
    channel.send("started", onnxruntime=onnxruntime.__version__)
    if request["lists_devices"]:
        list_devices(onnxruntime, request, channel)
        return
    models = request["models"]
    devices = [compiling.open_ep(onnxruntime, ep, channel) for ep in request["eps"]]
    report_sdks(request, channel)
    for model in models:
        for ep, device in zip(request["eps"], devices):  # noqa: B905
            ask_compatibility(ep, device, model, channel)
    sessions = []
    for model in models:
        channel.send("opening", model=model["name"])
        begin = time.monotonic()
        sessions.append(open_session(onnxruntime, request, model, devices))
        channel.send("opened", model=model["name"], seconds=round(time.monotonic() - begin, 6))
    for model, session in zip(models, sessions):  # noqa: B905
        for number, inputs in enumerate(model["inputs"]):
            channel.send("running", model=model["name"], run=number)
            names, seconds = run(session, inputs, inputs["outputs"])
            channel.send("ran", model=model["name"], run=number, outputs=names, seconds=round(seconds, 6))
        if model["profile"]:
            os.replace(session.end_profiling(), model["profile"])  # noqa: PTH105 - ONNX Runtime adds the time to the name
        del session  # only the list may keep it open
    for model in reversed(models):
        channel.send("closing", model=model["name"])
        sessions.pop()
        gc.collect()


if __name__ == "__main__":
    status = compiling.main(sys.argv[1:], load_models)
    sys.stderr.flush()
    # As in compile.py: an abort in an EP's destructors does not show whether its models load and run.
    os._exit(status)
