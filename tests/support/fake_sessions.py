"""An `onnxruntime` for models with a JSON file that defines how opening, running and closing them behaves."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy

__version__ = "1.99.0"

registered: list[tuple[str, str]] = []
severities: list[int] = []


def set_default_logger_severity(severity: int) -> None:
    severities.append(severity)


def do(command: str | None) -> None:
    """Run the command that a model's file has for this moment."""
    if command == "fail":
        raise RuntimeError("[ONNXRuntimeError] : 10 : INVALID_GRAPH : Failed to get context binary info.")
    if command == "out of memory":
        raise MemoryError("bad_alloc")
    if command == "hang":
        time.sleep(60)
    if command == "crash":
        if severities == [0]:
            sys.stderr.write("1 [ERROR] <E> The backend gives its reason\n")
        sys.stderr.flush()
        os.abort()
    if command == "killed":
        os.kill(os.getpid(), getattr(signal, "SIGKILL", signal.SIGTERM))


class SessionOptions:
    """Session options that keep their settings."""

    def __init__(self) -> None:
        self.entries: dict[str, str] = {}
        self.providers: list[Any] = []

    def add_provider(self, name: str, options: dict[str, str]) -> None:
        self.providers.append([name, options])

    def add_provider_for_devices(self, devices: list[Any], options: dict[str, str]) -> None:
        self.providers.append([[device.device.type.name for device in devices], options])

    def add_session_config_entry(self, key: str, value: str) -> None:
        self.entries[key] = value


class InferenceSession:
    """Session that returns its input times a factor. It reports on standard error when it is opened and closed."""

    def __init__(self, file: str, sess_options: SessionOptions, providers: list[str], enable_fallback: int) -> None:
        assert enable_fallback == 0
        self.name = Path(file).stem
        self.document = json.loads(Path(file).with_suffix(".json").read_text(encoding="utf-8"))
        os.write(1, b'{"event": "finished"} natively on standard output\n')
        told = json.dumps([sess_options.providers or providers, sess_options.entries])
        sys.stderr.write(f"open {self.name} {told}\n")
        do(self.document.get("open"))

    def get_outputs(self) -> list[Any]:
        return [SimpleNamespace(name="file")]  # a name that numpy.savez would treat as its own argument

    def run(self, names: list[str], feeds: dict[str, Any]) -> list[Any]:
        do(self.document.get("run"))
        if self.document.get("run") == "give a list":
            return [[1, 2]]
        (value,) = feeds.values()
        if value.dtype.kind == "O":
            return [numpy.array([text.upper() for text in value], object)]
        return [value * self.document.get("factor", 1)]

    def __del__(self) -> None:
        sys.stderr.write(f"close {self.name}\n")
        do(self.document.get("close"))


def get_available_providers() -> list[str]:
    return ["CPUExecutionProvider"]


def register_execution_provider_library(name: str, path: str) -> None:
    if Path(path).name == "crash.so":
        do("crash")
    registered.append((name, path))


def get_ep_devices() -> list[Any]:
    hardware = SimpleNamespace(type=SimpleNamespace(name="CPU"), vendor="Acme", metadata={})
    return [SimpleNamespace(ep_name=name, device=hardware, ep_metadata={}) for name, _ in registered]


def get_model_compatibility_for_ep_devices(devices: list[Any], written: str) -> Any:
    """Return the answer that a model was compiled with, or refuse."""
    if written.startswith("EP_"):
        return SimpleNamespace(name=written)
    raise RuntimeError(f"cannot judge {written}")


def write_package(packages: Path) -> None:
    """Write this module as the package `onnxruntime` below a folder, with the module of the compatibility API."""
    (packages / "onnxruntime" / "capi").mkdir(parents=True)
    (packages / "onnxruntime" / "__init__.py").write_text(Path(__file__).read_text(encoding="utf-8"), encoding="utf-8")
    (packages / "onnxruntime" / "capi" / "__init__.py").touch()
    state = "from onnxruntime import get_model_compatibility_for_ep_devices\n"
    (packages / "onnxruntime" / "capi" / "onnxruntime_pybind11_state.py").write_text(state, encoding="utf-8")
