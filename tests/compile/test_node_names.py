"""Nodes without the requested prefix: renamed if the EP still finds its context, refused otherwise."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnx
import pytest
from msgspec.structs import replace
from onnx import TensorProto, helper

from epbuild.catalog.catalog import entry
from epbuild.compile.node_names import prefix_nodes
from epbuild.core.errors import BuildError, VerifyError
from epbuild.onnxfile.edit.rewrite import rename_nodes
from epbuild.onnxfile.read.headers import read_header
from epbuild.plan.steps import SessionGroup
from epbuild.plan.target import PlannedEp
from epbuild.recipe.model import DeviceChoice
from tests.support.fake_builds import sharing_group
from tests.support.moments import at_each_return

QNN, OPENVINO, TENSORRT = "QNNExecutionProvider", "OpenVINOExecutionProvider", "TensorrtExecutionProvider"


def group_for(*eps: str, models: tuple[str, ...] = ("m",), prefix: str | None = "m_") -> SessionGroup:
    group = sharing_group(*models)
    planned = tuple(PlannedEp(entry(ep), DeviceChoice(), {}, {}, None, frozenset()) for ep in eps)
    members = tuple(replace(member, compile=replace(member.compile, node_name_prefix=prefix)) for member in group.members)
    return replace(group, target=replace(group.target, eps=planned), members=members)


def compiled(folder: Path, *nodes: tuple[str, str]) -> Path:
    """Write a model of EPContext nodes, each with a name and the EP that compiled it."""
    made = [
        helper.make_node("EPContext", ["x"], [name], name, domain="com.microsoft", source=source, partition_name=f"in_{name}")
        for name, source in nodes
    ]
    value = helper.make_tensor_value_info
    graph = helper.make_graph(made, "g", [value("x", TensorProto.FLOAT, [1])], [value(nodes[0][0], TensorProto.FLOAT, [1])])
    path = folder / "m_ctx.onnx"
    onnx.save(helper.make_model(graph), path)
    return path


def names(path: Path) -> list[str]:
    return [node.name for node in read_header(path).ep_context_nodes]


def test_single_node_is_renamed_for_any_known_ep(tmp_path: Path) -> None:
    for ep, graph in ((QNN, "m_in_one"), (OPENVINO, "in_one")):
        path = compiled(tmp_path, ("one", ep))
        group = group_for(ep)
        prefix_nodes(group, group.members[0], path)
        assert names(path) == ["m_one"]
        assert [node.partition_name for node in read_header(path).ep_context_nodes] == [graph]
        assert [file.name for file in tmp_path.iterdir()] == ["m_ctx.onnx"]


def test_nodes_of_each_ep_are_renamed_by_the_rule_of_the_ep(tmp_path: Path) -> None:
    path = compiled(tmp_path, ("a", OPENVINO), ("b", QNN), ("c", OPENVINO))
    group = group_for(QNN, OPENVINO)
    prefix_nodes(group, group.members[0], path)
    assert names(path) == ["m_a", "m_b", "m_c"]


def test_members_without_a_shared_context_are_renamed(tmp_path: Path) -> None:
    path = compiled(tmp_path, ("a", OPENVINO), ("b", OPENVINO))
    group = group_for(OPENVINO, models=("m", "n"))
    prefix_nodes(group, group.members[0], path)
    assert names(path) == ["m_a", "m_b"]


def test_correctly_prefixed_model_is_unchanged(tmp_path: Path) -> None:
    for prefix in ("m_", None):
        path = compiled(tmp_path, ("m_a", TENSORRT), ("m_b", TENSORRT))
        before = path.read_bytes()
        group = group_for(TENSORRT, prefix=prefix)
        prefix_nodes(group, group.members[0], path)
        assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("ep", "nodes", "models", "words"),
    [
        (
            QNN,
            ("a", "b"),
            ("m",),
            "the model was compiled to 2 nodes, and QNN finds each graph of a context by the name of its node",
        ),
        (QNN, ("a",), ("m", "n"), "the models share a context, and QNN finds each graph of a context by the name of its node"),
        (TENSORRT, ("a",), ("m",), f"{TENSORRT} ignores the prefix, and the catalog has no rule"),
    ],
)
def test_renaming_that_the_ep_cannot_follow_is_refused(
    tmp_path: Path, ep: str, nodes: tuple[str, ...], models: tuple[str, ...], words: str
) -> None:
    path = compiled(tmp_path, *((name, ep) for name in nodes))
    before = path.read_bytes()
    group = group_for(ep, models=models)
    with pytest.raises(BuildError) as raised:
        prefix_nodes(group, group.members[0], path)
    [problem] = raised.value.problems
    assert (problem.code, words in problem.message) == ("EPB440", True)
    assert path.read_bytes() == before


def test_invalid_model_is_left_for_the_verifier(tmp_path: Path) -> None:
    group = group_for(QNN)
    prefix_nodes(group, group.members[0], tmp_path / "m_ctx.onnx")
    (tmp_path / "m_ctx.onnx").write_bytes(b"no model")
    prefix_nodes(group, group.members[0], tmp_path / "m_ctx.onnx")
    path = compiled(tmp_path, ("a", "SomebodyElse"))
    prefix_nodes(group, group.members[0], path)
    assert names(path) == ["a"]


def test_renaming_with_other_changes_is_discarded(tmp_path: Path) -> None:
    path = compiled(tmp_path, ("a", QNN))

    def do_more(done: Mapping[str, Any]) -> None:
        model = onnx.load(done["destination"])
        model.graph.node[0].input[0] = "y"
        model.graph.input[0].name = "y"
        onnx.save(model, done["destination"])

    group = group_for(QNN)
    with pytest.raises(VerifyError) as raised, at_each_return(rename_nodes, do_more):
        prefix_nodes(group, group.members[0], path)
    assert [problem.code for problem in raised.value.problems] == ["EPB441"]
    assert names(path) == ["a"]
