"""Stand-in for `onnxruntime` that writes small EPContext models without compiling, to measure epbuild itself.

It has the functions that epbuild's worker calls. As in real output, the content depends on the source models.
"""

from __future__ import annotations

import hashlib
import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

__version__ = "1.0.0"

_EP = "QNNExecutionProvider"

OrtCompileApiFlags = SimpleNamespace(ERROR_IF_NO_NODES_COMPILED=1)
GraphOptimizationLevel = SimpleNamespace(
    ORT_DISABLE_ALL=0, ORT_ENABLE_BASIC=1, ORT_ENABLE_EXTENDED=2, ORT_ENABLE_LAYOUT=3, ORT_ENABLE_ALL=99
)

_sharing: dict[str, bytes] = {}


class SessionOptions:
    """Session options: whether the context is shared, and whether this model is the last of its group."""

    def __init__(self) -> None:
        self.entries: dict[str, str] = {}

    def add_provider_for_devices(self, devices: list[Any], options: dict[str, str]) -> None:
        """Do nothing. All devices are equivalent here."""

    def add_session_config_entry(self, key: str, value: str) -> None:
        self.entries[key] = value


class ModelCompiler:
    """Compiler of a source model into an EPContext model whose context is the source's SHA-256."""

    def __init__(self, options: SessionOptions, source: str, **settings: Any) -> None:
        self._entries = options.entries
        self._source = Path(source)

    def compile_to_file(self, output: str) -> None:
        time.sleep(float(os.environ.get("STANDIN_SECONDS", "0")))
        path = Path(output)
        shared = self._entries.get("ep.share_ep_contexts") == "1"
        if not shared:
            _sharing.clear()
        _sharing[path.stem] = hashlib.sha256(self._source.read_bytes()).digest()
        # As in QNN, the first member names the binary, and the last one writes it.
        binary = f"{next(iter(_sharing)).removesuffix('_ctx')}_qnn.bin"
        path.write_bytes(_model(self._source.stem, binary))
        if not shared or self._entries.get("ep.stop_share_ep_contexts") == "1":
            path.with_name(binary).write_bytes(b"".join(_sharing.values()))


def register_execution_provider_library(name: str, path: str) -> None:
    """Do nothing. There is no library."""


def get_ep_devices() -> list[Any]:
    hardware = SimpleNamespace(type=SimpleNamespace(name="NPU"), vendor="nobody", metadata={})
    return [SimpleNamespace(ep_name=_EP, device=hardware, ep_metadata={})]


def _model(name: str, binary: str) -> bytes:
    """Return a ModelProto with one EPContext node, encoded with the field numbers of onnx.proto."""
    attributes = [
        _text(1, "main_context") + _number(3, 1) + _number(20, 2),
        _text(1, "embed_mode") + _number(3, 0) + _number(20, 2),
        _text(1, "ep_cache_context") + _text(4, binary) + _number(20, 3),
        _text(1, "source") + _text(4, _EP) + _number(20, 3),
        _text(1, "partition_name") + _text(4, name) + _number(20, 3),
    ]
    node = _text(3, name) + _text(4, "EPContext") + b"".join(_message(5, one) for one in attributes) + _text(7, "com.microsoft")
    graph = _message(1, node) + _text(2, name)
    return _number(1, 10) + _message(7, graph) + _message(8, _text(1, "com.microsoft") + _number(2, 1))


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _text(field: int, value: str) -> bytes:
    return _message(field, value.encode())


def _message(field: int, content: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
