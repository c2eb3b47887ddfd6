"""`epbuild verify --numbers --recipe` with every kind of source, on folders, archives and packages."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import numpy
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.support.packages import only_from, write_wheel
from tests.support.projects import Project
from tests.support.quick_builds import write_model

pytestmark = [
    pytest.mark.gate,
    pytest.mark.skipif(sys.platform != "linux", reason="the HTP emulator that runs compiled contexts comes in the Linux wheel"),
]

RECIPE = """\
epbuild: 1
name: sources
toolchains:
  qnn: {packages: [onnxruntime==1.31.1, onnxruntime-qnn==2.7.0]}
  tools: {packages: [onnx==1.19.1]}
models:
  sized: {path: sized.onnx, input_shapes: {x: [1, 64]}}
  data: {path: data.onnx}
  package: {path: "package:my-models==1.0/model.onnx"}
  prepared: {path: data.onnx, prepare: [{run: [python, move.py, "${in}", "${out}", y], files: [move.py], toolchain: tools}]}
  renamed: {path: data.onnx, prepare: [{run: [python, move.py, "${in}", "${out}", z], files: [move.py], toolchain: tools}]}
  asked:
    path: data.onnx
    prepare: [{run: [python, move.py, "${in}", "${out}", y], files: [move.py], toolchain: tools}]
    verify: {reference: prepared}
  scaled: {path: sized.onnx, input_shapes: {x: [1, 64]}, prepare: [{infer_shapes: {}, toolchain: tools}]}
targets:
  npu: {toolchain: qnn, ep: QNNExecutionProvider, provider_options: {backend_type: htp, soc_model: SM8750}}
groups:
  alone: {models: [sized, data, package, prepared, renamed, asked, scaled], targets: [npu]}
  shared: {models: [data, prepared], targets: [npu], share_weights: true}
  merged: {models: [data, scaled], targets: [npu], merge: {name: both, prefixes: {scaled: scaled_}}}
outputs:
  - {layout: directory, path: "dist/folder/${group}"}
  - {layout: directory, path: "dist/${group}.zip", archive: zip}
  - {layout: ort-model-package, path: "dist/${group}.ortpackage", groups: [alone, shared]}
"""
MOVE = """\
import sys

import onnx

model = onnx.load(sys.argv[1])
name = sys.argv[3]
model.graph.node[-1].output[0] = model.graph.output[0].name = name
onnx.save(model, sys.argv[2], save_as_external_data=True, location="moved.data", size_threshold=0)
"""
SOURCES = 7


@pytest.fixture
def built(project: Project, tmp_path: Path) -> Project:
    project.folder.mkdir(exist_ok=True)
    write_model(project.folder / "data.onnx", 1)
    model = onnx.load(project.folder / "data.onnx")
    write_wheel(tmp_path / "wheels", "my-models", "1.0", files={"my_models/model.onnx": model.SerializeToString()})
    project.environment |= only_from(tmp_path / "wheels", tmp_path / "uv")
    onnx.save(model, project.folder / "data.onnx", save_as_external_data=True, location="data.bin", size_threshold=0)
    weights = numpy_helper.from_array(numpy.eye(64, dtype=numpy.float32), "w")
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["rows", 64]) for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "g", values[:1], values[1:], [weights])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), project.folder / "sized.onnx")
    (project.folder / "move.py").write_text(MOVE, encoding="utf-8")
    project.recipe.write_text(RECIPE, encoding="utf-8")
    project.build()
    return project


def numbers(project: Project, place: str) -> str:
    """Return the result of the numbers check of an output, in one line."""
    done = project.epbuild("verify", place, "--numbers", "--recipe", "epbuild.yaml")
    assert done.returncode == 0, done.stdout + done.stderr
    found = re.search(r"^numbers .*?(?=^\S|\Z)", done.stdout, re.MULTILINE | re.DOTALL)
    assert found, done.stdout
    return " ".join(found[0].split())


def test_every_source_is_found_and_compared(built: Project, exhaustive: bool) -> None:
    few = {"dist/folder/alone": SOURCES, "dist/shared.ortpackage": 2}  # archives are below
    rest = {"dist/alone.zip": SOURCES, "dist/shared.zip": 2, "dist/folder/shared": 2, "dist/alone.ortpackage": SOURCES}
    for place, models in (few | rest if exhaustive else few).items():
        assert numbers(built, place).startswith(f"numbers {models} passed")
    for place in ("dist/folder/merged", "dist/merged.zip") if exhaustive else ("dist/merged.zip",):
        assert "it was merged from data, scaled; specify an equivalent model" in numbers(built, place).lower()

    # The message names a prepared model that the cache has lost, as no other source can be compared.
    for blob in (built.cache / "cas/sha256").rglob("*"):
        if blob.is_file() and b"moved.data" in blob.read_bytes():
            blob.chmod(0o644)
            blob.unlink()
    said = numbers(built, "dist/alone.zip")
    assert said.startswith(f"numbers 2 skipped, {SOURCES - 2} passed")
    for name in ("renamed", "asked"):
        assert f"The result of prepare:{name}/1-run is not in the store; run `epbuild run` to recreate it" in said
