"""Request, reports and model files of every preparation script.

Each script loads this module by path:

    python -I quantize.py request.json      in the staging directory

    {"format": 1, "kind": "quantize", "source": "in/det.onnx", "output": "out/det.onnx", "options": {"activation_type": "uint8"},
     "files": {"calibration": ["in/files/0/a.npz"]}, "settings": {}}

Pipe, parent process and exit statuses work as in `compile.py`. The report of a failure has a message and optionally a `hint`.
"""

from __future__ import annotations

import difflib
import heapq
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from typing import Any

REQUEST_FORMAT = 1
CPU = "CPUExecutionProvider"
SEED = "0"
REMOVE_HINT = "Remove this step from 'prepare'."
"""Hint for a preparation that changes nothing."""
SCRATCH = "scratch"
MAX_INLINE_BYTES = 1 << 30  # bytes of weights; a protobuf message, and so a model file, is limited to 2 GiB
MIN_EXTERNAL_BYTES = 1024
MIN_KEPT_SHARE = 0.9  # share of the source's external weights that are unchanged, so that their files are kept
PIECE_BYTES = 1 << 20


def beside(*parts: str) -> Any:
    """Load a worker's script as a module by path, because an isolated Python does not search this folder for modules."""
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), *parts)  # noqa: PTH100, PTH118, PTH120
    specification = importlib.util.spec_from_file_location("epbuild_" + parts[-1].rpartition(".")[0], path)
    module = importlib.util.module_from_spec(specification)  # type: ignore[arg-type]
    specification.loader.exec_module(module)  # type: ignore[union-attr]
    return module


class Refused(Exception):
    """Error of a model, options or files that do not fit each other. `hint` says what to do."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


def nearest(name: str, known: Any) -> str:
    """Return a hint with the known name that is most similar to `name`, or else with some of the known names."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1)
    if close:
        return f"Did you mean '{close[0]}'?"
    shown = ", ".join(names[:10]) + (f" and {len(names) - 10} others" if len(names) > 10 else "")
    return f"Available: {shown or 'none'}."


def log(text: str) -> None:
    """Write a line to the step's log, which is shown while the step runs."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


# -- Models ------------------------------------------------------------------------------------------------------------


def load_header(request: dict[str, Any]) -> Any:
    """Load the source model without its external data."""
    import onnx

    return onnx.load(request["source"], load_external_data=False)


def load_model(request: dict[str, Any]) -> Any:
    """Load the source model with all of its weights."""
    import onnx

    return onnx.load(request["source"])


def fill(model: Any, request: dict[str, Any]) -> Any:
    """Load the source's external data into a model that was created from the source's header. Return the model."""
    import onnx

    onnx.load_external_data_for_model(model, os.path.dirname(request["source"]))  # noqa: PTH120
    return model


def load_vectors(model: Any, request: dict[str, Any]) -> None:
    """Load external scalars and vectors, whose values symbolic inference needs."""
    import onnx

    for tensor in model.graph.initializer:
        if tensor.data_location and len(tensor.dims) < 2:
            onnx.external_data_helper.load_external_data_for_tensor(tensor, os.path.dirname(request["source"]))  # noqa: PTH120


def save(model: Any, request: dict[str, Any]) -> None:
    """Write the result. If the source had external data or the weights are large, write the weights to files beside the model."""
    import onnx

    sort_nodes(model.graph)
    external = is_external(request)
    keep_external_data(model, request)
    output = request["output"]
    if not external and count_weight_bytes(model) <= MAX_INLINE_BYTES:
        onnx.save(model, output)
        return
    onnx.save(
        model,
        output,
        save_as_external_data=True,
        all_tensors_to_one_file=True,
        location=choose_location(output),
        size_threshold=MIN_EXTERNAL_BYTES,
        convert_attribute=False,
    )


def keep_external_data(model: Any, request: dict[str, Any]) -> None:
    """Move the source's files of external data beside the output if the result still has nearly all of their weights.

    The moved files keep their bytes, so that the store needs no second copy. Otherwise, load all weights, as libraries write them in
    another order and with other gaps.
    """
    import onnx

    source = load_header(request)
    folder, place = (os.path.dirname(request[name]) for name in ("source", "output"))  # noqa: PTH120
    found = {tensor.name: tensor for tensor in model.graph.initializer}
    for old in source.graph.initializer:
        new = found.get(old.name)
        if new is not None and is_unchanged(new, old, folder):
            new.ClearField("raw_data")
            new.data_location = old.data_location
            new.external_data.extend(old.external_data)
    before, after = (sum(locate(tensor, folder)[2] for tensor in list_external(item)) for item in (source, model))
    if after < MIN_KEPT_SHARE * before:
        fill(model, request)
        return
    moved = set()
    for tensor in list(list_external(model)):
        path, _, size = locate(tensor, folder)
        if size < MIN_EXTERNAL_BYTES:  # runtimes cannot read shapes from files
            onnx.external_data_helper.load_external_data_for_tensor(tensor, folder)
        else:
            moved.add(os.path.relpath(path, folder))
    for location in sorted(moved):
        target = os.path.join(place, location)  # noqa: PTH118
        os.makedirs(os.path.dirname(target), exist_ok=True)  # noqa: PTH103, PTH120
        os.rename(os.path.join(folder, location), target)  # noqa: PTH104, PTH118


def is_unchanged(new: Any, old: Any, folder: str) -> bool:
    """Return whether a loaded tensor has the type, the sizes and the bytes of a tensor in external data."""
    if new.data_location or not old.data_location or (new.data_type, new.dims) != (old.data_type, old.dims):
        return False
    path, start, size = locate(old, folder)
    data = memoryview(new.raw_data)
    with open(path, "rb") as file:  # noqa: PTH123
        file.seek(start)
        pieces = (data[at : at + PIECE_BYTES] for at in range(0, size, PIECE_BYTES))
        return len(data) == size and all(file.read(len(piece)) == piece for piece in pieces)


def list_graphs(graph: Any) -> Any:
    """Yield a graph and all graphs inside of it."""
    yield graph
    for node in graph.node:
        for inner in list_subgraphs(node):
            yield from list_graphs(inner)


def list_subgraphs(node: Any) -> list[Any]:
    """Return the graphs in the attributes of a node."""
    return [graph for item in node.attribute for graph in (*([item.g] if item.HasField("g") else []), *item.graphs)]


def list_external(holder: Any) -> Any:
    """Yield the tensors in external data of a model, a graph or a function, and of its subgraphs."""
    for part in (*([holder.graph] if hasattr(holder, "graph") else []), *getattr(holder, "functions", ())):
        yield from list_external(part)
    tensors = list(getattr(holder, "initializer", ()))
    for node in getattr(holder, "node", ()):
        tensors += (tensor for attribute in node.attribute for tensor in (attribute.t, *attribute.tensors))
        for graph in list_subgraphs(node):
            yield from list_external(graph)
    yield from (tensor for tensor in tensors if tensor.data_location)


def locate(tensor: Any, folder: str) -> tuple[str, int, int]:
    """Return the path of a tensor's external data in `folder`, and the first byte and the number of its bytes."""
    entries = {entry.key: entry.value for entry in tensor.external_data}
    path, start = os.path.normpath(os.path.join(folder, entries["location"])), int(entries.get("offset", 0))  # noqa: PTH118
    size = entries.get("length")
    return path, start, os.path.getsize(path) - start if size is None else int(size)  # noqa: PTH202


def choose_location(output: str) -> str:
    """Return the name of a new file of external data beside the output. A file that was kept can have the usual name."""
    names = (f"{output}.data{number}" for number in ("", *range(2, 100)))
    return os.path.basename(next(name for name in names if not os.path.exists(name)))  # noqa: PTH110, PTH119


def sort_nodes(graph: Any) -> None:
    """Sort the nodes so that each node follows the nodes whose outputs it reads. ONNX requires this order, but some converters break it."""
    makers = {name: index for index, node in enumerate(graph.node) for name in node.output if name}
    needs = [{makers[name] for name in list_read_values(node) if name in makers} for node in graph.node]
    if all(need < index for index, found in enumerate(needs) for need in found):
        return
    readers: list[list[int]] = [[] for _ in needs]
    for index, found in enumerate(needs):
        for need in found:
            readers[need].append(index)
    missing = [len(found) for found in needs]
    ready = [index for index, count in enumerate(missing) if not count]
    order = []
    while ready:
        index = heapq.heappop(ready)
        order.append(index)
        for reader in readers[index]:
            missing[reader] -= 1
            if not missing[reader]:
                heapq.heappush(ready, reader)
    if len(order) < len(needs):
        raise Refused("the nodes of the result form a cycle")
    nodes = [graph.node[index] for index in order]
    del graph.node[:]
    graph.node.extend(nodes)


def list_read_values(node: Any) -> list[str]:
    """Return the names of the values that a node and its subgraphs read."""
    found = [name for name in node.input if name]
    for graph in list_subgraphs(node):
        for inner in graph.node:
            found += list_read_values(inner)
        found += [value.name for value in graph.output]
    return found


def check(model: Any) -> None:
    """Run ONNX's checker on a loaded model, unless the model is too large. Raises the checker's exceptions."""
    import onnx

    if count_weight_bytes(model) <= MAX_INLINE_BYTES:
        onnx.checker.check_model(model)


def is_external(request: dict[str, Any]) -> bool:
    """Return whether the source has external data."""
    return any(tensor.data_location == tensor.EXTERNAL for tensor in load_header(request).graph.initializer)


def count_weight_bytes(model: Any) -> int:
    """Return the size of a loaded model's weights in bytes."""
    return sum(
        len(tensor.raw_data) or 4 * (len(tensor.float_data) + len(tensor.int32_data)) for tensor in model.graph.initializer
    )


def required_inputs(model: Any) -> list[Any]:
    """Return the inputs that a caller has to feed, which excludes inputs with initializers."""
    initializers = {tensor.name for tensor in model.graph.initializer}
    return [value for value in model.graph.input if value.name not in initializers]


def sizes_of(value: Any) -> list[int | str] | None:
    """Return the sizes of a tensor as numbers, names, and `?` for sizes without a name, or None if the rank is unknown."""
    tensor = value.type.tensor_type
    if not tensor.HasField("shape"):
        return None
    return [
        dim.dim_value if dim.HasField("dim_value") and dim.dim_value >= 0 else dim.dim_param or "?" for dim in tensor.shape.dim
    ]


def node_count(model: Any) -> str:
    """Return the number of nodes of a model, as text."""
    count = len(model.graph.node)
    return f"{count} node" + ("" if count == 1 else "s")


# -- The process -------------------------------------------------------------------------------------------------------


def repeat_with_fixed_seed() -> int | None:
    """Run this script again with a fixed seed for Python's hashes, and return the exit status. Return None if the seed is already set.

    Libraries iterate over sets of names, whose order differs between processes unless the seed is fixed. `-I` ignores the
    variable for the seed. The new process is as isolated as this process: it has no other variable for Python, and no additional path.
    """
    if os.environ.get("PYTHONHASHSEED") == SEED and not sys.flags.ignore_environment:
        sys.path[:] = [path for path in sys.path if os.path.abspath(path) != os.path.dirname(os.path.abspath(sys.argv[0]))]  # noqa: PTH100, PTH120
        return None
    kept = {name: value for name, value in os.environ.items() if not name.upper().startswith("PYTHON")}
    variables = {**kept, "PYTHONHASHSEED": SEED, "PYTHONUTF8": "1"}
    command = [sys.executable, "-s", *sys.argv]
    if os.name != "nt":
        os.execve(sys.executable, command, variables)  # noqa: S606 - the same script
    return subprocess.call(command, env=variables)


def main(prepare: Any) -> None:
    """Run a script and exit. `prepare` receives the request and writes the output. This function never returns."""
    status = repeat_with_fixed_seed()
    os._exit(run(prepare) if status is None else status)


def run(prepare: Any) -> int:
    """Read the request, prepare the model, and report. Return the exit status."""
    worker = beside("..", "compile.py")
    channel = worker.Channel()
    worker.follow_parent()
    with open(sys.argv[1], encoding="utf-8") as file:  # noqa: PTH123
        request = json.load(file)
    os.makedirs(SCRATCH, exist_ok=True)  # noqa: PTH103
    tempfile.tempdir = os.path.abspath(SCRATCH)  # noqa: PTH100 - temporary files of libraries are removed with the staging folder
    try:
        channel.send("started", kind=request["kind"])
        prepare(request)
    except Exception as error:  # noqa: BLE001 - libraries raise any exception
        kind = "unfit" if isinstance(error, (ImportError, MemoryError)) else "error"
        message = str(error) or type(error).__name__
        hint = {"hint": error.hint} if isinstance(error, Refused) and error.hint else {}
        what = {"kind": kind, "type": type(error).__name__, "message": worker.shorten(message), **hint}
        channel.send("failed", **what, peak_memory=worker.measure_peak_memory(), **worker.measure_address_space())
        return worker.FAILED  # type: ignore[no-any-return]
    finally:
        sys.stderr.flush()
    channel.send("finished", peak_memory=worker.measure_peak_memory())
    return 0
