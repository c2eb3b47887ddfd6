"""Fake `onnxruntime` before 1.23: no ModelCompiler, no plugin EPs, and sessions that write compiled models."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

__version__ = "1.21.0"

GraphOptimizationLevel = SimpleNamespace(
    ORT_DISABLE_ALL=0, ORT_ENABLE_BASIC=1, ORT_ENABLE_EXTENDED=2, ORT_ENABLE_LAYOUT=3, ORT_ENABLE_ALL=99
)
alive: list[str] = []


class SessionOptions:
    """Session options that record their values. They have no EPs."""

    def __init__(self) -> None:
        self.entries: dict[str, str] = {}
        self.dimensions: dict[str, int] = {}
        self.graph_optimization_level = 99

    def add_session_config_entry(self, key: str, value: str) -> None:
        self.entries[key] = value

    def add_free_dimension_override_by_name(self, name: str, size: int) -> None:
        self.dimensions[name] = size

    def add_free_dimension_override_by_denotation(self, denotation: str, size: int) -> None:
        self.dimensions[denotation] = size


class InferenceSession:
    """Session that writes its arguments as JSON in place of the compiled model. The source's text may be a command.

    It accepts any argument. If an EP fails, it retries with the CPU EP, which compiles nothing.
    """

    def __init__(self, source: str | bytes, sess_options: SessionOptions, providers: list[Any], **ignored: Any) -> None:
        self._enable_fallback = True
        text = Path(source).read_text(encoding="utf-8") if isinstance(source, str) else source.decode()
        if text == "fail" and not self._enable_fallback:
            raise RuntimeError("[ONNXRuntimeError] : 6 : RUNTIME_EXCEPTION : the EP gives its reason")
        if text in ("fail", "nothing"):
            return
        document = {
            "entries": sess_options.entries,
            "dimensions": sess_options.dimensions,
            "level": sess_options.graph_optimization_level,
            "providers": providers,
            "source": source if isinstance(source, str) else {"bytes": text},
            "alive": list(alive),
        }
        self.name = Path(sess_options.entries["ep.context_file_path"]).stem
        alive.append(self.name)
        Path(sess_options.entries["ep.context_file_path"]).write_text(json.dumps(document), encoding="utf-8")

    def __del__(self) -> None:
        if getattr(self, "name", None) in alive:
            alive.remove(self.name)


def get_available_providers() -> list[str]:
    return ["OpenVINOExecutionProvider", "CPUExecutionProvider"]
