"""Renamed nodes: the model keeps every other byte, and the onnx package reads the new names."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from epbuild.onnxfile.edit.rewrite import NewNames, rename_nodes, set_max_sizes
from epbuild.onnxfile.read.epcontext import EPContextNode
from epbuild.onnxfile.read.headers import read_header
from epbuild.onnxfile.read.wire import MalformedModel
from tests.onnxfile.models import all_nodes, context_node, model, parse, two_level_model


def contexts(proto: onnx.ModelProto) -> list[onnx.NodeProto]:
    return [node for node in all_nodes(proto.graph) if node.op_type == "EPContext"]


def renamed(folder: Path, proto: onnx.ModelProto, names: dict[int, str]) -> onnx.ModelProto:
    source, made = folder / "m.onnx", folder / "made.onnx"
    source.write_bytes(proto.SerializeToString())
    rename_nodes(source, made, {place: NewNames(name) for place, name in names.items()})
    found = parse(made.read_bytes())
    assert isinstance(found, onnx.ModelProto)
    return found


@pytest.mark.parametrize("name", ["a", "prefill_outer", "ü" * 200, "x" * 20_000])
def test_only_names_of_nodes_in_graph_and_branches_change(tmp_path: Path, name: str) -> None:
    proto = two_level_model()
    order = [node.name for node in read_header_of(tmp_path, proto)]
    made = renamed(tmp_path, proto, {place: f"{name}{old}" for place, old in enumerate(order)})
    assert {node.name for node in contexts(made)} == {f"{name}{old}" for old in order}
    for node in contexts(made):
        node.name = node.name.removeprefix(name)
    assert made == proto


def read_header_of(folder: Path, proto: onnx.ModelProto) -> tuple[EPContextNode, ...]:
    (folder / "header.onnx").write_bytes(proto.SerializeToString())
    return read_header(folder / "header.onnx").ep_context_nodes


def test_only_listed_nodes_are_renamed_and_an_unnamed_node_gets_a_name(tmp_path: Path) -> None:
    proto = model([context_node("first", source="A"), context_node("", source="B", partition_name="p")])
    made = renamed(tmp_path, proto, {1: "second"})
    assert [node.name for node in contexts(made)] == ["first", "second"]
    assert [node.partition_name for node in read_header(tmp_path / "made.onnx").ep_context_nodes] == [None, "p"]


def test_embedded_context_is_unchanged(tmp_path: Path) -> None:
    payload = bytes(range(256)) * 2000
    made = renamed(tmp_path, model([context_node("n", embed_mode=1, ep_cache_context=payload)]), {0: "longer than before"})
    (node,) = contexts(made)
    assert next(attribute.s for attribute in node.attribute if attribute.name == "ep_cache_context") == payload
    assert node.name == "longer than before"


def test_incomplete_model_is_not_written(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(model([context_node("n")]).SerializeToString()[:-3])
    with pytest.raises(MalformedModel):
        rename_nodes(tmp_path / "m.onnx", tmp_path / "made.onnx", {0: NewNames("other")})
    assert not (tmp_path / "made.onnx").exists()


def test_partition_name_is_replaced_or_added_with_the_name(tmp_path: Path) -> None:
    source, made = tmp_path / "m.onnx", tmp_path / "made.onnx"
    source.write_bytes(model([context_node("a", partition_name="p"), context_node("b")]).SerializeToString())
    rename_nodes(source, made, {0: NewNames("x_a", "x_p"), 1: NewNames("x_b", "x_b")})
    assert [(node.name, node.partition_name) for node in read_header(made).ep_context_nodes] == [("x_a", "x_p"), ("x_b", "x_b")]
    onnx.load(made)


def test_nodes_of_a_context_binary_get_its_max_size(tmp_path: Path) -> None:
    source, made = tmp_path / "m.onnx", tmp_path / "made.onnx"
    nodes = [
        context_node("a", embed_mode=0, ep_cache_context="a.bin", max_size=3),
        context_node("b", embed_mode=0, ep_cache_context="a.bin"),
        context_node("c", main_context=0),
    ]
    source.write_bytes(model(nodes).SerializeToString())
    set_max_sizes(source, made, {"a.bin": 7})
    assert [node.max_size for node in read_header(made).ep_context_nodes] == [7, 7, 0]
