"""EPContext models around OpenVINO models of two files, written and run with the real openvino."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from epbuild.verify.inspection import inspect_model
from tests.onnxfile.context_models import OPENVINO, compiled
from tests.support.projects import Project
from tests.support.quick_builds import write_model

pytestmark = pytest.mark.gate

_WRITE = "import openvino, sys; openvino.save_model(openvino.convert_model(sys.argv[1]), sys.argv[2], compress_to_fp16=False)"
_RUN = """
import numpy, openvino, sys
compiled = openvino.Core().compile_model(sys.argv[1], "CPU")
print(compiled(numpy.ones((1, 64), numpy.float32))[0].tobytes().hex())
"""


@pytest.fixture(scope="module")
def openvino(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install openvino, and return its interpreter."""
    place = tmp_path_factory.mktemp("openvino") / "env"
    uv = [sys.executable, "-m", "uv", "--quiet"]
    python = place / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")
    subprocess.run([*uv, "venv", str(place)], check=True)
    subprocess.run([*uv, "pip", "install", "--python", str(python), "openvino==2026.4.1"], check=True)
    return python


def run(python: Path, script: str, *arguments: Path) -> str:
    done = subprocess.run([python, "-I", "-c", script, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_openvino_model_keeps_its_weights_when_it_moves(openvino: Path, tmp_path: Path) -> None:
    project = Project(tmp_path, tmp_path / "cache")
    write_model(tmp_path / "source.onnx", seed=1)
    run(openvino, _WRITE, tmp_path / "source.onnx", tmp_path / "net.xml")
    compiled(tmp_path / "m.onnx", source=OPENVINO, binary="net.xml")
    [node] = inspect_model(tmp_path / "m.onnx")["ep_context_nodes"]
    assert node["weights"] is not None
    assert [(part["offset"], part["size"]) for part in node["weights"]["parts"]] == [(0, 64 * 64 * 4)]
    for arguments in (
        ("inspect", "m.onnx"),
        ("verify", "m.onnx"),
        ("relink", "m.onnx", "--binary", "parts/moved.xml", "-o", "relinked"),
    ):
        done = project.epbuild(*arguments)
        assert done.returncode == 0, done.stdout + done.stderr
    assert run(openvino, _RUN, tmp_path / "relinked/parts/moved.xml") == run(openvino, _RUN, tmp_path / "net.xml")
    (tmp_path / "relinked/parts/moved.bin").write_bytes(bytes(64 * 64 * 4 - 1))
    done = project.epbuild("verify", "relinked", "--json")
    assert done.returncode == 1
    failed = [item for item in json.loads(done.stdout)["findings"] if item["outcome"] == "failed"]
    assert [(item["check"], item["code"]) for item in failed] == [("references", "EPB605")]
    assert failed[0]["message"].endswith("'parts/moved.bin' have 16,383 bytes; the context 'parts/moved.xml' needs 16,384.")
