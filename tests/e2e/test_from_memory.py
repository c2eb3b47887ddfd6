"""Models in memory: the real QNN EP finds contexts and data, and computes the same numbers as with files."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.support.encrypted_files import link_cryptography
from tests.support.projects import RECIPES, Project, toolchain_python

pytestmark = [
    pytest.mark.gate,
    pytest.mark.skipif(sys.platform != "linux", reason="the HTP emulator that runs compiled contexts comes in the Linux wheel"),
]

RECIPE = """\
epbuild: 1
name: memory
toolchains:
  qnn: {packages: [onnxruntime==1.31.1, onnxruntime-qnn==2.7.0]}
models: {data: data.onnx}
targets:
  npu: {toolchain: qnn, ep: QNNExecutionProvider, provider_options: {backend_type: htp, soc_model: SC8380XP}}
groups:
  files:
    {models: [data], expect: {fallback_nodes: any}, compile: {initializers: {store: external, file: w.data, threshold: 0}}}
  embedded: {models: [data], expect: {fallback_nodes: any}, compile: {embed: true}}
outputs:
  - {layout: directory, path: "dist/${group}"}
  - {layout: directory, path: shipped, groups: [embedded], encrypt: {key_variable: CONTEXT_KEY}}
"""
KEY = "5a" * 32
SIZE = 64
RUN = """
import os, shutil, sys
from pathlib import Path
import numpy
import epbuild.runtime

def run(path, names=(), **options):
    files = {name: (Path(path) / name).read_bytes() for name in names}
    with epbuild.runtime.open(path, files=files, **options) as group:
        return group["data"].run(None, {"x": x})[0]

os.chdir(sys.argv[1])
x = numpy.random.default_rng(0).standard_normal((64, 64)).astype("float32")
expected = run("files")
assert numpy.isfinite(expected).all() and expected.std() > 0
for folder, names in (
    ("files", ["data_ctx.onnx"]),
    ("files", ["data_ctx.onnx", "w.data"]),
    ("files", ["w.data"]),
    ("embedded", ["manifest.json", "data_ctx.onnx"]),
):
    assert numpy.array_equal(run(folder, names), expected), names
# The files in memory are not read from the disk.
names = ["manifest.json", "data_ctx.onnx", "w.data"]
files = {name: Path("files", name).read_bytes() for name in names}
shutil.copytree("files", "rest", ignore=shutil.ignore_patterns(*names))
with epbuild.runtime.open("rest", files=files) as group:
    assert numpy.array_equal(group["data"].run(None, {"x": x})[0], expected)
assert numpy.array_equal(run("../shipped", decrypt="5a" * 32), expected)
print("equal")
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """Return a model with external data for a node on the CPU, compiled with an external and an embedded context."""
    folder = tmp_path_factory.mktemp("memory")
    project = Project(folder / "project", folder / "cache")
    project.folder.mkdir()
    values = {name: helper.make_tensor_value_info(name, TensorProto.FLOAT, [SIZE, SIZE]) for name in ("x", "h", "y")}
    weights = [
        numpy_helper.from_array(numpy.random.default_rng(seed).random((SIZE, SIZE)).astype(numpy.float32), name)
        for seed, name in enumerate(("w", "c"))
    ]
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"], name="matmul"),
        helper.make_node("CDist", ["h", "c"], ["y"], name="distance", domain="com.microsoft", metric="euclidean"),
    ]
    graph = helper.make_graph(nodes, "data", [values["x"]], [values["y"]], weights, value_info=[values["h"]])
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), project.folder / "data.onnx")
    project.recipe.write_text(RECIPE, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CONTEXT_KEY", KEY)
        project.build()
    return project


def test_the_runtime_opens_models_and_data_from_memory(built: Project, tmp_path: Path) -> None:
    done = subprocess.run(
        [toolchain_python("onnxruntime-qnn==2.7.0"), "-c", RUN, built.folder / "dist"],
        env={**os.environ, "PYTHONPATH": f"{RECIPES.parent}{os.pathsep}{link_cryptography(tmp_path)}"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "equal"


def test_verify_loads_models_from_memory(built: Project, tmp_path: Path) -> None:
    done = built.epbuild("verify", "dist", "--numbers", "--from-memory", "--recipe", "epbuild.yaml", "--strict")
    assert done.returncode == 0, done.stdout + done.stderr
    assert " ".join(done.stdout.split()).count(" s from memory on cpu") in (1, 2)  # equal load times share a line
    assert "numbers        2 passed" in done.stdout
