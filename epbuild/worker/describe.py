"""Description of a context binary: `python -I describe.py request.json`.

Reports the graphs of a binary with their inputs and outputs, as the QNN System API of the EP's package describes them. The structures
have the layouts of QNN System API 1.x. Pipes, lifeline and reports work as in `compile.py`.
"""

from __future__ import annotations

import ctypes
import importlib.util
import mmap
import os
import runpy
import sys
from ctypes import POINTER, c_char_p, c_float, c_int32, c_uint8, c_uint32, c_uint64, c_void_p
from types import SimpleNamespace
from typing import Any

compiling = SimpleNamespace(**runpy.run_path(os.path.join(os.path.dirname(os.path.abspath(__file__)), "compile.py")))  # noqa: PTH100, PTH118, PTH120
"""`compile.py`, beside this script, where an isolated Python does not search for modules."""

MAX_RANK = 32
MAX_VALUES = 100_000
DEFINED = 1
SCALE_OFFSET = 0
TYPES = {
    0x0008: "int8", 0x0016: "int16", 0x0032: "int32", 0x0064: "int64",
    0x0108: "uint8", 0x0116: "uint16", 0x0132: "uint32", 0x0164: "uint64",
    0x0216: "float16", 0x0232: "float32", 0x0264: "float64", 0x0508: "bool",
}  # fmt: skip
"""Types of tensors, by QNN's numbers."""
FIXED_POINT = {
    0x0308: "int8", 0x0316: "int16", 0x0332: "int32",
    0x0408: "uint8", 0x0416: "uint16", 0x0432: "uint32",
}  # fmt: skip
"""Types of quantized tensors, by QNN's numbers."""


class Unreadable(Exception):
    """Error for a file that the library cannot read as a context binary."""


class Version(ctypes.Structure):
    """Version of an interface or a format."""

    _fields_ = [("major", c_uint32), ("minor", c_uint32), ("patch", c_uint32)]


class Interface(ctypes.Structure):
    """Provider of the library, followed by its functions: create, get_binary_info, get_metadata and free."""

    _fields_ = [("backend", c_uint32), ("name", c_char_p), ("version", Version), ("functions", c_void_p * 4)]


class Quantization(ctypes.Structure):
    """Quantization of a tensor. `scale` and `offset` are valid for the encoding SCALE_OFFSET."""

    _fields_ = [
        ("definition", c_int32),
        ("encoding", c_int32),
        ("scale", c_float),
        ("offset", c_int32),
        ("others", c_uint64 * 3),
    ]


class TensorInfo(ctypes.Structure):
    """Fields of a tensor. Version 1 ends before `dynamic`."""

    _fields_ = [
        ("id", c_uint32),
        ("name", c_char_p),
        ("type", c_int32),
        ("format", c_uint32),
        ("data_type", c_int32),
        ("quantization", Quantization),
        ("rank", c_uint32),
        ("sizes", POINTER(c_uint32)),
        ("memory", c_int32),
        ("data", c_void_p),
        ("data_size", c_uint32),
        ("dynamic", POINTER(c_uint8)),
        ("sparse", c_uint32 * 3),
        ("produced", c_uint8),
    ]


class Tensor(ctypes.Structure):
    """Input or output of a graph, with the version of its fields."""

    _fields_ = [("version", c_uint32), ("info", TensorInfo)]


class GraphInfo(ctypes.Structure):
    """Fields of a graph. All versions begin with the named ones."""

    _fields_ = [
        ("name", c_char_p),
        ("input_count", c_uint32),
        ("inputs", POINTER(Tensor)),
        ("output_count", c_uint32),
        ("outputs", POINTER(Tensor)),
        ("others", c_uint64 * 5),
    ]


class Graph(ctypes.Structure):
    """Graph of a binary, with the version of its fields."""

    _fields_ = [("version", c_uint32), ("info", GraphInfo)]


_HEAD: list[Any] = [
    ("backend", c_uint32),
    ("build", c_char_p),
    ("core", Version),
    ("backend_version", Version),
    ("soc_version", c_char_p),
]
_OLD: list[Any] = [
    ("hardware_version", Version),
    ("blob_version", Version),
    ("hardware_size", c_uint32),
    ("hardware", c_void_p),
    ("blob_size", c_uint64),
]
_NEW: list[Any] = [("blob_version", Version), ("blob_size", c_uint64)]
_GRAPHS: list[Any] = [
    ("tensor_count", c_uint32),
    ("tensors", POINTER(Tensor)),
    ("graph_count", c_uint32),
    ("graphs", POINTER(Graph)),
]


class OldInfo(ctypes.Structure):
    """Description of a binary in version 1 or 2."""

    _fields_ = [*_HEAD, *_OLD, *_GRAPHS]


class NewInfo(ctypes.Structure):
    """Description of a binary in version 3."""

    _fields_ = [*_HEAD, *_NEW, *_GRAPHS]


class Info(ctypes.Union):
    """Description of a binary in any version."""

    _fields_ = [("old", OldInfo), ("new", NewInfo)]


class Description(ctypes.Structure):
    """Description of a binary, with the version of its fields."""

    _fields_ = [("version", c_uint32), ("info", Info)]


def find_library(module: str, name: str) -> str:
    """Return the path of a library in a package. Raises Unfit if the package or the library is missing."""
    found = importlib.util.find_spec(module)
    for folder in (found.submodule_search_locations if found is not None else None) or ():
        path = os.path.join(folder, name)  # noqa: PTH118
        if os.path.isfile(path):  # noqa: PTH113
            return path
    raise compiling.Unfit(f"the package '{module}' does not contain {name}")


def open_functions(path: str, name: str) -> Any:
    """Load a library whose function `name` returns its interfaces. Return the functions `create`, `describe` and `free`. Raises Unfit."""
    library = ctypes.CDLL(path)
    providers, count = POINTER(POINTER(Interface))(), c_uint32()
    list_providers = getattr(library, name)
    list_providers.restype = c_uint64
    status = list_providers(ctypes.byref(providers), ctypes.byref(count))
    for number in range(0 if status else count.value):
        interface = providers[number].contents
        if interface.version.major == 1:
            create, describe, _, free = interface.functions
            return SimpleNamespace(
                create=ctypes.CFUNCTYPE(c_uint64, POINTER(c_void_p))(create),
                describe=ctypes.CFUNCTYPE(
                    c_uint64, c_void_p, c_void_p, c_uint64, POINTER(POINTER(Description)), POINTER(c_uint64)
                )(describe),
                free=ctypes.CFUNCTYPE(c_uint64, c_void_p)(free),
            )
    raise compiling.Unfit(f"{os.path.basename(path)} offers no system API 1.x")  # noqa: PTH119


def read_text(value: bytes | None) -> str:
    return (value or b"").decode("utf-8", "replace")


def read_tensor(tensor: Any) -> dict[str, Any]:
    """Return the name, ONNX type, sizes and quantization of a tensor. A size that can vary is None. Raises Unreadable."""
    info = tensor.info
    if tensor.version not in (1, 2) or info.rank > MAX_RANK:
        raise Unreadable("it describes a tensor in an unknown layout")
    sizes = [info.sizes[axis] for axis in range(info.rank)]
    if tensor.version > 1 and info.dynamic:
        sizes = [None if info.dynamic[axis] else size for axis, size in enumerate(sizes)]
    name, number = read_text(info.name), info.data_type
    if number not in TYPES and number not in FIXED_POINT:
        raise Unreadable(f"'{name}' has the type {number:#06x}, which no ONNX type stands for")
    found = {"name": name, "type": TYPES.get(number) or FIXED_POINT[number], "shape": sizes, "quantized": number in FIXED_POINT}
    if found["quantized"] and (info.quantization.definition, info.quantization.encoding) == (DEFINED, SCALE_OFFSET):
        # QNN computes (value + offset) * scale, and ONNX (value - zero_point) * scale.
        found.update(scale=info.quantization.scale, zero_point=-info.quantization.offset)
    return found


def read_description(description: Any) -> dict[str, Any]:
    """Return a description as plain data. Raises Unreadable for a layout of an unknown version."""
    if description.version not in (1, 2, 3):
        raise Unreadable(f"its description has the unknown version {description.version}")
    info = description.info.new if description.version == 3 else description.info.old
    graphs = []
    for graph in (info.graphs[number] for number in range(info.graph_count)):
        if graph.version not in (1, 2, 3) or max(graph.info.input_count, graph.info.output_count) > MAX_VALUES:
            raise Unreadable("it describes a graph in an unknown layout")
        graphs.append(
            {
                "name": read_text(graph.info.name),
                "inputs": [read_tensor(graph.info.inputs[number]) for number in range(graph.info.input_count)],
                "outputs": [read_tensor(graph.info.outputs[number]) for number in range(graph.info.output_count)],
            }
        )
    return {"sdk": read_text(info.build), "graphs": graphs}


def describe_binary(request: dict[str, Any], channel: Any) -> None:
    """Report the description of the request's binary. Raises Unreadable."""
    functions = open_functions(find_library(request["module"], request["library"]), request["function"])
    handle, found, size = c_void_p(), POINTER(Description)(), c_uint64()
    with open(request["binary"], "rb") as file:  # noqa: PTH123
        # The library takes a pointer to memory that it may change, so the mapping is private.
        content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    buffer = (ctypes.c_char * len(content)).from_buffer(content)
    if status := functions.create(ctypes.byref(handle)):
        raise compiling.Unfit(f"{request['library']} failed with the error {status}")
    if status := functions.describe(handle, buffer, len(content), ctypes.byref(found), ctypes.byref(size)):
        raise Unreadable(f"{request['library']} failed with the error {status}")
    channel.send("described", **read_description(found.contents))
    functions.free(handle)


if __name__ == "__main__":
    status = compiling.main(sys.argv[1:], describe_binary)
    sys.stderr.flush()
    os._exit(status)
