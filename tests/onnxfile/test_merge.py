"""Merged compiled models: their connections and names, and refusals of models that an EP would not load."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import onnx
import pytest
from onnx import TensorProto, helper

from epbuild.catalog.catalog import find_source_entry
from epbuild.core.errors import ChangeRefused, EpbuildError
from epbuild.onnxfile.merge.connection import Connection, read_connections
from epbuild.onnxfile.merge.merge import Merged, merge_models, read_members
from epbuild.onnxfile.read.headers import read_header
from epbuild.onnxfile.read.wire import encode_varint
from tests.onnxfile.context_models import OPENVINO, QNN, compiled, context, encapsulated, files, value, write
from tests.onnxfile.models import external_tensor, if_node


def merged(folder: Path, *models: Path, prefixes: Sequence[str] = (), connect: Sequence[Connection] | None = None) -> Merged:
    inputs = list(zip(models, prefixes or [""] * len(models), strict=True))
    return merge_models(inputs, connect, folder / "out/m.onnx", find_source_entry)


def graph_of(made: Merged) -> Any:
    return onnx.load(made.model, load_external_data=False).graph


def signature(made: Merged) -> tuple[list[str], list[str]]:
    header = read_header(made.model)
    return [item.name for item in header.inputs], [item.name for item in header.outputs]


def wiring(made: Merged) -> list[tuple[list[str], list[str]]]:
    return [(list(node.input), list(node.output)) for node in graph_of(made).node]


def attribute(node: Any, name: str) -> str:
    return str(next(item.s.decode() for item in node.attribute if item.name == name))


def chain(folder: Path) -> tuple[Path, Path]:
    return compiled(folder / "a.onnx", "x", "y"), compiled(folder / "b.onnx", "y", "z")


def test_output_feeds_the_input_of_the_same_name(tmp_path: Path) -> None:
    made = merged(tmp_path, *chain(tmp_path))
    assert made.connections == (Connection(0, "y", 1, "y"),)
    assert signature(made) == (["x"], ["z"])
    assert wiring(made) == [(["x"], ["y"]), (["y"], ["z"])]
    # ONNX Runtime cannot infer the output type of an EPContext node.
    assert [item.name for item in graph_of(made).value_info] == ["y"]
    assert {name: content for name, content in files(tmp_path / "out").items() if name != "m.onnx"} == {
        "a_qnn.bin": b"context of a",
        "b_qnn.bin": b"context of b",
    }


def test_named_outputs_feed_named_inputs_and_one_output_feeds_several(tmp_path: Path) -> None:
    first = compiled(tmp_path / "a.onnx", "x", "y")
    others = [compiled(tmp_path / f"{name}.onnx", f"in_{name}", f"out_{name}") for name in ("b", "c")]
    connections = [Connection(0, "y", 1, "in_b"), Connection(0, "y", 2, "in_c")]
    made = merged(tmp_path, first, *others, connect=connections)
    assert signature(made) == (["x"], ["out_b", "out_c"])
    assert wiring(made) == [(["x"], ["y"]), (["y"], ["out_b"]), (["y"], ["out_c"])]


def of_two_inputs(folder: Path, *before: Any, inner: tuple[str, str] = ("p", "q"), **graph: Any) -> Path:
    """Write a model with two inputs. Nodes in `before` may rename them."""
    (folder / "two.bin").write_bytes(b"two")
    node = context(inner, ["z"], embed_mode=0, ep_cache_context="two.bin")
    return write(folder / "two.onnx", [*before, node], [value("p"), value("q")], [value("z")], **graph)


def constants(second: float) -> list[Any]:
    return [helper.make_tensor(f"c_{name}", TensorProto.FLOAT, [1], [number]) for name, number in (("p", 1.0), ("q", second))]


BETWEEN: dict[str, tuple[Sequence[Any], tuple[str, str]]] = {
    "nothing": ((), ("p", "q")),
    "a copy": ([helper.make_node("Identity", ["q"], ["b"])], ("p", "b")),
    "equal nodes": ([helper.make_node("Abs", [old], [new]) for old, new in ("pa", "qb")], ("a", "b")),
    "equal constants": ([helper.make_node("Add", [old, f"c_{old}"], [new]) for old, new in ("pa", "qb")], ("a", "b")),
}


@pytest.mark.parametrize("between", BETWEEN)
def test_output_for_two_inputs_of_one_node_is_refused_because_qnn_crashes(tmp_path: Path, between: str) -> None:
    nodes, inner = BETWEEN[between]
    first = compiled(tmp_path / "a.onnx", "x", "y")
    second = of_two_inputs(tmp_path, *nodes, inner=inner, initializer=constants(1.0) if between == "equal constants" else [])
    with pytest.raises(ChangeRefused) as failure:
        merged(tmp_path, first, second, connect=[Connection(0, "y", 1, "p"), Connection(0, "y", 1, "q")])
    [problem] = failure.value.problems
    assert problem.code == "EPB626"
    assert f"two inputs of the EPContext node '{QNN}_z' of {second} would be the same value, 'y'" in problem.message or nodes
    assert not (tmp_path / "out").exists() or files(tmp_path / "out") == {}


def test_output_may_feed_differing_inputs_or_inputs_of_several_nodes(tmp_path: Path) -> None:
    first = compiled(tmp_path / "a.onnx", "x", "y")
    nodes = BETWEEN["equal constants"][0]
    second = of_two_inputs(tmp_path, *nodes, inner=("a", "b"), initializer=constants(2.0))
    both = [Connection(0, "y", 1, "p"), Connection(0, "y", 1, "q")]
    assert wiring(merged(tmp_path, first, second, connect=both))[-1] == (["a", "b"], ["z"])
    contexts = [context([name], [f"z_{name}"], embed_mode=0, ep_cache_context="two.bin") for name in "pq"]
    apart = write(tmp_path / "apart.onnx", contexts, [value("p"), value("q")], [value("z_p"), value("z_q")])
    made = merge_models([(first, ""), (apart, "")], both, tmp_path / "apart/m.onnx", find_source_entry)
    assert wiring(made)[1:] == [(["y"], ["z_p"]), (["y"], ["z_q"])]


def test_nearest_preceding_model_feeds_an_input(tmp_path: Path) -> None:
    models = [compiled(tmp_path / f"{name}.onnx", "x", "y", node=name) for name in ("a", "b")]
    made = merged(tmp_path, *models, compiled(tmp_path / "c.onnx", "y", "z"), prefixes=["a_", "b_", "c_"])
    assert made.connections == (Connection(1, "y", 2, "y"),)
    assert wiring(made) == [(["a_x"], ["a_y"]), (["b_x"], ["b_y"]), (["b_y"], ["c_z"])]


def test_connection_uses_the_only_valid_name(tmp_path: Path) -> None:
    # With the output's name, the second model would have two values of one name.
    (tmp_path / "s.bin").write_bytes(b"s")
    node = context(["a", "b"], ["z"], embed_mode=0, ep_cache_context="s.bin")
    second = write(tmp_path / "s.onnx", [node], [value("a"), value("b")], [value("z")])
    made = merged(tmp_path, compiled(tmp_path / "p.onnx", "x", "b"), second, connect=[Connection(0, "b", 1, "a")])
    assert wiring(made) == [(["x"], ["a"]), (["a", "b"], ["z"])]
    assert attribute(graph_of(made).node[0], "io_name_overrides") == "a=b;"
    assert signature(made) == (["x", "b"], ["z"])


def test_equal_input_names_are_shared_unless_prefixed(tmp_path: Path) -> None:
    pair = compiled(tmp_path / "a.onnx", "x", "y"), compiled(tmp_path / "b.onnx", "x", "z")
    made = merged(tmp_path, *pair)
    assert (signature(made), made.shared_inputs, made.connections) == ((["x"], ["y", "z"]), ("x",), ())
    made = merge_models([(pair[0], "a_"), (pair[1], "b_")], None, tmp_path / "apart.onnx", find_source_entry)
    assert (signature(made), made.shared_inputs) == ((["a_x", "b_x"], ["a_y", "b_z"]), ())


def test_qnn_gets_the_original_name_of_each_renamed_value(tmp_path: Path) -> None:
    # Without it, QNN binds renamed inputs by position, and warns that the binding may be wrong.
    made = merged(tmp_path, *chain(tmp_path), prefixes=["a_", "b_"])
    told = [attribute(node, "io_name_overrides") for node in graph_of(made).node]
    assert told == ["a_x=x;a_y=y;", "a_y=y;b_z=z;"]


def test_existing_qnn_names_are_updated(tmp_path: Path) -> None:
    # The context of a quantized model uses other names than the values around it. Without this, the EP aborts the process.
    (tmp_path / "q.bin").write_bytes(b"context")
    node = context(["x_q"], ["y_q"], embed_mode=0, ep_cache_context="q.bin", io_name_overrides="x_q=x;y_q=y;")
    quantize = helper.make_node("QuantizeLinear", ["x", "s"], ["x_q"], name="q")
    dequantize = helper.make_node("DequantizeLinear", ["y_q", "s"], ["y"], name="dq")
    scale = helper.make_tensor("s", TensorProto.FLOAT, [], [0.1])
    model = write(tmp_path / "q.onnx", [quantize, node, dequantize], [value("x")], [value("y")], initializer=[scale])
    made = merged(tmp_path, model, compiled(tmp_path / "b.onnx", "y", "z"), prefixes=["p_", ""])
    graph = graph_of(made)
    assert attribute(graph.node[1], "io_name_overrides") == "p_x_q=x;p_y_q=y;"
    assert [node.name for node in graph.node] == ["p_q", node.name, "p_dq", f"{QNN}_z"]
    assert graph.initializer[0].name == "p_s"
    assert list(graph.node[0].input) == ["p_x", "p_s"]


def test_node_keeps_its_ep_name_unless_two_nodes_share_the_name(tmp_path: Path) -> None:
    made = merged(tmp_path, *chain(tmp_path), prefixes=["a_", "b_"])
    assert [node.name for node in graph_of(made).node] == [f"{QNN}_y", f"{QNN}_z"]
    twins = [
        compiled(tmp_path / f"{name}.onnx", takes, gives, node="same")
        for name, takes, gives in [("c", "x", "y"), ("d", "y", "z")]
    ]
    made = merge_models([(twins[0], "c_"), (twins[1], "d_")], None, tmp_path / "twins.onnx", find_source_entry)
    nodes = graph_of(made).node
    assert [node.name for node in nodes] == ["same", "d_same"]
    assert [attribute(node, "partition_name") for node in nodes] == ["same", "d_same"]


def test_model_can_be_merged_twice_with_one_binary(tmp_path: Path) -> None:
    model = compiled(tmp_path / "a.onnx", "x", "y")
    made = merged(tmp_path, model, model, prefixes=["1_", "2_"], connect=[Connection(0, "y", 1, "x")])
    assert signature(made) == (["1_x"], ["2_y"])
    assert [path.name for path in made.files] == ["a_qnn.bin"]


def test_nodes_of_one_context_binary_get_its_largest_max_size(tmp_path: Path) -> None:
    def model(name: str, takes: str, gives: str, binary: str, size: int) -> Path:
        (tmp_path / binary).write_bytes(binary.encode())
        node = context([takes], [gives], name=name, embed_mode=0, ep_cache_context=binary, max_size=size)
        return write(tmp_path / f"{name}.onnx", [node], [value(takes)], [value(gives)])

    models = [model("a", "x", "y", "both.bin", 0), model("b", "y", "z", "both.bin", 70), model("c", "z", "u", "own.bin", 9)]
    made = merged(tmp_path, *models)
    assert [node.max_size for node in read_header(made.model).ep_context_nodes] == [70, 70, 9]


def test_names_in_subgraphs_and_of_weights_are_separated(tmp_path: Path) -> None:
    def model(path: Path, takes: str, gives: str) -> Path:
        (tmp_path / f"{path.stem}.bin").write_bytes(path.stem.encode())
        body = helper.make_graph([helper.make_node("Mul", ["h", "w"], ["inner"], name="mul")], "g", [], [value("inner")])
        other = helper.make_graph([helper.make_node("Identity", ["h"], ["inner"], name="id")], "g", [], [value("inner")])
        branch = if_node(body, other)
        branch.output[0] = gives
        nodes = [context([takes], ["h"], name=path.stem, embed_mode=0, ep_cache_context=f"{path.stem}.bin"), branch]
        weight = helper.make_tensor("w", TensorProto.FLOAT, [1], [2.0])
        inputs = [value(takes), value("condition", [], TensorProto.BOOL)]
        return write(path, nodes, inputs, [value(gives)], initializer=[weight], value_info=[value("h")])

    first, second = model(tmp_path / "a.onnx", "x", "y"), model(tmp_path / "b.onnx", "y", "z")
    with pytest.raises(ChangeRefused, match="a value named 'w', but they are not connected"):
        merged(tmp_path, first, second)
    made = merged(tmp_path, first, second, prefixes=["", "b_"])
    onnx.checker.check_model(onnx.load(made.model))
    branch = graph_of(made).node[3]
    inner = next(item.g for item in branch.attribute if item.name == "then_branch")
    assert (list(branch.input), list(branch.output)) == (["b_condition"], ["b_z"])
    assert (list(inner.node[0].input), list(inner.node[0].output), inner.output[0].name) == (
        ["b_h", "b_w"],
        ["b_inner"],
        "b_inner",
    )
    assert signature(made) == (["x", "condition", "b_condition"], ["b_z"])


def test_two_binaries_of_one_name_are_both_kept(tmp_path: Path) -> None:
    first = compiled(tmp_path / "1/a.onnx", "x", "y", binary="m.bin", node="a")
    second = compiled(tmp_path / "2/b.onnx", "y", "z", binary="m.bin", node="b")
    made = merged(tmp_path, first, second)
    assert {name: content for name, content in files(tmp_path / "out").items() if name != "m.onnx"} == {
        "m.bin": b"context of a",
        "m_2.bin": b"context of b",
    }
    assert [node.reference for node in read_header(made.model).ep_context_nodes] == ["m.bin", "m_2.bin"]


@pytest.mark.parametrize("spelling", ["./m.bin", "M.bin"])
def test_similar_file_names_do_not_overwrite_each_other(tmp_path: Path, spelling: str) -> None:
    first = compiled(tmp_path / "1/a.onnx", "x", "y", binary=spelling, node="a")
    second = compiled(tmp_path / "2/b.onnx", "y", "z", binary="m.bin", node="b")
    made = merged(tmp_path, first, second)
    references = [node.reference for node in read_header(made.model).ep_context_nodes]
    assert references[1] == "m_2.bin"
    assert [(tmp_path / "out" / str(name)).read_bytes() for name in references] == [b"context of a", b"context of b"]


def test_existing_binaries_beside_the_result_are_reused_or_left_alone(tmp_path: Path) -> None:
    first, second = chain(tmp_path)
    out = tmp_path / "out"
    out.mkdir()
    (out / "b_qnn.bin").write_bytes(b"somebody's")
    (out / "a_qnn.bin").write_bytes(b"context of a")
    stamp = (out / "a_qnn.bin").stat()
    made = merged(tmp_path, first, second)
    assert [path.name for path in made.files] == ["a_qnn.bin", "b_qnn_2.bin"]
    assert (out / "b_qnn.bin").read_bytes() == b"somebody's"
    assert (out / "a_qnn.bin").stat().st_ino == stamp.st_ino


def test_qnn_and_openvino_merge_and_openvino_keeps_its_names(tmp_path: Path) -> None:
    first = compiled(tmp_path / "a.onnx", "x", "h", QNN, metadata={f"ep_compatibility_info.{QNN}": "v2"})
    second = compiled(tmp_path / "b.onnx", "y", "z", OPENVINO, metadata={f"ep_compatibility_info.{OPENVINO}": "v1"})
    made = merged(tmp_path, first, second, prefixes=["a_", ""], connect=[Connection(0, "h", 1, "y")])
    assert wiring(made) == [(["a_x"], ["y"]), (["y"], ["z"])]
    assert read_header(made.model).metadata == {f"ep_compatibility_info.{QNN}": "v2", f"ep_compatibility_info.{OPENVINO}": "v1"}


def test_compatibility_entry_of_an_unused_ep_is_ignored(tmp_path: Path) -> None:
    keys = [f"ep_compatibility_info.{ep}" for ep in (QNN, OPENVINO)]
    first = compiled(tmp_path / "a.onnx", "x", "y", QNN, metadata=dict(zip(keys, ["qnn", "nothing compiled"], strict=True)))
    second = compiled(tmp_path / "b.onnx", "y", "z", OPENVINO, metadata={keys[1]: "openvino"})
    assert read_header(merged(tmp_path, first, second).model).metadata == dict(zip(keys, ["qnn", "openvino"], strict=True))


def test_conflicting_metadata_is_omitted_and_reported(tmp_path: Path) -> None:
    first = compiled(tmp_path / "a.onnx", "x", "y", metadata={"author": "one", "license": "MIT"})
    second = compiled(tmp_path / "b.onnx", "y", "z", metadata={"author": "two", "license": "MIT"})
    made = merged(tmp_path, first, second)
    assert read_header(made.model).metadata == {"license": "MIT"}
    assert made.notes == ("the metadata 'author' was left out, since the models have different values for it",)


def test_opsets_used_only_by_epcontext_nodes_are_ignored(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(b"a")
    nodes = [context(["x"], ["h"], embed_mode=0, ep_cache_context="a.bin"), helper.make_node("Relu", ["h"], ["y"])]
    first = write(tmp_path / "a.onnx", nodes, [value("x")], [value("y")], {"": 17, "com.microsoft": 1})
    second = compiled(tmp_path / "b.onnx", "y", "z", opsets={"ai.onnx": 21, "com.microsoft": 1, "ai.onnx.ml": 5})
    assert read_header(merged(tmp_path, first, second).model).opsets == {"": 17, "com.microsoft": 1, "ai.onnx.ml": 5}


def test_external_data_is_copied(tmp_path: Path) -> None:
    (tmp_path / "in/data").mkdir(parents=True)
    (tmp_path / "in/data/w.bin").write_bytes(bytes(16))
    first = compiled(tmp_path / "in/a.onnx", "x", "y", initializer=[external_tensor("w", "data/w.bin")])
    made = merged(tmp_path, first, compiled(tmp_path / "b.onnx", "y", "z"))
    assert (tmp_path / "out/data/w.bin").read_bytes() == bytes(16)
    assert read_header(made.model).external_locations == ("data/w.bin",)


def test_embedded_contexts_stay_embedded(tmp_path: Path) -> None:
    first = compiled(tmp_path / "a.onnx", "x", "y", payload=b"\0one")
    made = merged(tmp_path, first, compiled(tmp_path / "b.onnx", "y", "z", payload=b"\xfftwo"))
    contexts = [item.s for node in graph_of(made).node for item in node.attribute if item.name == "ep_cache_context"]
    assert (contexts, made.files) == ([b"\0one", b"\xfftwo"], ())


class MergeRequest(NamedTuple):
    models: tuple[Path, ...]
    prefixes: Sequence[str] = ()
    connect: Sequence[Connection] | None = None


def pair(folder: Path, first: dict[str, Any] | None = None, second: dict[str, Any] | None = None) -> tuple[Path, Path]:
    return (
        compiled(folder / "a.onnx", **{"takes": "x", "gives": "y", **(first or {})}),
        compiled(folder / "b.onnx", **{"takes": "y", "gives": "z", **(second or {})}),
    )


def with_relu(path: Path, takes: str, gives: str, opset: int, between: str) -> Path:
    (path.parent / f"{path.stem}.bin").write_bytes(path.stem.encode())
    nodes = [
        context([takes], [between], embed_mode=0, ep_cache_context=f"{path.stem}.bin"),
        helper.make_node("Relu", [between], [gives]),
    ]
    return write(path, nodes, [value(takes)], [value(gives)], {"": opset, "com.microsoft": 1})


def two_partitions(path: Path, takes: str, gives: str, name: str) -> Path:
    (path.parent / f"{path.stem}.bin").write_bytes(path.stem.encode())
    nodes = [
        context([takes], [f"{gives}_h"], name=f"{name}_0", embed_mode=0, ep_cache_context=f"{path.stem}.bin"),
        context([f"{gives}_h"], [gives], name=f"{name}_1", embed_mode=0, main_context=0),
    ]
    return write(path, nodes, [value(takes)], [value(gives)])


def two_inputs(folder: Path) -> tuple[Path, Path]:
    (folder / "s.bin").write_bytes(b"s")
    node = context(["a", "b"], ["z"], embed_mode=0, ep_cache_context="s.bin")
    first = compiled(folder / "p.onnx", "x", "b", source="OtherExecutionProvider")  # its names cannot change instead
    return first, write(folder / "s.onnx", [node], [value("a"), value("b")], [value("z")])


def shaped(path: Path, takes: Any, gives: Any) -> Path:
    (path.parent / f"{path.stem}.bin").write_bytes(path.stem.encode())
    return write(path, [context([takes.name], [gives.name], embed_mode=0, ep_cache_context=f"{path.stem}.bin")], [takes], [gives])


def sharing_twins(folder: Path) -> tuple[Path, Path]:
    compiled(folder / "third.onnx", "x", "y", binary="s.bin")
    return pair(folder, {"node": "same"}, {"node": "same", "binary": "s.bin"})


def source(folder: Path) -> Path:
    return write(folder / "s.onnx", [helper.make_node("Relu", ["y"], ["z"])], [value("y")], [value("z")])


def test_models_with_different_spellings_of_an_ep_are_merged_as_models_of_one_ep(tmp_path: Path) -> None:
    first = compiled(tmp_path / "a.onnx", "x", "y", source="Qnn", node="same", metadata={f"ep_compatibility_info.{QNN}": "1"})
    second = compiled(tmp_path / "b.onnx", "y", "z", node="same", metadata={f"ep_compatibility_info.{QNN}": "1"})
    graph = graph_of(merged(tmp_path, first, second, prefixes=["a_", "b_"], connect=[Connection(0, "y", 1, "y")]))
    assert [attribute(node, "source") for node in graph.node] == ["Qnn", QNN]
    assert attribute(graph.node[0], "io_name_overrides") == "a_x=x;a_y=y;"
    other = compiled(tmp_path / "c.onnx", "z", "v", source="QNN", metadata={f"ep_compatibility_info.{QNN}": "2"})
    with pytest.raises(ChangeRefused, match="were compiled by QNNExecutionProvider for different targets"):
        merge_models([(first, ""), (other, "")], (), tmp_path / "d.onnx", find_source_entry)


def test_weights_beside_a_context_are_copied_with_it(tmp_path: Path) -> None:
    first, second = compiled(tmp_path / "a.onnx", "x", "y"), encapsulated(tmp_path / "b.onnx", "y", "z")
    made = merged(tmp_path, first, second)
    assert {path.name for path in made.files} == {"a_qnn.bin", "net.xml", "net.bin"}
    assert files(tmp_path / "out")["net.bin"] == (tmp_path / "net.bin").read_bytes()
    # A context gets another name if its name is taken by other bytes, and its weights follow.
    other = tmp_path / "other"
    other.mkdir()
    (other / "net.xml").write_bytes(b"other")
    made = merge_models([(first, ""), (second, "")], None, other / "m.onnx", find_source_entry)
    assert {path.name for path in made.files} == {"a_qnn.bin", "net_2.xml", "net_2.bin"}


def conflicting_data(folder: Path) -> tuple[Path, Path]:
    for name in ("1", "2"):
        (folder / name).mkdir()
        (folder / name / "w.bin").write_bytes(name.encode() * 16)
    weight = [external_tensor("w", "w.bin")]
    return compiled(folder / "1/a.onnx", "x", "y", binary="w.bin"), compiled(folder / "2/b.onnx", "y", "z", initializer=weight)


OV = {"source": OPENVINO}
REFUSED: dict[str, tuple[str, str, Callable[[Path], MergeRequest]]] = {
    "two OpenVINO binaries": (
        "EPB626",
        "OpenVINOExecutionProvider loads only 1 context per model, but the merged model would have 2",
        lambda f: MergeRequest(pair(f, OV, OV)),
    ),
    "weights whose name is taken": (
        "EPB624",
        "the weights of a context of .*b.onnx cannot be written to net.bin: another file has this name",
        lambda f: MergeRequest((compiled(f / "1/a.onnx", "x", "y", binary="net.bin"), encapsulated(f / "b.onnx", "y", "z"))),
    ),
    "two OpenVINO embedded": (
        "EPB626",
        "would have 2",
        lambda f: MergeRequest(pair(f, {**OV, "payload": b"1"}, {**OV, "payload": b"2"})),
    ),
    "OpenVINO, one binary and one embedded": (
        "EPB626",
        "would have 2",
        lambda f: MergeRequest(pair(f, {**OV, "payload": b"1"}, OV)),
    ),
    "OpenVINO with a prefix": (
        "EPB626",
        "does not load a context whose inputs or outputs are renamed: 'z' of .*b.onnx would be renamed to 'b_z'",
        lambda f: MergeRequest(pair(f, None, OV), ["", "b_"]),
    ),
    "OpenVINO's input renamed by a connection between two": (
        "EPB626",
        "'in' of .*b.onnx would be renamed to 'y'",
        lambda f: MergeRequest(
            pair(f, {"source": "OtherExecutionProvider"}, {**OV, "takes": "in"}), [], [Connection(0, "y", 1, "in")]
        ),
    ),
    "renaming for an unmeasured EP": (
        "EPB626",
        "OtherExecutionProvider does not load",
        lambda f: MergeRequest(pair(f, None, {"source": "OtherExecutionProvider"}), ["", "b_"]),
    ),
    "a name of another value": (
        "EPB627",
        "'a' of .*s.onnx would be renamed to 'b', which is the name of another value of this model",
        lambda f: MergeRequest(two_inputs(f), [], [Connection(0, "b", 1, "a")]),
    ),
    "a name already used by the context": (
        "EPB626",
        "'a' of .*s.onnx would be renamed to 'b', but the context already uses that name",
        lambda f: MergeRequest(two_inputs(f), ["", "s_"], [Connection(0, "b", 1, "a")]),
    ),
    "a name that QNN cannot parse": (
        "EPB626",
        "'='",
        lambda f: MergeRequest(pair(f, None, {"gives": "MatMul;BiasAdd"}), ["", "b_"]),
    ),
    "two values of one name": ("EPB627", "a value named 'z'", lambda f: MergeRequest(pair(f, {"takes": "z"}))),
    "two outputs of one name": (
        "EPB627",
        "a value named 'y'",
        lambda f: MergeRequest(pair(f, None, {"takes": "w", "gives": "y", "node": "b"})),
    ),
    "two nodes of one name": (
        "EPB627",
        "node 'same'|node named 'same'",
        lambda f: MergeRequest(pair(f, {"node": "same"}, {"node": "same"})),
    ),
    "two nodes with one partition name": (
        "EPB627",
        "EPContext node 'same_0'; QNNExecutionProvider needs that name",
        lambda f: MergeRequest(
            (two_partitions(f / "a.onnx", "x", "y", "same"), two_partitions(f / "b.onnx", "y", "z", "same")), ["a_", "b_"]
        ),
    ),
    "a node in a shared context": ("EPB627", "needs that name unchanged", lambda f: MergeRequest(sharing_twins(f), ["a_", "b_"])),
    "an unknown output": (
        "EPB627",
        "a.onnx has no output 'w'",
        lambda f: MergeRequest(pair(f), [], [Connection(0, "w", 1, "y")]),
    ),
    "an unknown input": ("EPB627", "b.onnx has no input 'x'", lambda f: MergeRequest(pair(f), [], [Connection(0, "y", 1, "x")])),
    "backwards": ("EPB627", "does not come after", lambda f: MergeRequest(pair(f), [], [Connection(1, "z", 0, "x")])),
    "an input with two sources": (
        "EPB627",
        "'y' of .*b.onnx is connected twice",
        lambda f: MergeRequest(pair(f), [], [Connection(0, "y", 1, "y")] * 2),
    ),
    "another type": (
        "EPB628",
        r"'y' of .*a.onnx \(float\[1, 4\]\) cannot feed 'y' of .*b.onnx \(float16\[1, 4\]\)",
        lambda f: MergeRequest(
            (compiled(f / "a.onnx"), shaped(f / "b.onnx", value("y", elem_type=TensorProto.FLOAT16), value("z")))
        ),
    ),
    "another shape": (
        "EPB628",
        r"float\[1, 4\]\) cannot feed .* \(float\[batch, 8\]",
        lambda f: MergeRequest((compiled(f / "a.onnx"), shaped(f / "b.onnx", value("y", ["batch", 8]), value("z")))),
    ),
    "another rank": (
        "EPB628",
        r"float\[4\]",
        lambda f: MergeRequest((compiled(f / "a.onnx"), shaped(f / "b.onnx", value("y", [4]), value("z")))),
    ),
    "a shared input of two shapes": (
        "EPB628",
        r"the input 'x' is float\[1, 4\] in .*a.onnx but float\[2, 4\] in",
        lambda f: MergeRequest((compiled(f / "a.onnx"), shaped(f / "b.onnx", value("x", [2, 4]), value("z")))),
    ),
    "two operator versions": (
        "EPB628",
        "uses version 17 of the operators 'ai.onnx' but .*b.onnx uses version 21",
        lambda f: MergeRequest((with_relu(f / "a.onnx", "x", "y", 17, "h"), with_relu(f / "b.onnx", "y", "z", 21, "k"))),
    ),
    "two targets": (
        "EPB628",
        "compiled by QNNExecutionProvider for different targets: .*a.onnx for soc 1; .*b.onnx for soc 2",
        lambda f: MergeRequest(pair(f, *({"metadata": {f"ep_compatibility_info.{QNN}": f"soc {soc}"}} for soc in (1, 2)))),
    ),
    "not compiled": ("EPB620", "contains no EPContext node", lambda f: MergeRequest((compiled(f / "a.onnx"), source(f)))),
    "conflicting external data": ("EPB624", "cannot be written to w.bin", lambda f: MergeRequest(conflicting_data(f))),
    "a missing binary": (
        "EPB605",
        "does not exist",
        lambda f: MergeRequest((pair(f)[0], with_no_binary(f))),
    ),
}


def with_no_binary(folder: Path) -> Path:
    model = compiled(folder / "n.onnx", "y", "z", binary="gone.bin")
    (folder / "gone.bin").unlink()
    return model


@pytest.mark.parametrize("name", REFUSED)
def test_invalid_merge_is_refused_in_one_sentence_and_writes_nothing(tmp_path: Path, name: str) -> None:
    code, words, prepare = REFUSED[name]
    asked = prepare(tmp_path)
    before = files(tmp_path)
    with pytest.raises(EpbuildError, match=words) as refused:
        merged(tmp_path, *asked.models, prefixes=asked.prefixes, connect=asked.connect)
    (problem,) = refused.value.problems
    assert (problem.code, "\n" in problem.message) == (code, False)
    assert refused.value.exit_code == (2 if isinstance(refused.value, ChangeRefused) else 1)
    assert files(tmp_path) == before
    assert not (tmp_path / "out").exists()


def test_result_over_two_gigabytes_is_refused(tmp_path: Path) -> None:
    model = compiled(tmp_path / "a.onnx", "x", "y", binary="a.bin")
    with model.open("ab") as file:  # an unknown field, whose zeros are a hole in the file
        file.write(encode_varint(1000 << 3 | 2) + encode_varint(2**30))
        file.truncate(file.tell() + 2**30)
    with pytest.raises(ChangeRefused, match="over 2 GiB"):
        merged(tmp_path, tmp_path / "a.onnx", tmp_path / "a.onnx", prefixes=["1_", "2_"])


def test_existing_result_is_not_overwritten(tmp_path: Path) -> None:
    models = chain(tmp_path)
    (tmp_path / "out").mkdir()
    (tmp_path / "out/m.onnx").write_bytes(b"mine")
    with pytest.raises(ChangeRefused, match="already exists and is not overwritten"):
        merged(tmp_path, *models)
    assert files(tmp_path / "out") == {"m.onnx": b"mine"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a.v1.y=b.y", Connection(0, "y", 1, "y")),
        ("1.y=2.y", Connection(0, "y", 1, "y")),
        ("1.p=q=2.y", Connection(0, "p=q", 1, "y")),
        ("a.v1.h.0=b.i.0", Connection(0, "h.0", 1, "i.0")),
    ],
)
def test_connection_names_may_have_dots_and_equals_signs(tmp_path: Path, text: str, expected: Connection) -> None:
    outputs, inputs = ["y", "p=q", "h.0"], ["y", "i.0"]
    first = write(tmp_path / "a.v1.onnx", [context(["x"], outputs)], [value("x")], [value(name) for name in outputs])
    second = write(tmp_path / "b.onnx", [context(inputs, ["z"])], [value(name) for name in inputs], [value("z")])
    assert read_connections([text], read_members([first, second])) == [expected]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a.y", "not of the form MODEL.OUTPUT=MODEL.INPUT. The models are 1: a, 2: b."),
        ("c.y=b.y", "not of the form"),
        ("a.nope=b.y", "a.onnx has no output 'nope'. Available: y."),
        ("a.y=b.nope", "b.onnx has no input 'nope'. Available: y."),
    ],
)
def test_unknown_connection_is_refused_with_the_available_names(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(ChangeRefused) as refused:
        read_connections([text], read_members(pair(tmp_path)))
    assert words in refused.value.problems[0].text


def test_ambiguous_connection_is_refused(tmp_path: Path) -> None:
    model = compiled(tmp_path / "a.onnx", "y", "y_", node="n")
    twin = write(tmp_path / "twin/a.onnx", [context(["y"], ["y_"])], [value("y")], [value("y_")])
    with pytest.raises(ChangeRefused, match="is ambiguous"):
        read_connections(["a.y_=a.y"], read_members([model, twin]))
    assert read_connections(["1.y_=2.y"], read_members([model, twin])) == [Connection(0, "y_", 1, "y")]
