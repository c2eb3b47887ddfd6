"""Unusual sources from exporters: compiled by the real QNN EP, verified and compared, or refused."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.support.projects import Project

RECIPE = """\
epbuild: 1
name: odd
toolchains:
  qnn: {packages: [onnxruntime==1.31.1, onnxruntime-qnn==2.7.0]}
models: {MODELS}
targets:
  npu: {toolchain: qnn, ep: QNNExecutionProvider, provider_options: {backend_type: htp, soc_model: SM8750}}
groups:
  all: {models: [MODELS], targets: [npu], expect: {fallback_nodes: 1}}
outputs:
  - {layout: directory, path: dist}
"""


def write_recipe(project: Project, *models: str) -> None:
    text = RECIPE.replace("models: {MODELS}", f"models: {{{', '.join(f'{name}: {name}.onnx' for name in models)}}}")
    project.recipe.write_text(text.replace("MODELS", ", ".join(models)), encoding="utf-8")


def write_source(project: Project, name: str, output: list[int], *, overridable_weights: bool = False) -> Path:
    """Write a product of matrices with a wrong declared output shape.

    The last node falls back to the CPU, as QNN accepts no wrong shape.
    """
    weights = np.random.default_rng(3).standard_normal((8, 8)).astype(np.float32)
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 8])]
    if overridable_weights:
        inputs.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, [8, 8]))
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, output)]
    nodes = [helper.make_node("MatMul", ["x", "w"], ["product"]), helper.make_node("Mod", ["product", "many"], ["y"], fmod=1)]
    constants = [numpy_helper.from_array(weights, "w"), numpy_helper.from_array(np.array(1000, np.float32), "many")]
    graph = helper.make_graph(nodes, name, inputs, outputs, constants)
    path = project.folder / f"{name}.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def verified(project: Project, *arguments: str) -> tuple[int, dict[tuple[str, str], dict[str, Any]]]:
    done = project.epbuild("verify", "dist", *arguments, "--json")
    return done.returncode, {(item["check"], item["subject"]): item for item in json.loads(done.stdout)["findings"]}


@pytest.mark.skipif(sys.platform != "linux", reason="the HTP emulator that runs compiled contexts comes in the Linux wheel")
def test_a_wrong_output_shape_in_a_source_fails_no_check_of_a_new_build(project: Project) -> None:
    write_source(project, "paddle", [-1, 8])
    write_source(project, "declared", [2, 9])
    write_recipe(project, "paddle", "declared")
    project.build()
    status, found = verified(project, "--numbers", "--recipe", "epbuild.yaml")
    failed = {place: item["message"] for place, item in found.items() if item["outcome"] == "failed"}
    assert (status, failed) == (0, {})
    for name in ("paddle", "declared"):
        assert {check: found[check, f"{name}_ctx.onnx"]["outcome"] for check in ("signature", "load", "numbers")} == {
            "signature": "passed",
            "load": "passed",
            "numbers": "passed",
        }
    words = "The source declares the output 'y' as [2, 9]; ONNX Runtime computed [2, 8]."
    assert found["signature", "declared_ctx.onnx"]["message"] == words


def test_a_source_with_overridable_weights_is_refused_before_compiling(project: Project) -> None:
    write_source(project, "open", [2, 8], overridable_weights=True)
    write_recipe(project, "open")
    done = project.epbuild("run")
    assert done.returncode == 2
    assert "epbuild.yaml:5:16: error: the model 'open' has initializers that are also inputs ('w')" in done.stderr
    assert "[EPB259]" in done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="the HTP emulator that runs compiled contexts comes in the Linux wheel")
def test_an_unshared_model_loads_beside_a_damaged_model(project: Project) -> None:
    for name in ("left", "right"):
        write_source(project, name, [2, 8])
    write_recipe(project, "left", "right")
    project.build()
    binary = project.folder / "dist/left_qnn.bin"
    content = binary.read_bytes()
    binary.unlink()
    binary.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    status, found = verified(project, "--load")
    assert status == 1
    assert found["load", "left_ctx.onnx"]["message"] == "It was not loaded, because one of its files failed a check."
    assert found["load", "right_ctx.onnx"]["outcome"] == "passed"
