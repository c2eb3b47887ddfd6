from __future__ import annotations

import sys
import tempfile
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from onnx import TensorProto, helper

from epbuild.onnxfile.edit.rewrite import relink
from epbuild.onnxfile.read.headers import read_header
from epbuild.onnxfile.read.wire import MalformedModel, encode_varint
from tests.onnxfile.models import context_node, if_node, model, parse, reference_attributes, subgraph, two_level_model

NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=300)


def relinked(proto: bytes, names: dict[str, str]) -> bytes:
    with tempfile.TemporaryDirectory() as directory:
        source, destination = Path(directory, "source.onnx"), Path(directory, "copy.onnx")
        source.write_bytes(proto)
        relink(source, destination, names)
        assert source.read_bytes() == proto
        return destination.read_bytes()


def with_references(proto: Any, names: dict[str, str]) -> bytes:
    """Return the result of the same edit by protobuf itself."""
    edited = type(proto)()
    edited.CopyFrom(proto)
    for attribute in reference_attributes(edited).values():
        reference = attribute.s.decode()
        attribute.s = names.get(reference, reference).encode()
    return bytes(edited.SerializeToString())


@given(main=NAMES, branch=NAMES)
@example(main="m", branch="b")
@example(main="m" * 300, branch="b" * 300)
def test_only_references_change_for_any_new_name(main: str, branch: str) -> None:
    proto = two_level_model()
    names = {"main_qnn.bin": main, "branch_qnn.bin": branch}
    copy = relinked(proto.SerializeToString(), names)
    assert {name: attribute.s.decode() for name, attribute in reference_attributes(parse(copy)).items()} == {
        "outer": main,
        "inner": branch,
    }
    assert copy == with_references(proto, names)


@given(NAMES)
def test_relinked_model_can_be_restored_byte_for_byte(name: str) -> None:
    proto = two_level_model(main="main_qnn.bin", branch="main_qnn.bin").SerializeToString()
    assert relinked(relinked(proto, {"main_qnn.bin": name}), {name: "main_qnn.bin"}) == proto


def test_enclosing_lengths_are_corrected_when_a_length_grows() -> None:
    # Three levels of graphs; the sizes pass 128 at some level for nearly every one of these names, and 16384 for the long ones.
    inner = if_node(subgraph([context_node("n", embed_mode=0, ep_cache_context="b")]), subgraph([]))
    proto = model([if_node(subgraph([inner]), subgraph([]))])
    data = proto.SerializeToString()
    for size in (*range(1, 200), *range(16_050, 16_400, 7)):
        names = {"b": "x" * size}
        assert relinked(data, names) == with_references(proto, names)


@pytest.mark.parametrize("names", [{}, {"main_qnn.bin": "main_qnn.bin"}, {"someone_elses.bin": "new.bin"}])
def test_copy_without_changes_is_byte_identical(names: dict[str, str]) -> None:
    data = two_level_model().SerializeToString() + b"\xf2\x3f\x03new"  # and a field that no reader knows yet
    assert relinked(data, names) == data


def test_name_of_equal_length_changes_only_the_name() -> None:
    data = two_level_model().SerializeToString()
    assert relinked(data, {"main_qnn.bin": "niam_qnn.bin"}) == data.replace(b"main_qnn.bin", b"niam_qnn.bin")


def test_names_are_replaced_simultaneously() -> None:
    proto = two_level_model("a.bin", "b.bin")
    copy = parse(relinked(proto.SerializeToString(), {"a.bin": "b.bin", "b.bin": "a.bin"}))
    assert [attribute.s for attribute in reference_attributes(copy).values()] == [b"b.bin", b"a.bin"]


def test_embedded_context_that_resembles_a_reference_is_left_alone() -> None:
    data = model([context_node("n", embed_mode=1, ep_cache_context="m.bin")]).SerializeToString()
    assert relinked(data, {"m.bin": "other.bin"}) == data


def test_padded_lengths_are_corrected() -> None:
    graph = model([context_node("n", embed_mode=0, ep_cache_context="m.bin")]).graph
    encoded = graph.SerializeToString()
    padded = encode_varint(len(encoded) | 1 << 21)[:3] + b"\x80\x00"
    data = b"\x3a" + padded + encoded
    assert parse(data).graph == graph
    assert relinked(data, {"m.bin": "n.bin"}) == data.replace(b"m.bin", b"n.bin")
    attribute = reference_attributes(parse(relinked(data, {"m.bin": "longer.bin"})))["n"]
    assert attribute.s == b"longer.bin"


@pytest.mark.slow
def test_large_model_is_copied_without_being_loaded(tmp_path: Path) -> None:
    weight = helper.make_tensor("w", TensorProto.UINT8, [64_000_000], bytes(64_000_000), raw=True)
    proto = model([context_node("n", embed_mode=0, ep_cache_context="m.bin")], initializer=[weight])
    source = tmp_path / "m.onnx"
    source.write_bytes(proto.SerializeToString())
    tracemalloc.start()
    try:
        relink(source, tmp_path / "copy.onnx", {"m.bin": "n.bin"})
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert read_header(tmp_path / "copy.onnx").ep_context_nodes[0].reference == "n.bin"
    assert peak < 10_000_000


def test_existing_file_and_source_are_never_overwritten(tmp_path: Path) -> None:
    source = tmp_path / "m.onnx"
    data = two_level_model().SerializeToString()
    source.write_bytes(data)
    with pytest.raises(FileExistsError):
        relink(source, source, {"main_qnn.bin": "x.bin"})
    assert source.read_bytes() == data


def test_invalid_source_leaves_no_file(tmp_path: Path) -> None:
    source = tmp_path / "m.onnx"
    source.write_bytes(b"not a model")
    with pytest.raises(MalformedModel):
        relink(source, tmp_path / "copy.onnx", {})
    assert list(tmp_path.iterdir()) == [source]


@pytest.mark.skipif(sys.platform == "win32", reason="has no limits of files")
def test_failed_copy_leaves_no_file(tmp_path: Path) -> None:
    import resource

    source = tmp_path / "m.onnx"
    source.write_bytes(two_level_model().SerializeToString())

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, before[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            relink(source, tmp_path / "copy.onnx", {})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert list(tmp_path.iterdir()) == [source]
