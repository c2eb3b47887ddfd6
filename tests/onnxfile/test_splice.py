"""Byte replacements in a model, with updated lengths of all enclosing fields."""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from epbuild.onnxfile.edit.splice import Splice, splice
from epbuild.onnxfile.read.headers import parse_header, read_header
from epbuild.onnxfile.read.wire import MalformedModel, encode_varint
from tests.onnxfile.models import context_node, if_node, model, parse, subgraph, two_level_model


def doc_string(text: str) -> bytes:
    """Return a node's doc_string as a protobuf field."""
    return b"\x32" + encode_varint(len(text.encode())) + text.encode()


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=400), min_size=2, max_size=2))
@example(["x" * 127, "x" * 128])
@example(["x" * 16_380, ""])
def test_text_inserted_into_nodes_of_any_depth_is_read_back(texts: list[str]) -> None:
    import tempfile

    proto = two_level_model()

    def described(file: BinaryIO) -> list[Splice]:
        nodes = [node.path for node in parse_header(file).ep_context_nodes]
        return [Splice(node, node[-1].end, node[-1].end, doc_string(text)) for node, text in zip(nodes, texts, strict=True)]

    with tempfile.TemporaryDirectory() as directory:
        source, copy = Path(directory, "m.onnx"), Path(directory, "copy.onnx")
        source.write_bytes(proto.SerializeToString())
        splice(source, copy, described)
        made = parse(copy.read_bytes())
    proto.graph.node[0].doc_string = texts[0]
    branch = next(attribute for attribute in proto.graph.node[1].attribute if attribute.name == "then_branch")
    branch.g.node[1].doc_string = texts[1]
    assert made == proto


def test_nodes_are_found_in_the_order_of_the_header(tmp_path: Path) -> None:
    inner = if_node(subgraph([context_node("deep")]), subgraph([context_node("other")]))
    path = tmp_path / "m.onnx"
    path.write_bytes(
        model([if_node(subgraph([inner, context_node("mid")]), subgraph([])), context_node("top")]).SerializeToString()
    )
    nodes = read_header(path).ep_context_nodes
    ends = [node.path[-1].end for node in nodes]
    assert [node.name for node in nodes] == ["other", "deep", "mid", "top"]
    assert len(ends) == 4
    assert ends == sorted(ends)


def test_missing_source_or_failed_search_leaves_no_copy(tmp_path: Path) -> None:
    source, copy = tmp_path / "m.onnx", tmp_path / "copy.onnx"
    source.write_bytes(two_level_model().SerializeToString())

    def from_nowhere(file: BinaryIO) -> list[Splice]:
        node = parse_header(file).ep_context_nodes[0].path
        return [Splice(node, node[-1].end, node[-1].end, tmp_path / "gone.bin")]

    def failing(_: BinaryIO) -> list[Splice]:
        raise MalformedModel("no")

    with pytest.raises(FileNotFoundError):
        splice(source, copy, from_nowhere)
    with pytest.raises(MalformedModel):
        splice(source, copy, failing)
    assert list(tmp_path.iterdir()) == [source]
