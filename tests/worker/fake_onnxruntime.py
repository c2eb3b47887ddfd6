"""Fake `onnxruntime` that writes its arguments instead of compiling, and fails if the source model says so."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

__version__ = "1.99.0"

OrtCompileApiFlags = SimpleNamespace(ERROR_IF_NO_NODES_COMPILED=1)
GraphOptimizationLevel = SimpleNamespace(
    ORT_DISABLE_ALL=0, ORT_ENABLE_BASIC=1, ORT_ENABLE_EXTENDED=2, ORT_ENABLE_LAYOUT=3, ORT_ENABLE_ALL=99
)
registered: list[tuple[str, str]] = []


class SessionOptions:
    """Session options that record their values."""

    def __init__(self) -> None:
        self.entries: dict[str, str] = {}
        self.providers: list[Any] = []
        self.dimensions: dict[str, dict[str, int]] = {"name": {}, "denotation": {}}
        self.custom_ops: list[str] = []

    def add_provider(self, name: str, options: dict[str, str]) -> None:
        self.providers.append([name, options])

    def add_provider_for_devices(self, devices: list[Any], options: dict[str, str]) -> None:
        self.providers.append([[device.device.type.name for device in devices], options])

    def add_session_config_entry(self, key: str, value: str) -> None:
        self.entries[key] = value

    def register_custom_ops_library(self, path: str) -> None:
        if not Path(path).is_file():
            raise RuntimeError(f"Failed to load library {path}")
        self.custom_ops.append(path)

    def add_free_dimension_override_by_name(self, name: str, size: int) -> None:
        self.dimensions["name"][name] = size

    def add_free_dimension_override_by_denotation(self, denotation: str, size: int) -> None:
        self.dimensions["denotation"][denotation] = size


class ModelCompiler:
    """Compiler that writes its arguments as JSON. The source's text may be one of the commands below.

    A function among the settings is written as its answers for an initializer in the graph and for one in external data.
    """

    def __init__(self, options: SessionOptions, source: str | bytes, **settings: Any) -> None:
        self.document = {
            "entries": options.entries,
            "providers": options.providers,
            "dimensions": options.dimensions,
            "source": source if isinstance(source, str) else {"bytes": source.decode()},
            "settings": {
                name: [value("w", "a value", None), value("w", "a value", "where it is")] if callable(value) else value
                for name, value in settings.items()
            },
        }
        self.command = Path(source).read_text(encoding="utf-8") if isinstance(source, str) else source.decode()

    def compile_to_file(self, output: str) -> None:
        os.write(1, b'{"event": "finished"} natively on standard output\n')
        os.write(2, b"words of the EP\n")
        if self.command == "fail":
            raise RuntimeError("[ONNXRuntimeError] : 1 : FAIL : Unable to compile any nodes")
        if self.command == "say all":
            raise RuntimeError("the reason is: " + "x" * 100_000_000 + ": the end")
        if self.command == "out of memory":
            raise MemoryError
        if self.command == "crash":
            os.kill(os.getpid(), signal.SIGABRT)
        Path(output).write_text(json.dumps(self.document), encoding="utf-8")


def get_available_providers() -> list[str]:
    return ["OpenVINOExecutionProvider", "CPUExecutionProvider"]


def register_execution_provider_library(name: str, path: str) -> None:
    registered.append((name, path))


def get_ep_devices() -> list[Any]:
    return [device(name.removesuffix(".virtual"), "CPU", library=path) for name, path in registered]


def device(ep: str, kind: str, vendor: str = "Acme", **metadata: str) -> Any:
    """Return an OrtEpDevice."""
    hardware = SimpleNamespace(type=SimpleNamespace(name=kind), vendor=vendor, metadata={"hardware": "1"})
    return SimpleNamespace(ep_name=ep, device=hardware, ep_metadata=metadata)
