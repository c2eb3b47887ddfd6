"""Fake `onnxruntime` for `epbuild.runtime`: devices, plugin packages and sessions that record their arguments."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest


class Session:
    """InferenceSession that logs when it opens and when it is freed."""

    def __init__(self, source: str | bytes, log: list[str]) -> None:
        self._name, self._log = source.decode() if isinstance(source, bytes) else Path(source).stem, log
        log.append(f"open {self._name}")

    def __del__(self) -> None:
        self._log.append(f"close {self._name}")


class SessionOptions:
    """Session options that record their values."""

    def __init__(self) -> None:
        self.entries: dict[str, str] = {}
        self.providers: list[Any] = []
        self.custom_ops: list[str] = []
        self.data: dict[str, bytes] = {}

    def add_external_initializers_from_files_in_memory(self, names: list[str], buffers: list[bytes], lengths: list[int]) -> None:
        assert [len(content) for content in buffers] == lengths
        self.data |= zip(names, map(bytes, buffers), strict=True)

    def register_custom_ops_library(self, path: str) -> None:
        if "broken" in path:
            raise RuntimeError("invalid ELF header")
        self.custom_ops.append(path)

    def add_provider(self, name: str, options: Mapping[str, str]) -> None:
        self.providers.append((name, dict(options)))

    def add_provider_for_devices(self, devices: list[Any], options: Mapping[str, str]) -> None:
        self.providers.append(([(device.ep_name, device.device.type.name) for device in devices], dict(options)))

    def add_session_config_entry(self, key: str, value: str) -> None:
        self.entries[key] = value


class Machine:
    """Fake machine: built-in EPs, plugin packages with their devices, and a compatibility check."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.log: list[str] = []
        self.registered: list[tuple[str, str]] = []
        self.options: list[SessionOptions] = []
        self.devices: list[Any] = []
        self.asked: list[tuple[str, str]] = []
        self.judge: Callable[[Any, str], str] | None = None
        self.broken: set[str] = set()
        self._patch = monkeypatch
        self._plugins: dict[str, list[Any]] = {}
        self.module = ModuleType("onnxruntime")
        vars(self.module).update(
            __version__="1.99.0",
            get_available_providers=lambda: ["BuiltInExecutionProvider", *(name for name, _ in self.registered)],
            get_ep_devices=lambda: list(self.devices),
            register_execution_provider_library=self._register,
            SessionOptions=SessionOptions,
            InferenceSession=self._open,
        )
        monkeypatch.setitem(sys.modules, "onnxruntime", self.module)

    def install(self, module: str, *devices: Any, sdk: str = "2.51.0") -> None:
        """Install a plugin package whose library offers these devices once it is registered."""
        package = ModuleType(module)
        vars(package)["build_and_package_info"] = SimpleNamespace(qnn_version=sdk)
        library = f"/{module}/library.so"
        vars(package)["get_library_path"] = lambda: library
        self._plugins[library] = list(devices)
        self._patch.setitem(sys.modules, module, package)

    def knows_compatibility(self, judge: Callable[[Any, str], str]) -> None:
        """Add a compatibility check where onnxruntime 1.31 has it. `judge` returns the name of a verdict."""

        def ask(devices: list[Any], text: str) -> Any:
            self.asked.append((devices[0].device.type.name, text))
            return SimpleNamespace(name=judge(devices[0], text))

        state = SimpleNamespace(get_model_compatibility_for_ep_devices=ask)
        vars(self.module)["capi"] = SimpleNamespace(onnxruntime_pybind11_state=state)

    def _register(self, name: str, library: str) -> None:
        if any(name == known for known, _ in self.registered):
            raise RuntimeError(f"EP library is already registered under {name}")
        self.registered.append((name, library))
        self.devices += self._plugins[library]

    def _open(self, source: str | bytes, sess_options: SessionOptions, enable_fallback: int) -> Session:
        assert enable_fallback == 0
        if isinstance(source, str) and Path(source).stem in self.broken:
            raise RuntimeError("[ONNXRuntimeError] : 10 : INVALID_GRAPH : Failed to get context binary info.")
        self.options.append(sess_options)
        return Session(source, self.log)


def device(ep: str, kind: str, vendor: str = "Acme", **metadata: str) -> Any:
    """Return an OrtEpDevice."""
    hardware = SimpleNamespace(type=SimpleNamespace(name=kind), vendor=vendor, metadata={})
    return SimpleNamespace(ep_name=ep, device=hardware, ep_metadata=metadata)
