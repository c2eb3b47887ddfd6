"""A real script that writes a model, two models that are made of it, and the real EP that compiles them."""

from __future__ import annotations

import json
import sys

import jsonschema
import numpy
import pytest

from epbuild.core.canonical import read_schema
from tests.support.projects import Project, compiled

pytestmark = [
    pytest.mark.gate,
    pytest.mark.skipif(sys.platform != "linux", reason="the HTP emulator that runs compiled contexts comes in the Linux wheel"),
]

RECIPE = """\
epbuild: 1
name: made
toolchains:
  qnn: {packages: [onnxruntime==1.31.1, onnxruntime-qnn==2.7.0]}
  tools: {packages: [onnx==1.19.1]}
models:
  llm: {make: {run: [python, export.py, weights.bin, "${out}"], files: [export.py, weights.bin], toolchain: tools}}
  first: {from: llm, prepare: [{cut: {outputs: [hidden]}, toolchain: tools}]}
  second: {from: llm, verify: true, prepare: [{run: [python, rename.py, "${in}", "${out}"], files: [rename.py], toolchain: tools}]}
targets: {npu: {ep: qnn, soc: SM8750}}
outputs: [{layout: directory, path: "dist/${group}", provenance: true, sbom: true, include_source: "base/${model}.onnx"}]
"""
EXPORT = """\
import sys

import onnx
from onnx import TensorProto, helper

weights = open(sys.argv[1], "rb").read()
value = helper.make_tensor_value_info
graph = helper.make_graph(
    [helper.make_node("MatMul", ["x", "w"], ["hidden"]), helper.make_node("MatMul", ["hidden", "w"], ["y"])],
    "g",
    [value("x", TensorProto.FLOAT, [1, 64])],
    [value("y", TensorProto.FLOAT, [1, 64])],
    [helper.make_tensor("w", TensorProto.FLOAT, [64, 64], weights, raw=True)],
)
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
onnx.save(model, sys.argv[2], save_as_external_data=True, location="llm.data", size_threshold=0)
"""
RENAME = """\
import sys

import onnx

model = onnx.load(sys.argv[1])
for number, node in enumerate(model.graph.node):
    node.name = f"n{number}"
onnx.save(model, sys.argv[2])
"""
MAKE, FIRST, SECOND = "prepare:llm/make", "prepare:first/1-cut", "prepare:second/1-run"


@pytest.fixture
def project_of_an_llm(project: Project) -> Project:
    project.folder.mkdir(exist_ok=True)
    for name, text in (("export.py", EXPORT), ("rename.py", RENAME), ("epbuild.yaml", RECIPE)):
        (project.folder / name).write_text(text, encoding="utf-8")
    (project.folder / "weights.bin").write_bytes(numpy.eye(64, dtype=numpy.float32).tobytes())
    return project


def test_a_script_makes_a_model_whose_parts_are_compiled_and_checked(project_of_an_llm: Project) -> None:
    project = project_of_an_llm
    built = compiled(project.build())
    assert {MAKE, FIRST, SECOND, "compile:first/npu/first", "compile:second/npu/second", "verify:second/npu"} <= built
    assert project.epbuild("run").stdout.startswith("Nothing to do")
    manifest = json.loads((project.folder / "dist/second/manifest.json").read_bytes())
    jsonschema.validate(manifest, read_schema("manifest"))
    [model] = manifest["models"]
    assert [*model["source"]["prepared"]["from"]["external_data"]] == ["llm.data"]
    assert {row["reference"] for row in model["figures"]} == {"source"}
    numbers = project.epbuild("verify", "dist/second", "--numbers", "--recipe", "epbuild.yaml")
    assert numbers.returncode == 0, numbers.stdout + numbers.stderr

    (project.folder / "rename.py").write_text(RENAME.replace('"n{', '"m{'), encoding="utf-8")
    (project.folder / "export.py").write_text(f"# a comment\n{EXPORT}", encoding="utf-8")
    assert compiled(project.build()) == {MAKE, SECOND, "compile:second/npu/second", "verify:second/npu"}
