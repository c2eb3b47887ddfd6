"""Reader of model packages that uses the OrtModelPackageApi of onnxruntime, as applications do.

onnxruntime's Python module does not offer that API. Therefore this file runs as a script in a toolchain's Python and
calls the library's C functions.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

CPU = "CPUExecutionProvider"
QNN = "QNNExecutionProvider"


def edited(package: Path, place: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    """Copy a package and change what its manifest says of its components."""
    shutil.copytree(package, place)
    manifest = place / "manifest.json"
    document = json.loads(manifest.read_text(encoding="utf-8"))
    change(document["components"])
    manifest.write_text(json.dumps(document), encoding="utf-8")
    return place


def open_package(
    package: Path,
    ep: str = CPU,
    provider_options: Mapping[str, str] | None = None,
    *,
    sessions: bool = True,
    library: Path | None = None,
    zeros: int = 0,
) -> dict[str, Any]:
    """Open a package as an application that asks only for `ep`, with these options. `library` is the plugin's library, by default QNN's.

    `error`: why the package does not open, or None. `components`: by name, the EP of each of its `variants`;
    `selected`: the variant that onnxruntime selects, with its `folder` below the package; the `inputs` and `outputs` of
    a session, unless `sessions` is False; with `zeros`, the output y (`result`) for an input x of that many zeros; and
    `error`: why no variant was selected or no session created, or None.
    """
    from tests.support.projects import toolchain_python

    request = {
        "package": str(package),
        "ep": ep,
        "options": dict(provider_options or {}),
        "sessions": sessions,
        "library": str(library) if library is not None else None,
        "zeros": zeros,
    }
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder, "answer.json")
        command = [str(toolchain_python("onnxruntime-qnn")), __file__, json.dumps(request), str(answer)]
        done = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", timeout=120, check=False)
        assert done.returncode == 0, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
        found: dict[str, Any] = json.loads(answer.read_text(encoding="utf-8"))
    return found


# The rest runs in the other Python, which may have only the standard library and onnxruntime.

_VERSION = 31
"""onnxruntime 1.31 is the first whose OrtApi has the package API."""
_POINTER, _TEXT, _SIZE = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t
_PATH = ctypes.c_wchar_p if os.name == "nt" else ctypes.c_char_p
_ORT = {
    "GetErrorMessage": 2,
    "CreateEnv": 3,
    "Run": 9,
    "CreateSessionOptions": 10,
    "SessionGetInputCount": 30,
    "SessionGetOutputCount": 31,
    "SessionGetInputName": 36,
    "SessionGetOutputName": 37,
    "CreateTensorWithDataAsOrtValue": 49,
    "GetTensorMutableData": 51,
    "CreateCpuMemoryInfo": 69,
    "GetAllocatorWithDefaultOptions": 78,
    "ReleaseSession": 95,
    "RegisterExecutionProviderLibrary": 301,
    "GetEpDevices": 303,
    "SessionOptionsAppendExecutionProvider_V2": 304,
    "EpDevice_EpName": 312,
    "GetModelPackageApi": 427,
}
"""Positions of the functions in OrtApi, to which releases only append."""
_PACKAGE = (
    "CreateModelPackageOptionsFromSessionOptions",
    "ReleaseModelPackageOptions",
    "CreateModelPackageContext",
    "ReleaseModelPackageContext",
    "ModelPackage_GetSchemaVersion",
    "ModelPackage_GetComponentCount",
    "ModelPackage_GetComponentNames",
    "ModelPackage_GetVariantCount",
    "ModelPackage_GetVariantNames",
    "ModelPackage_GetVariantEpName",
    "ModelPackage_ResolveStringRef",
    "SelectComponent",
    "ReleaseModelPackageComponentContext",
    "ModelPackageComponent_GetSelectedVariantName",
    "ModelPackageComponent_GetSelectedVariantFolderPath",
    "CreateSession",
)
"""The functions of OrtModelPackageApi, in their order."""


class _Base(ctypes.Structure):
    _fields_ = (("GetApi", ctypes.CFUNCTYPE(_POINTER, ctypes.c_uint32)), ("GetVersionString", ctypes.CFUNCTYPE(_TEXT)))


class _Refused(Exception):
    """Error that onnxruntime reported."""


class _Ort:
    """C functions of onnxruntime."""

    def __init__(self) -> None:
        folder = Path(importlib.import_module("onnxruntime").__file__ or "").parent / "capi"
        names = ("onnxruntime.dll", "libonnxruntime.")
        library = ctypes.CDLL(str(next(path for path in sorted(folder.iterdir()) if path.name.startswith(names))))
        library.OrtGetApiBase.restype = ctypes.POINTER(_Base)
        self._api = library.OrtGetApiBase().contents.GetApi(_VERSION)
        assert self._api, f"this onnxruntime is older than 1.{_VERSION}"
        self._package = self._function(self._api, _ORT["GetModelPackageApi"], _POINTER)()

    def __call__(self, name: str, *arguments: Any) -> None:
        """Call a function that returns a status and writes its results through pointers."""
        table, index = (self._package, _PACKAGE.index(name)) if name in _PACKAGE else (self._api, _ORT[name])
        status = self._function(table, index, _POINTER, *(_type(argument) for argument in arguments))(*arguments)
        if status:
            raise _Refused(self.get("GetErrorMessage", _TEXT, _POINTER(status)).decode(errors="replace"))

    def get(self, name: str, result: Any, *arguments: Any) -> Any:
        """Call a function that returns one value through a pointer."""
        return self._function(self._api, _ORT[name], result, *(_type(argument) for argument in arguments))(*arguments)

    def texts(self, name: str, *arguments: Any) -> list[str]:
        """Call a function that returns a list of names."""
        names, count = ctypes.POINTER(_TEXT)(), _SIZE()
        self(name, *arguments, ctypes.byref(names), ctypes.byref(count))
        return [(names[index] or b"").decode() for index in range(count.value)]

    @staticmethod
    def _function(table: Any, index: int, result: Any, *types: Any) -> Any:
        address = _POINTER.from_address(table + index * ctypes.sizeof(_POINTER)).value or 0
        return ctypes.CFUNCTYPE(result, *types)(address)


def _type(argument: Any) -> Any:
    if isinstance(argument, bytes):
        return _TEXT
    if isinstance(argument, str):
        return ctypes.c_wchar_p
    if isinstance(argument, int):
        return ctypes.c_int
    return type(argument) if isinstance(argument, _POINTER | _SIZE) else _POINTER


def _found(request: Mapping[str, Any]) -> dict[str, Any]:
    ort, env, options = _Ort(), _POINTER(), _POINTER()
    ort("CreateEnv", 3, b"package", ctypes.byref(env))
    session_options = _session_options(ort, env, request)
    ort("CreateModelPackageOptionsFromSessionOptions", env, session_options, ctypes.byref(options))
    context, components = _POINTER(), {}
    try:
        ort("CreateModelPackageContext", _path(request["package"]), ctypes.byref(context))
    except _Refused as refusal:
        return {"error": str(refusal), "components": {}}
    for name in ort.texts("ModelPackage_GetComponentNames", context):
        found: dict[str, Any] = {"variants": _variants(ort, context, name), "selected": None, "error": None}
        try:
            _select(ort, env, context, options, name, request, found)
        except _Refused as refusal:
            found["error"] = str(refusal)
        components[name] = found
    return {"error": None, "components": components}


def _session_options(ort: _Ort, env: Any, request: Mapping[str, Any]) -> Any:
    """Create session options with all devices of one EP, as an application would. Register its plugin library if it has one."""
    ep, options = request["ep"], request["options"]
    if ep != CPU:
        library = request["library"] or importlib.import_module("onnxruntime_qnn").get_library_path()
        ort("RegisterExecutionProviderLibrary", env, ep.encode(), _path(str(library)))
    devices, count, made = ctypes.POINTER(_POINTER)(), _SIZE(), _POINTER()
    ort("GetEpDevices", env, ctypes.byref(devices), ctypes.byref(count))
    every = [_POINTER(devices[index]) for index in range(count.value)]
    chosen = [device for device in every if ort.get("EpDevice_EpName", _TEXT, device).decode() == ep]
    assert chosen, f"{ep} offers no device here"
    ort("CreateSessionOptions", ctypes.byref(made))
    keys, values = ([text.encode() for text in texts] for texts in (options.keys(), options.values()))
    ort(
        "SessionOptionsAppendExecutionProvider_V2",
        made,
        env,
        (_POINTER * len(chosen))(*chosen),
        _SIZE(len(chosen)),
        (_TEXT * len(keys))(*keys),
        (_TEXT * len(values))(*values),
        _SIZE(len(keys)),
    )
    return made


def _variants(ort: _Ort, context: Any, component: str) -> dict[str, str | None]:
    found = {}
    for variant in ort.texts("ModelPackage_GetVariantNames", context, component.encode()):
        ep = _TEXT()
        ort("ModelPackage_GetVariantEpName", context, component.encode(), variant.encode(), ctypes.byref(ep))
        found[variant] = ep.value.decode() if ep.value is not None else None
    return found


def _select(
    ort: _Ort, env: Any, context: Any, options: Any, component: str, request: Mapping[str, Any], found: dict[str, Any]
) -> None:
    selected, name, folder, session = _POINTER(), _TEXT(), _PATH(), _POINTER()
    ort("SelectComponent", context, component.encode(), options, ctypes.byref(selected))
    ort("ModelPackageComponent_GetSelectedVariantName", selected, ctypes.byref(name))
    ort("ModelPackageComponent_GetSelectedVariantFolderPath", selected, ctypes.byref(folder))
    found["selected"] = (name.value or b"").decode()
    place = Path(os.fsdecode(folder.value or b""))
    found["folder"] = place.resolve().relative_to(Path(request["package"]).resolve()).as_posix()
    if request["sessions"]:
        ort("CreateSession", env, selected, _POINTER(None), ctypes.byref(session))
        found["inputs"] = _signature(ort, session, "Input")
        found["outputs"] = _signature(ort, session, "Output")
        if request["zeros"]:
            found["result"] = _run(ort, session, request["zeros"])
        ort.get("ReleaseSession", None, session)


def _signature(ort: _Ort, session: Any, kind: str) -> list[str]:
    allocator, count, names = _POINTER(), _SIZE(), []
    ort("GetAllocatorWithDefaultOptions", ctypes.byref(allocator))
    ort(f"SessionGet{kind}Count", session, ctypes.byref(count))
    for index in range(count.value):
        name = _TEXT()
        ort(f"SessionGet{kind}Name", session, _SIZE(index), allocator, ctypes.byref(name))
        names.append((name.value or b"").decode())
    return names


def _run(ort: _Ort, session: Any, size: int) -> list[float]:
    """Return the output y of a session for an input x of zeros."""
    place, value, result, data = _POINTER(), _POINTER(), _POINTER(), _POINTER()
    x, shape = (ctypes.c_float * size)(), (ctypes.c_int64 * 1)(size)
    ort("CreateCpuMemoryInfo", 0, 0, ctypes.byref(place))
    ort("CreateTensorWithDataAsOrtValue", place, x, _SIZE(ctypes.sizeof(x)), shape, _SIZE(1), 1, ctypes.byref(value))
    names, values, outputs = (_TEXT * 1)(b"x"), (_POINTER * 1)(value), (_TEXT * 1)(b"y")
    ort("Run", session, _POINTER(None), names, values, _SIZE(1), outputs, _SIZE(1), ctypes.byref(result))
    ort("GetTensorMutableData", result, ctypes.byref(data))
    return list((ctypes.c_float * size).from_address(data.value or 0))


def _path(path: str) -> str | bytes:
    """Return a path in the encoding that onnxruntime expects on this system."""
    return path if os.name == "nt" else os.fsencode(path)


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(json.dumps(_found(json.loads(sys.argv[1]))), encoding="utf-8")
    os._exit(0)  # skip the exit handlers of EPs, which this script does not test
