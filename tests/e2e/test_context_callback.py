"""Encrypted context binaries in the real ONNX Runtime, with a plugin EP that reads them through the callback."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import numpy
import onnx
import pytest
from onnx import TensorProto, helper

from epbuild.core.digest import hash_bytes
from tests.e2e.contoso_library import EP, build_library, needs_compiler
from tests.support.encrypted_files import KEY, encrypted, link_cryptography
from tests.support.projects import RECIPES, toolchain_python

pytestmark = [pytest.mark.slow, needs_compiler]

BINARY = "context.bin"
CONTENT = numpy.arange(20_000, dtype=numpy.float32).tobytes()  # two chunks
RUN = """
import os, sys
import numpy, onnxruntime
import epbuild.runtime

onnxruntime.register_execution_provider_library("ContosoExecutionProvider", sys.argv[1])
x = numpy.ones(4, "float32")
for folder, key in (("whole", sys.argv[2]), ("whole", "00" * 32), ("damaged", sys.argv[2])):
    try:
        with epbuild.runtime.open(folder, decrypt=key) as group:
            print(group["bias"].run(None, {"x": x})[0].tolist(), flush=True)
    except epbuild.runtime.OpenError as error:
        print(error, flush=True)
os._exit(0)
"""


@pytest.fixture
def library(tmp_path: Path) -> Path:
    """Return the library of the plugin EP."""
    return build_library(tmp_path)


def write_variant(folder: Path, context: bytes) -> None:
    """Write an output with one model, as epbuild emits it."""
    folder.mkdir()
    values = {name: [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4])] for name in ("x", "y")}
    node = helper.make_node(
        "EPContext", ["x"], ["y"], domain="com.microsoft", source=EP, main_context=1, embed_mode=0, ep_cache_context=BINARY
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    graph = helper.make_graph([node], "bias", values["x"], values["y"])
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), folder / "bias_ctx.onnx")
    (folder / BINARY).write_bytes(context)
    manifest = {
        "format": 1,
        "group": "main",
        "share_weights": False,
        "target": {"name": "cpu", "eps": [{"ep": EP, "provider_options": {}}], "session_options": {}},
        "models": [{"name": "bias", "file": "bias_ctx.onnx"}],
        "files": [{"path": BINARY, "role": "context-binary", "plain": {"sha256": hash_bytes(CONTENT)}}],
    }
    (folder / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")


def test_a_plugin_ep_computes_with_a_decrypted_context_binary(library: Path, tmp_path: Path) -> None:
    context = encrypted(CONTENT, BINARY)
    write_variant(tmp_path / "whole", context)
    write_variant(tmp_path / "damaged", context[:-1] + bytes([context[-1] ^ 1]))
    (tmp_path / "packages").mkdir()
    done = subprocess.run(
        [toolchain_python("onnxruntime-qnn==2.7.0"), "-c", RUN, library, KEY.hex()],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": f"{RECIPES.parent}{os.pathsep}{link_cryptography(tmp_path / 'packages')}"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stdout.splitlines() == [
        "[19997.0, 19998.0, 19999.0, 20000.0]",
        "whole/context.bin cannot be decrypted: it was encrypted with another key [EPB658]",
        "damaged/context.bin cannot be decrypted: it is damaged [EPB658]",
    ], done.stderr
