"""Places in a model: the owner of each differing byte, and the exact position of an embedded context."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import TensorProto, helper

from epbuild.onnxfile.read.places import find_model_parts
from epbuild.onnxfile.read.wire import MalformedModel
from tests.onnxfile.context_models import QNN, compiled, value
from tests.onnxfile.models import external_tensor, if_node, subgraph


def places_of(path: Path) -> dict[str, bytes]:
    content = path.read_bytes()
    return {place.title: content[place.start : place.start + place.size] for place in find_model_parts(path)}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    nodes = [
        helper.make_node("Relu", ["x"], ["r"], name="first", doc_string="why"),
        if_node(subgraph([helper.make_node("Relu", ["r"], ["y"])]), subgraph([helper.make_node("Relu", ["x"], ["y"])])),
    ]
    weights = [helper.make_tensor("w", TensorProto.FLOAT, [2], [1.0, 2.0]), external_tensor("far", "weights.bin", offset=64)]
    graph = helper.make_graph(nodes, "the graph", [value("x")], [value("y")], weights)
    made = helper.make_model(graph, producer_name="somebody", opset_imports=[helper.make_opsetid("", 21)])
    helper.set_model_props(made, {"made for": "a phone", "made by": "hand"})
    onnx.save(made, tmp_path / "model.onnx")
    return tmp_path / "model.onnx"


def test_names_texts_and_metadata_have_titled_places(model: Path) -> None:
    found = places_of(model)
    assert found["producer name"] == b"somebody"
    assert found["graph name"] == b"the graph"
    assert (found["metadata 'made for'"], found["metadata 'made by'"]) == (b"a phone", b"hand")
    assert (found["node 1, name"], found["node 1, operator"], found["node 1, doc string"]) == (b"first", b"Relu", b"why")
    assert (found["node 1, input"], found["node 1, output"]) == (b"x", b"r")


def test_initializer_is_one_place_with_values_or_a_location(model: Path) -> None:
    found = places_of(model)
    assert TensorProto.FromString(found["initializer 'w'"]).float_data == [1.0, 2.0]
    assert b"weights.bin" in found["initializer 'far'"]


def test_non_text_attribute_is_one_place_including_subgraphs(model: Path) -> None:
    found = places_of(model)
    for name in ("then_branch", "else_branch"):
        assert onnx.AttributeProto.FromString(found[f"node 2, attribute {name}"]).g.name == "branch"


def test_embedded_context_spans_its_exact_bytes(tmp_path: Path) -> None:
    payload = bytes(range(256)) * 5
    found = places_of(compiled(tmp_path / "model.onnx", payload=payload))
    assert found["node 1, attribute ep_cache_context"] == payload
    assert found["node 1, attribute source"] == QNN.encode()


def test_places_are_in_file_order_with_disjoint_bytes_and_unique_titles(model: Path) -> None:
    found = find_model_parts(model)
    assert all(first.start + first.size <= second.start for first, second in pairwise(found))
    assert found[-1].start + found[-1].size <= model.stat().st_size
    assert len({place.title for place in found}) == len(found)


def test_equal_titles_are_numbered(tmp_path: Path) -> None:
    graph = helper.make_graph([helper.make_node("Add", ["a", "b"], ["y"])], "g", [value("a"), value("b")], [value("y")])
    onnx.save(helper.make_model(graph), tmp_path / "model.onnx")
    found = places_of(tmp_path / "model.onnx")
    assert (found["node 1, input"], found["node 1, input (2)"]) == (b"a", b"b")


@pytest.mark.parametrize("content", [b"", b"not a model", b"\x3a\xff\xff\xff\xff\x0f"])
def test_file_that_is_not_a_model_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(content)
    with pytest.raises(MalformedModel):
        find_model_parts(tmp_path / "model.onnx")


def test_model_with_too_many_places_is_refused(model: Path) -> None:
    places = find_model_parts(model)
    assert find_model_parts(model, limit=len(places)) == places
    with pytest.raises(MalformedModel, match="more than"):
        find_model_parts(model, limit=len(places) - 1)


def test_unknown_onnx_field_is_titled_by_its_number(tmp_path: Path) -> None:
    graph: Any = helper.make_graph([], "g", [], [])
    content = helper.make_model(graph).SerializeToString() + b"\xc2\x3e\x03new"  # field 1000, a text
    (tmp_path / "model.onnx").write_bytes(content)
    assert places_of(tmp_path / "model.onnx")["field 1000 of the model"] == b"new"
