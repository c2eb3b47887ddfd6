"""Input sizes from a recipe: models with dynamic shapes compile completely, once for each size."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from epbuild.onnxfile.read.headers import read_header
from tests.support.projects import Project

pytestmark = pytest.mark.gate

RECIPE = """\
epbuild: 1
name: sizes
toolchains:
  qnn: {packages: [onnxruntime==1.31.1, onnxruntime-qnn==2.7.0]}
models:
  reader: reader.onnx
targets:
  phone:
    toolchain: qnn
    ep: QNNExecutionProvider
    provider_options: {backend_type: htp, soc_model: SM8650}
groups:
  pages:
    models:
      - {model: reader, name: line, input_shapes: {x: [1, 3, 32, 96]}}
      - {model: reader, name: page, input_shapes: {x: [1, 3, 64, 96]}}
    targets: [phone]
    share_weights: true
    expect: {ep_context_nodes: 1, fallback_nodes: 0, shared_bytes: {min_ratio: 0.2, measure: alone}}
outputs:
  - {layout: directory, path: dist, provenance: true, sbom: true, include_source: "base/${model}.onnx"}
"""
DIMS: list[Any] = [-1, 3, "?", "?"]
"""Shape of an image as Paddle's exporter declares it, without names of dimensions."""


def write_reader(path: Path) -> None:
    """Write two convolutions. The output and the value between declare the size of the export's example input."""
    random = numpy.random.default_rng(0)
    weights = [
        numpy_helper.from_array(random.standard_normal(shape).astype(numpy.float32) / 64, name)
        for name, shape in (("first", (256, 3, 3, 3)), ("second", (256, 256, 3, 3)))
    ]
    nodes = [
        helper.make_node("Conv", ["x", "first"], ["between"], name="conv1", pads=[1, 1, 1, 1]),
        helper.make_node("Conv", ["between", "second"], ["y"], name="conv2", pads=[1, 1, 1, 1], strides=[2, 2]),
    ]
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "g",
        [value("x", TensorProto.FLOAT, DIMS)],
        [value("y", TensorProto.FLOAT, [1, 256, 8, 8])],
        weights,
        value_info=[value("between", TensorProto.FLOAT, [1, 256, 16, 16])],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


def succeed(project: Project, *arguments: str) -> str:
    """Run a command that has to succeed, and return its output."""
    done = project.epbuild(*arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def pages(project: Project) -> Project:
    write_reader(project.folder / "reader.onnx")
    project.recipe.write_text(RECIPE, encoding="utf-8")
    return project


def test_one_model_at_two_sizes_shares_weights_under_two_names(pages: Project) -> None:
    succeed(pages, "run", "--rebuild-and-compare")
    dist = pages.folder / "dist"
    headers = {name: read_header(dist / f"{name}_ctx.onnx") for name in ("line", "page")}
    assert {name: header.inputs[0].shape for name, header in headers.items()} == {
        "line": (1, 3, 32, 96),
        "page": (1, 3, 64, 96),
    }
    assert {name: header.outputs[0].shape for name, header in headers.items()} == {
        "line": (1, 256, 16, 48),
        "page": (1, 256, 32, 48),
    }
    assert [node.reference for header in headers.values() for node in header.ep_context_nodes] == ["line_qnn.bin"] * 2
    source = (pages.folder / "reader.onnx").read_bytes()
    assert [(dist / "base" / f"{name}.onnx").read_bytes() for name in headers] == [source] * 2, "it is shipped as it was"

    listed = {
        model["name"]: model["source"] for model in json.loads((dist / "manifest.json").read_text(encoding="utf-8"))["models"]
    }
    assert {name: (item["model"], item["sizes"]) for name, item in listed.items()} == {
        "line": ("reader", {"x": [1, 3, 32, 96]}),
        "page": ("reader", {"x": [1, 3, 64, 96]}),
    }
    statement = json.loads((dist / "provenance.intoto.json").read_text(encoding="utf-8"))
    (build,) = statement["predicate"]["buildDefinition"]["externalParameters"]["builds"]
    assert [(item["name"], item["source"], item["inputs"]) for item in build["models"]] == [
        ("line", "reader.onnx", {"x": [1, 3, 32, 96]}),
        ("page", "reader.onnx", {"x": [1, 3, 64, 96]}),
    ]
    succeed(pages, "verify", "dist")
    assert "2 passed" in succeed(pages, "verify", "dist", "--numbers", "--recipe", "epbuild.yaml")

    edited = RECIPE.replace("[1, 3, 64, 96]", "[1, 3, 64, 128]")
    pages.recipe.write_text(edited, encoding="utf-8")
    assert "model page: sizes of input x changed: 1, 3, 64, 96 -> 1, 3, 64, 128" in succeed(pages, "explain", "share:*")


def test_validate_suggests_input_sizes_that_are_valid(pages: Project) -> None:
    open_sizes = RECIPE.replace("{model: reader, name: line, input_shapes: {x: [1, 3, 32, 96]}}", "reader")
    pages.recipe.write_text(open_sizes, encoding="utf-8")
    refused = pages.epbuild("validate", "--json")
    (problem,) = json.loads(refused.stdout)["problems"]
    assert (refused.returncode, problem["code"]) == (2, "EPB264")
    assert "x[?, 3, ?, ?]" in problem["message"]
    assert problem["lines"] == ["input_shapes:", "  x: [1, 3, 224, 224]"]
    below = "".join(f"    {line}\n" for line in ("path: reader.onnx", *problem["lines"]))
    pages.recipe.write_text(open_sizes.replace("  reader: reader.onnx\n", f"  reader:\n{below}"), encoding="utf-8")
    refused = pages.epbuild("validate")
    assert refused.returncode == 2, "the other member has sizes that do not agree with those"
    assert "[1, 3, 224, 224] in the model" in refused.stderr
    pages.edit(", input_shapes: {x: [1, 3, 64, 96]}", "")
    succeed(pages, "validate")
