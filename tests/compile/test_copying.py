"""Models that are emitted without being compiled: their bytes, data, sizes, manifest and coverage."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from epbuild.core.canonical import read_schema
from epbuild.runtime.variants import find_variants
from epbuild.session.events import ModelCovered
from epbuild.verify.artifact import find_artifacts
from epbuild.verify.static import check_models
from tests.support.fake_builds import Workshop

COPIED = ("    models: [prefill, decode]\n", "    models: [prefill, decode, {model: head, compile: none}]\n")
MODELS = ("models: {prefill", "models: {head: head.onnx, prefill")
COPY = "copy:decoder/npu/head"


def write_model(path: Path, value: float = 1.0) -> None:
    """Write a model with an open dimension, whose weight is in external data."""
    ends = [[helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 4])] for name in ("x", "y")]
    weight = numpy_helper.from_array(np.full(4, value, np.float32), "w")
    nodes = [helper.make_node("Add", ["x", "w"], ["y"])]
    model = helper.make_model(helper.make_graph(nodes, "head", *ends, [weight]))
    onnx.save(model, path, save_as_external_data=True, location="head.bin", size_threshold=0)


@pytest.fixture
def workshop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workshop:
    found = Workshop(tmp_path / "checkout", tmp_path / "cache", monkeypatch)
    found.write_recipe(COPIED, MODELS)
    write_model(found.folder / "head.onnx")
    return found


def manifest(workshop: Workshop) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(workshop.contents()["manifest.json"])
    return document


def test_a_model_is_emitted_as_it_is_beside_the_compiled_models(workshop: Workshop) -> None:
    assert workshop.build().exit_code == 0, workshop.problems
    assert "head" not in "".join(workshop.compiled)
    contents = workshop.contents()
    for name in ("head.onnx", "head.bin"):
        assert contents[name] == (workshop.folder / name).read_bytes()
    [row] = [event for event in workshop.events if isinstance(event, ModelCovered) and event.model == "head"]
    assert (row.outcome, row.step) == ("on the CPU", COPY)


def test_its_manifest_says_that_it_is_not_compiled(workshop: Workshop) -> None:
    workshop.build()
    document = manifest(workshop)
    jsonschema.validate(document, read_schema("manifest"))
    assert {model["name"]: model.get("compiled", True) for model in document["models"]} == {
        "prefill": True,
        "decode": True,
        "head": False,
    }
    [variant] = find_variants(workshop.output())
    assert variant.uncompiled == {"head"}
    [artifact] = find_artifacts(workshop.output())
    assert {finding.outcome for finding in check_models(artifact)} == {"passed"}


def test_only_a_changed_model_is_copied_again(workshop: Workshop) -> None:
    workshop.build()
    write_model(workshop.folder / "head.onnx", 2.0)
    assert workshop.states()[COPY] == "out of date"
    assert workshop.build().exit_code == 0
    assert workshop.compiled == []
    assert workshop.contents()["head.bin"] == (workshop.folder / "head.bin").read_bytes()


@pytest.mark.parametrize("sizes", ["input_shapes: {x: [2, 4]}", "dimensions: {n: 2}"])
def test_sizes_of_the_recipe_are_set_in_the_copy(workshop: Workshop, sizes: str) -> None:
    workshop.write_recipe((COPIED[0], COPIED[1].replace("compile: none", f"compile: none, {sizes}")), MODELS)
    assert workshop.build().exit_code == 0, workshop.problems
    graph = onnx.load_from_string(workshop.contents()["head.onnx"]).graph
    assert [dim.dim_value for dim in graph.input[0].type.tensor_type.shape.dim] == [2, 4]
    [source] = [model["source"] for model in manifest(workshop)["models"] if model["name"] == "head"]
    assert source["inputs"][0]["shape"] == [2, 4]


def test_a_group_may_copy_all_of_its_models(workshop: Workshop) -> None:
    workshop.write_recipe(
        ("    share_weights: true\n", "    compile: none\n"), ("{ep_context_nodes: 1, fallback_nodes: 1}", "{}")
    )
    assert workshop.build().exit_code == 0, workshop.problems
    assert sorted(workshop.contents()) == ["decode.onnx", "manifest.json", "prefill.onnx"]
