"""Models that `wrap_binary` writes for a description of a context binary."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from epbuild.core.errors import ChangeRefused
from epbuild.onnxfile.edit.wrapping import ContextDescription, ContextGraph, ContextValue, wrap_binary
from epbuild.onnxfile.read.headers import read_header


def value(name: str, **settings: object) -> ContextValue:
    return ContextValue(**{"name": name, "type": "float32", "shape": (1, 4), **settings})  # type: ignore[arg-type]


def graph(name: str = "g", *inputs: ContextValue) -> ContextGraph:
    return ContextGraph(name, inputs or (value("x"),), (value("y", type="int32"),))


def described(*graphs: ContextGraph) -> ContextDescription:
    return ContextDescription("v2.40", graphs)


@pytest.fixture
def binary(tmp_path: Path) -> Path:
    path = tmp_path / "in/m.bin"
    path.parent.mkdir()
    path.write_bytes(b"context")
    return path


def test_a_binary_of_one_graph_gets_one_model_beside_it(binary: Path) -> None:
    made = wrap_binary(binary, described(graph()), "EP", None)
    assert [item.model for item in made.graphs] == [binary.with_name("m_ctx.onnx")]
    header = read_header(made.graphs[0].model)
    [node] = header.ep_context_nodes
    assert (node.name, node.source, node.ep_sdk_version, node.reference) == ("g", "EP", "v2.40", "m.bin")
    assert [(item.name, item.elem_type, item.shape) for item in header.outputs] == [("y", onnx.TensorProto.INT32, (1, 4))]


def test_the_binary_is_copied_to_another_folder(binary: Path, tmp_path: Path) -> None:
    wrap_binary(binary, described(graph("a/b"), graph("a:b"), graph("A_b")), "EP", tmp_path / "out")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "A_b_3_ctx.onnx",
        "a_b_2_ctx.onnx",
        "a_b_ctx.onnx",
        "m.bin",
    ]


def test_added_values_avoid_the_names_in_the_binary(binary: Path) -> None:
    quantized = value("x", type="uint8", quantized=True, scale=0.5, zero_point=3)
    made = wrap_binary(binary, described(graph("g", quantized, value("x_dq"), value("x_scale"))), "EP", None)
    assert [item.name for item in made.graphs[0].inputs] == ["x_dq_", "x_dq", "x_scale"]
    onnx.checker.check_model(made.graphs[0].model)


@pytest.mark.parametrize(
    ("graphs", "words"),
    [
        ((), "contains no graph"),
        ((graph("g"), graph("g")), "have the same name"),
        ((graph("g", value("y")),), "values with equal or empty names"),
        ((graph("", value("x")),), "has no name"),
    ],
)
def test_graphs_that_no_model_can_hold_are_refused(binary: Path, graphs: tuple[ContextGraph, ...], words: str) -> None:
    with pytest.raises(ChangeRefused, match=words):
        wrap_binary(binary, described(*graphs), "EP", None)
    assert list(binary.parent.iterdir()) == [binary]


def test_one_file_cannot_hold_several_graphs_or_replace_a_model(binary: Path, tmp_path: Path) -> None:
    with pytest.raises(ChangeRefused, match="cannot hold the 2 graphs"):
        wrap_binary(binary, described(graph("a"), graph("b")), "EP", tmp_path / "m.onnx")
    binary.with_name("m_ctx.onnx").write_bytes(b"mine")
    with pytest.raises(ChangeRefused, match="is not overwritten"):
        wrap_binary(binary, described(graph()), "EP", None)
    assert binary.with_name("m_ctx.onnx").read_bytes() == b"mine"
