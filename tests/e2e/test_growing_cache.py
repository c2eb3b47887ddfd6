"""Decoders whose cache grows by fixed sizes, which onnxruntime-genai cannot run.

epbuild refuses them as soon as the sizes are known.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.support.projects import Project

RECIPE = """\
epbuild: 1
name: growing
toolchains:
  qnn: {packages: [onnxruntime==1.31.1, onnxruntime-qnn==2.7.0]}
  tools: {packages: [onnx==1.19.1]}
models:
  decoder: {path: decoder.onnx}
targets:
  npu: {toolchain: qnn, ep: QNNExecutionProvider, provider_options: {backend_type: htp, soc_model: SM8750}}
groups:
  decoder:
    models:
      - {model: decoder, name: prefill, input_shapes: {x: [1, 1, 64, 8], past_key_0: [1, 1, PREFILL, 8], past_value_0: [1, 1, PREFILL, 8]}}
      - {model: decoder, name: decode, input_shapes: {x: [1, 1, 1, 8], past_key_0: [1, 1, DECODE, 8], past_value_0: [1, 1, DECODE, 8]}}
    targets: [npu]
    genai: {config: genai.json, roles: {prefill: prefill, decode: decode}}
outputs:
  - {layout: LAYOUT, path: dist/out}
"""
CONFIG = {
    "model": {
        "context_length": 256,
        "vocab_size": 8,
        "eos_token_id": 2,
        "decoder": {
            "inputs": {"input_ids": "x", "past_key_names": "past_key_%d", "past_value_names": "past_value_%d"},
            "outputs": {"present_key_names": "present_key_%d", "present_value_names": "present_value_%d"},
        },
    }
}


def write_growing(folder: Path) -> None:
    """Write a decoder that appends its input to the cache, with open sizes."""

    def value(name: str, size: str) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 1, size, 8])

    weights = numpy_helper.from_array(numpy.eye(8, dtype=numpy.float32), "w")
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["logits"]),
        helper.make_node("Concat", ["past_key_0", "logits"], ["present_key_0"], axis=2),
        helper.make_node("Concat", ["past_value_0", "logits"], ["present_value_0"], axis=2),
    ]
    inputs = [value("x", "sequence"), value("past_key_0", "past"), value("past_value_0", "past")]
    outputs = [value("logits", "sequence"), value("present_key_0", "total"), value("present_value_0", "total")]
    model = helper.make_model(
        helper.make_graph(nodes, "g", inputs, outputs, [weights]), opset_imports=[helper.make_opsetid("", 17)]
    )
    model.ir_version = 10
    onnx.save(model, folder / "decoder.onnx")
    (folder / "genai.json").write_text(json.dumps(CONFIG), encoding="utf-8")


def growing(project: Project, *, prefill: int, decode: int, layout: str = "directory") -> None:
    project.folder.mkdir(exist_ok=True)
    write_growing(project.folder)
    text = RECIPE.replace("PREFILL", str(prefill)).replace("DECODE", str(decode)).replace("LAYOUT", layout)
    project.recipe.write_text(text, encoding="utf-8")


@pytest.mark.parametrize("is_prepared", [False, True], ids=["as it is", "prepared"])
def test_sizes_in_the_recipe_are_refused_before_anything_is_compiled(project: Project, *, is_prepared: bool) -> None:
    growing(project, prefill=192, decode=255)
    if is_prepared:
        project.edit("decoder.onnx}", "decoder.onnx, prepare: [{infer_shapes: {}, toolchain: tools}]}")
    for command in ("validate", "run"):
        done = project.epbuild(command)
        assert done.returncode == 2, done.stdout + done.stderr
        said = " ".join((done.stdout + done.stderr).split())
        assert "'past_key_0' of the stage 'prefill' is [1, 1, 192, 8]" in said
        assert "'past_key_0' of the stage 'decode' is [1, 1, 255, 8]" in said
        assert "[EPB227]" in said
    assert not (project.folder / "dist").exists()


@pytest.mark.parametrize("layout", ["directory", "ort-model-package"])
def test_sizes_known_only_to_the_compiler_are_refused_on_emit(project: Project, layout: str) -> None:
    growing(project, prefill=192, decode=192, layout=layout)
    assert project.epbuild("validate").returncode == 0
    for _ in range(2):
        done = project.epbuild("run")
        assert done.returncode == 1, done.stdout + done.stderr
        said = " ".join(done.stderr.split())
        assert "'past_key_0' of the stage 'prefill' is [1, 1, 192, 8]" in said
        assert "'present_key_0' of the stage 'prefill' is [1, 1, 256, 8]" in said
        assert "'present_key_0' of the stage 'decode' is [1, 1, 193, 8]" in said
        assert "[EPB419]" in said
        assert not (project.folder / "dist/out").exists()
