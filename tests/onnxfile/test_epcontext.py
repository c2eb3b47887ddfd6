from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

import pytest
from onnx import helper

from epbuild.core.safepath import BadReference, MissingReference, check_reference, locate
from epbuild.onnxfile.read.epcontext import EPContextNode, resolve
from epbuild.onnxfile.read.headers import parse_header
from tests.onnxfile.models import context_node, if_node, model, subgraph


def read(*nodes: Any) -> tuple[EPContextNode, ...]:
    return parse_header(io.BytesIO(model(list(nodes)).SerializeToString())).ep_context_nodes


def read_declarations(*nodes: Any) -> tuple[EPContextNode, ...]:
    return tuple(node.declaration for node in read(*nodes))


def test_every_schema_attribute_is_read_and_other_attributes_are_kept() -> None:
    node = context_node(
        "QNN_1",
        main_context=1,
        ep_cache_context="sub/m_qnn.bin",
        embed_mode=0,
        ep_sdk_version="v2.51",
        onnx_model_filename="m.onnx",
        hardware_architecture="v79",
        partition_name="QNN_1",
        source="QNNExecutionProvider",
        notes="note",
        max_size=4096,
        is_multi_soc_ep_context=0,
        io_name_overrides="a=b",
    )
    assert read_declarations(node) == (
        EPContextNode(
            name="QNN_1",
            partition_name="QNN_1",
            source="QNNExecutionProvider",
            main_context=1,
            embed_mode=0,
            ep_sdk_version="v2.51",
            onnx_model_filename="m.onnx",
            hardware_architecture="v79",
            notes="note",
            max_size=4096,
            reference="sub/m_qnn.bin",
            payload=None,
            others={"is_multi_soc_ep_context": 0, "io_name_overrides": "a=b"},
        ),
    )


def test_absent_attributes_have_the_defaults_of_the_schema() -> None:
    assert read_declarations(context_node("n")) == (EPContextNode(name="n", main_context=1, embed_mode=1, max_size=0),)


def test_omitted_zero_is_zero_and_not_the_default() -> None:
    node = context_node("n", ep_cache_context="m.bin", embed_mode=0)
    for attribute in node.attribute:
        if attribute.name == "embed_mode":
            attribute.ClearField("i")
    assert read(node)[0].reference == "m.bin"


def test_embedded_context_is_located_without_being_read() -> None:
    payload = bytes(range(256)) * 4
    data = model([context_node("n", ep_cache_context=payload)]).SerializeToString()
    (node,) = parse_header(io.BytesIO(data)).ep_context_nodes
    assert node.reference is None
    assert node.payload is not None
    offset, size = node.payload
    assert data[offset : offset + size] == payload


def test_secondary_node_has_neither_reference_nor_payload() -> None:
    (node,) = read(context_node("n", main_context=0, embed_mode=0))
    assert (node.main_context, node.reference, node.payload) == (0, None, None)


def test_contexts_inside_control_flow_are_found() -> None:
    deep = if_node(subgraph([context_node("deep")]), subgraph([]))
    body = subgraph([context_node("body"), deep])
    loop = helper.make_node("Loop", ["n", "c"], ["y"], body=body)
    assert [node.name for node in read(loop, context_node("top"))] == ["body", "deep", "top"]


def test_payload_in_an_ep_attribute_is_not_a_setting() -> None:
    (node,) = read(context_node("n", weights=b"\0" * 100_000, mode="fast"))
    assert node.others == {"mode": "fast"}


@pytest.mark.parametrize("reference", ["m.bin", "sub/m.bin", "./m.bin", "ü m.bin", "a..b/m.bin"])
def test_reference_beside_the_model_is_found(tmp_path: Path, reference: str) -> None:
    binary = tmp_path / reference
    binary.parent.mkdir(exist_ok=True)
    binary.touch()
    found = resolve(tmp_path / "m.onnx", EPContextNode("n", embed_mode=0, reference=reference))
    assert found.samefile(binary)


@pytest.mark.parametrize(
    ("reference", "reason"),
    [
        ("", "empty"),
        ("/etc/m.bin", "absolute path"),
        ("C:/m.bin", "absolute path"),
        ("C:\\m.bin", "absolute path"),
        ("C:m.bin", "absolute path"),
        ("\\\\server\\share\\m.bin", "absolute path"),
        ("//server/share/m.bin", "absolute path"),
        ("\\m.bin", "absolute path"),
        ("../m.bin", r"contains '\.\.'"),
        ("sub/../m.bin", r"contains '\.\.'"),
        ("sub\\m.bin", "backslash"),
        ("..\\m.bin", "backslash"),
        ("m\0.bin", "NUL"),
    ],
)
def test_forbidden_reference_is_refused(tmp_path: Path, reference: str, reason: str) -> None:
    with pytest.raises(BadReference, match=reason) as refused:
        resolve(tmp_path / "m.onnx", EPContextNode("n", embed_mode=0, reference=reference))
    assert not isinstance(refused.value, MissingReference)
    assert isinstance(refused.value, ValueError)
    with pytest.raises(BadReference, match=reason):
        check_reference(reference)


@pytest.mark.parametrize("reference", ["gone.bin", "sub", "x" * 5000, "file.txt/m.bin"])
def test_missing_binary_differs_from_a_bad_reference(tmp_path: Path, reference: str) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "file.txt").touch()
    with pytest.raises(MissingReference, match=r"does not exist beside 'm\.onnx'"):
        resolve(tmp_path / "m.onnx", EPContextNode("n", embed_mode=0, reference=reference))


def test_node_without_a_reference_cannot_be_resolved(tmp_path: Path) -> None:
    with pytest.raises(BadReference, match="embeds its context"):
        resolve(tmp_path / "m.onnx", EPContextNode("n", payload=(10, 20)))
    with pytest.raises(BadReference, match="has no ep_cache_context"):
        resolve(tmp_path / "m.onnx", EPContextNode("n", main_context=0))


def test_each_attribute_is_listed_with_its_type() -> None:
    [node] = read(context_node("n", main_context=1, own=[1, 2], source="QNN"))  # type: ignore[arg-type]
    assert set(node.written) == {("main_context", "INT"), ("own", "INTS"), ("source", "STRING")}


def test_node_has_its_subgraph_depth() -> None:
    inner = if_node(subgraph([context_node("two")]), subgraph([]))
    nodes = read(context_node("none"), if_node(subgraph([context_node("one"), inner]), subgraph([])))
    assert {node.name: node.depth for node in nodes} == {"none": 0, "one": 1, "two": 2}


@pytest.mark.skipif(sys.platform == "win32", reason="making links takes a privilege on Windows")
def test_link_is_followed_only_inside_the_folder(tmp_path: Path) -> None:
    folder = tmp_path / "dist"
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "m.bin").write_bytes(b"context")
    (tmp_path / "outside.bin").write_bytes(b"context")
    (folder / "inside").symlink_to(Path("bin") / "m.bin")
    (folder / "folder").symlink_to("bin")
    (folder / "outside").symlink_to(tmp_path / "outside.bin")
    (folder / "upwards").symlink_to("..")
    (folder / "loop").symlink_to("loop")
    assert locate(folder, "inside").read_bytes() == locate(folder, "folder/m.bin").read_bytes() == b"context"
    for reference in ("outside", "upwards/outside.bin", "upwards/gone.bin"):
        with pytest.raises(BadReference, match="is a link to a path outside its folder") as refused:
            locate(folder, reference)
        assert not isinstance(refused.value, MissingReference)
    with pytest.raises(MissingReference):
        locate(folder, "loop")
    # A folder behind a link is a folder like any other.
    (tmp_path / "latest").symlink_to("dist")
    assert locate(tmp_path / "latest", "inside").is_file()
