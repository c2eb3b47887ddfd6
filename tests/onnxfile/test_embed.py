"""Moves of a context into its model and out of it. Nothing else in the model changes."""

from __future__ import annotations

import tempfile
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from onnx import TensorProto, helper

from epbuild.onnxfile.edit.rewrite import embed, extract
from epbuild.onnxfile.read.headers import read_header
from epbuild.onnxfile.read.wire import MalformedModel
from tests.onnxfile.models import all_nodes, context_node, if_node, model, parse, subgraph


def attributes(node: Any) -> dict[str, Any]:
    return {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}


def nested_model(**context: Any) -> Any:
    """Return a model with its main context inside an If, another node of that context in the graph, and weights around them."""
    inner = context_node("inner", main_context=1, partition_name="p1", **context)
    secondary = context_node("outer", main_context=0, embed_mode=context.get("embed_mode", 1))
    weight = helper.make_tensor("w", TensorProto.FLOAT, [2, 3], [0.5] * 6)
    return model([secondary, if_node(subgraph([inner]), subgraph([]))], initializer=[weight])


def embedded(proto: Any, payload: bytes) -> bytes:
    with tempfile.TemporaryDirectory() as directory:
        source, binary, copy = (Path(directory, name) for name in ("m.onnx", "m.bin", "copy.onnx"))
        source.write_bytes(proto.SerializeToString())
        binary.write_bytes(payload)
        embed(source, copy, binary)
        assert (source.read_bytes(), binary.read_bytes()) == (proto.SerializeToString(), payload)
        return copy.read_bytes()


def extracted(data: bytes, reference: str) -> tuple[bytes, bytes]:
    with tempfile.TemporaryDirectory() as directory:
        source, binary, copy = (Path(directory, name) for name in ("m.onnx", "m.bin", "copy.onnx"))
        source.write_bytes(data)
        extract(source, copy, binary, reference)
        return copy.read_bytes(), binary.read_bytes()


@given(st.binary(max_size=40_000))
@example(b"")
@example(b"x" * 127)
@example(b"x" * 16_400)
def test_embedded_context_equals_the_binary_and_every_node_is_marked(payload: bytes) -> None:
    proto = nested_model(embed_mode=0, ep_cache_context="m.bin")
    made = parse(embedded(proto, payload))
    nodes = {node.name: attributes(node) for node in all_nodes(made.graph) if node.op_type == "EPContext"}
    assert nodes["inner"] == {"main_context": 1, "partition_name": b"p1", "embed_mode": 1, "ep_cache_context": payload}
    assert nodes["outer"] == {"main_context": 0, "embed_mode": 1}
    for expected, got in zip(all_nodes(proto.graph), all_nodes(made.graph), strict=True):
        assert (expected.name, expected.op_type, expected.input, expected.output) == (
            got.name,
            got.op_type,
            got.input,
            got.output,
        )
    assert made.graph.initializer == proto.graph.initializer


@given(st.binary(max_size=40_000), st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=300))
def test_embedding_and_extracting_restores_the_model_and_the_binary(payload: bytes, name: str) -> None:
    proto = nested_model(embed_mode=0, ep_cache_context=name)
    assert extracted(embedded(proto, payload), name) == (proto.SerializeToString(), payload)


def test_extracting_from_a_model_without_embed_mode_adds_embed_mode() -> None:
    data = nested_model(ep_cache_context=b"payload").SerializeToString()
    copy, binary = extracted(data, "sub/m.bin")
    assert binary == b"payload"
    nodes = [attributes(node) for node in all_nodes(parse(copy).graph) if node.op_type == "EPContext"]
    assert [node["embed_mode"] for node in nodes] == [0, 0]
    assert nodes[1]["ep_cache_context"] == b"sub/m.bin"


def test_model_with_no_context_or_several_contexts_is_refused(tmp_path: Path) -> None:
    binary = tmp_path / "m.bin"
    binary.write_bytes(b"payload")
    external = [context_node(name, embed_mode=0, ep_cache_context=f"{name}.bin") for name in "ab"]
    internal = [context_node(name, ep_cache_context=b"payload") for name in "ab"]
    source, copy = tmp_path / "m.onnx", tmp_path / "copy.onnx"
    source.write_bytes(model(external).SerializeToString())
    with pytest.raises(ValueError, match="one node that refers to a context binary, found 2"):
        embed(source, copy, binary)
    with pytest.raises(ValueError, match="one node that embeds a context, found 0"):
        extract(source, copy, tmp_path / "new.bin", "new.bin")
    source.write_bytes(model(internal).SerializeToString())
    with pytest.raises(ValueError, match="one node that refers to a context binary, found 0"):
        embed(source, copy, binary)
    with pytest.raises(ValueError, match="one node that embeds a context, found 2"):
        extract(source, copy, tmp_path / "new.bin", "new.bin")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.bin", "m.onnx"]


def test_failure_leaves_no_file_and_overwrites_nothing(tmp_path: Path) -> None:
    source, taken = tmp_path / "m.onnx", tmp_path / "taken"
    source.write_bytes(nested_model(ep_cache_context=b"payload").SerializeToString())
    taken.write_bytes(b"mine")
    with pytest.raises(FileExistsError):
        extract(source, taken, tmp_path / "new.bin", "new.bin")
    with pytest.raises(FileExistsError):
        extract(source, tmp_path / "copy.onnx", taken, "taken")
    assert taken.read_bytes() == b"mine"
    source.write_bytes(b"not a model")
    with pytest.raises(MalformedModel):
        embed(source, tmp_path / "copy.onnx", taken)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.onnx", "taken"]


def test_large_context_is_moved_without_being_loaded(tmp_path: Path) -> None:
    source, whole, binary = tmp_path / "m.onnx", tmp_path / "whole.onnx", tmp_path / "m.bin"
    source.write_bytes(nested_model(embed_mode=0, ep_cache_context="m.bin").SerializeToString())
    with binary.open("wb") as file:
        file.truncate(64_000_000)
    tracemalloc.start()
    try:
        embed(source, whole, binary)
        extract(whole, tmp_path / "copy.onnx", tmp_path / "copy.bin", "m.bin")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 10_000_000
    assert [node.payload and node.payload[1] for node in read_header(whole).ep_context_nodes] == [None, 64_000_000]
    assert (tmp_path / "copy.onnx").read_bytes() == source.read_bytes()
    assert (tmp_path / "copy.bin").stat().st_size == 64_000_000
