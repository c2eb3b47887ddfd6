"""Preparation `split`: its parts compute together what the whole model computes, in a process with ONNX but without ONNX Runtime."""

from __future__ import annotations

import json
import runpy
import tempfile
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from tests.worker.scripts import FOLDER

SCRIPT = runpy.run_path(str(FOLDER / "preparations" / "split.py"))
REFUSED = SCRIPT["step"].Refused
WIDTH = 4
Arrays = dict[str, np.ndarray[Any, Any]]


def build(
    nodes: list[Any], outputs: str, weights: dict[str, Any], inputs: str = "x", sizes: Iterable[int | str] = ("n", WIDTH)
) -> onnx.ModelProto:
    """Return a model whose inputs and outputs have `sizes`."""
    ends = [
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, sizes) for name in names.split()] for names in (inputs, outputs)
    ]
    tensors = [numpy_helper.from_array(np.asarray(value), name) for name, value in weights.items()]
    opsets = [helper.make_opsetid("", 19), helper.make_opsetid("own", 1)]
    return helper.make_model(helper.make_graph(nodes, "whole", *ends, tensors), opset_imports=opsets, ir_version=9)


def matrix(seed: int, width: int = WIDTH) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).normal(size=(width, width)).astype(np.float32)


def chain(length: int = 4, name: str = "layers.{}.weight") -> onnx.ModelProto:
    """Return a model with layers that end with the values h0, h1, ..., as in a decoder: h + relu(h @ weight + mask)."""
    nodes, before = [helper.make_node("Neg", ["y"], ["mask"])], "x"
    for layer in range(length):
        nodes += [
            helper.make_node("MatMul", [before, name.format(layer)], [f"a{layer}"]),
            helper.make_node("Add", [f"a{layer}", "mask"], [f"b{layer}"]),
            helper.make_node("Relu", [f"b{layer}"], [f"c{layer}"]),
            helper.make_node("Add", [before, f"c{layer}"], [f"h{layer}"]),
        ]
        before = f"h{layer}"
    return build(nodes, before, {name.format(layer): matrix(layer) for layer in range(length)}, "x y")


def split(model: onnx.ModelProto | Path, options: dict[str, Any], folder: Path | None = None) -> list[onnx.ModelProto]:
    """Return all parts of a model. Raises Refused."""
    with tempfile.TemporaryDirectory(dir=folder) as name:
        source = model if isinstance(model, Path) else Path(name, "whole.onnx")
        if not isinstance(model, Path):
            onnx.save(model, source)
        parts: list[onnx.ModelProto] = []
        while len(parts) < (read_metadata(parts[0])["parts"] if parts else 1):
            output = Path(name, f"{len(parts)}.onnx")
            SCRIPT["split"]({"source": str(source), "output": str(output), "options": {**options, "part": len(parts)}})
            onnx.checker.check_model(output)
            parts.append(onnx.load(output))
    return parts


def refuse(model: onnx.ModelProto, options: dict[str, Any]) -> str:
    """Return the message with which all parts are refused."""
    with pytest.raises(REFUSED) as caught:
        split(model, options)
    return str(caught.value)


def read_metadata(part: onnx.ModelProto) -> dict[str, Any]:
    return json.loads({entry.key: entry.value for entry in part.metadata_props}["epbuild.split"])  # type: ignore[no-any-return]


def run(model: onnx.ModelProto, values: Arrays) -> Arrays:
    evaluator = ReferenceEvaluator(model)
    names = [value.name for value in model.graph.input]
    results = evaluator.run(None, {name: values[name] for name in names})
    return dict(zip(evaluator.output_names, results, strict=True))


def check_joined(model: onnx.ModelProto, parts: list[onnx.ModelProto]) -> None:
    """Check that the parts, run in order with values connected by name, compute exactly what the whole model computes."""
    draw = np.random.default_rng(5)
    given = {value.name: draw.normal(size=(3, WIDTH)).astype(np.float32) for value in model.graph.input}
    values = dict(given)
    for part in parts:
        values |= run(part, values)
    for name, result in run(model, given).items():
        assert np.array_equal(values[name], result), name


def inputs(part: onnx.ModelProto) -> list[str]:
    return [value.name for value in part.graph.input]


def outputs(part: onnx.ModelProto) -> list[str]:
    return [value.name for value in part.graph.output]


def weights(part: onnx.ModelProto) -> list[str]:
    return [tensor.name for tensor in part.graph.initializer]


def sizes(part: onnx.ModelProto) -> dict[str, list[int | str]]:
    ends = (*part.graph.input, *part.graph.output)
    return {value.name: [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim] for value in ends}


# -- Where a model is split --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2, 4])
def test_equal_parts_end_where_few_values_cross(count: int) -> None:
    parts = split(chain(), {"parts": count})
    assert [len(weights(part)) for part in parts] == [4 // count] * count
    assert [inputs(part) for part in parts[1:]] == [["mask", f"h{4 // count * part - 1}"] for part in range(1, count)]
    check_joined(chain(), parts)


def multiply(*names: str) -> list[Any]:
    """Return one MatMul for each name except the first: it computes the value NAME from the value before and the weights wNAME."""
    return [helper.make_node("MatMul", [before, f"w{name}"], [name]) for before, name in pairwise(names)]


def test_a_boundary_moves_a_little_to_avoid_connections() -> None:
    quarters = ["q0", "q1", "q2", "q3"]
    nodes = [
        *multiply("x", "a", "b", "c"),
        helper.make_node("Split", ["c"], quarters, axis=1, num_outputs=4),
        *multiply("c", "d", "e"),
        helper.make_node("Concat", quarters, ["joined"], axis=1),
        helper.make_node("Sum", ["c", "joined", "e"], ["sum"]),
        *multiply("sum", "f", "g", "h"),
    ]
    model = build(nodes, "h", {f"w{name}": matrix(1) for name in "abcdefgh"})
    assert [outputs(part) for part in split(model, {"parts": 2})] == [["c"], ["h"]]


@pytest.mark.parametrize("name", ["layers.{}.weight", "layer_{}.w", "m/blocks/{}/w", "transformer.h.{}.mlp"])
def test_a_part_begins_before_each_given_layer(name: str) -> None:
    parts = split(chain(name=name), {"layers": [1, 3]})
    assert [weights(part) for part in parts] == [[name.format(0)], [name.format(1), name.format(2)], [name.format(3)]]
    assert [inputs(part) for part in parts] == [["x", "y"], ["mask", "h0"], ["mask", "h2"]]
    check_joined(chain(name=name), parts)


def test_layers_are_found_by_the_scopes_that_torch_writes() -> None:
    model = chain(name="w{}")
    for node in model.graph.node:
        if node.op_type == "MatMul":
            scope = node.metadata_props.add()
            scope.key, scope.value = "pkg.torch.onnx.name_scopes", f"['', 'm', 'm.layers.{node.output[0][1:]}', 'linear']"
    assert [outputs(part)[-1] for part in split(model, {"layers": [2]})] == ["h1", "h3"]


def test_parts_end_at_the_given_values_and_no_others() -> None:
    nodes = [*multiply("x", "a", "b"), *multiply("y", "c", "d"), helper.make_node("Add", ["b", "d"], ["e"])]
    model = build(nodes, "e", {f"w{name}": matrix(1) for name in "abcd"}, "x y")
    parts = split(model, {"at": [["a", "c"]]})
    assert [outputs(part) for part in parts] == [["a", "c"], ["e"]]
    assert [outputs(part) for part in split(model, {"at": [["b"]]})] == [["b"], ["e"]]
    check_joined(model, parts)


def test_a_value_may_connect_parts_that_are_not_adjacent() -> None:
    model = chain()
    parts = split(model, {"at": [["h0"], ["h1"], ["h2"]]})
    assert ["mask" in outputs(part) for part in parts] == [True, False, False, False]
    assert all("mask" in inputs(part) for part in parts[1:])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"parts": 18}, "the model can be split into at most 17 parts"),
        ({"layers": [4]}, "'layers' has 4, but the model has the layers 0 to 3"),
        ({"layers": [0]}, "part 0 would be empty"),
        ({"at": [["h9"]]}, "'at' has 'h9', which no node computes"),
        ({"at": [["h3"]]}, "part 1 would be empty"),
        ({"at": [["h1"], ["h0"]]}, "part 2 would be empty"),
    ],
)
def test_impossible_boundaries_are_refused(options: dict[str, Any], message: str) -> None:
    assert message in refuse(chain(), options)


def test_a_part_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    onnx.save(chain(), tmp_path / "whole.onnx")
    with pytest.raises(REFUSED, match="'part' is 2, but the model is split into 2 parts"):
        SCRIPT["split"]({"source": str(tmp_path / "whole.onnx"), "output": "", "options": {"parts": 2, "part": 2}})


def test_a_model_without_layers_or_without_inputs_is_refused() -> None:
    assert "no layers were found" in refuse(chain(name="w{}"), {"layers": [1]})
    constant = build([helper.make_node("Neg", ["w"], ["y"])], "y", {"w": matrix(0)})
    assert "the model's outputs are constants" in refuse(constant, {"parts": 1})
    folded = build([helper.make_node("Neg", ["w"], ["v"]), helper.make_node("Add", ["x", "v"], ["y"])], "y", {"w": matrix(0)})
    assert "'at' has 'v', which is a constant" in refuse(folded, {"at": [["v"]]})


# -- Constants ---------------------------------------------------------------------------------------------------------


def test_parts_have_their_own_copies_of_constants_but_not_of_random_numbers() -> None:
    nodes = [
        helper.make_node("Transpose", ["w"], ["t"]),
        helper.make_node("RandomNormal", [], ["r"], shape=[1, WIDTH]),
        helper.make_node("MatMul", ["x", "t"], ["a"]),
        helper.make_node("Add", ["a", "r"], ["b"]),
        helper.make_node("MatMul", ["b", "t"], ["c"]),
        helper.make_node("Add", ["c", "r"], ["y"]),
    ]
    first, second = split(build(nodes, "y", {"w": matrix(0)}), {"at": [["b"]]})
    assert [node.op_type for node in first.graph.node] == ["Transpose", "RandomNormal", "MatMul", "Add"]
    assert [node.op_type for node in second.graph.node] == ["Transpose", "MatMul", "Add"]
    assert (weights(first), weights(second), inputs(second)) == (["w"], ["w"], ["r", "b"])


SIZED = [
    helper.make_node("Shape", ["x"], ["shape"]),
    helper.make_node("MatMul", ["x", "w"], ["a"]),
    helper.make_node("Add", ["a", "y"], ["b"]),
    helper.make_node("Reshape", ["b", "shape"], ["z"]),
]


def test_sizes_of_inputs_are_constants_and_not_connections() -> None:
    model = build([*SIZED[:2], helper.make_node("Reshape", ["a", "shape"], ["z"])], "z", {"w": matrix(0)})
    parts = split(model, {"at": [["a"]]})
    assert inputs(parts[1]) == ["x", "a"]
    check_joined(model, parts)
    assert inputs(split(build(SIZED, "z", {"w": matrix(0)}, "x y"), {"at": [["a"]]})[1]) == ["y", "a"]  # y has equal sizes


def test_fixed_sizes_are_constants_of_the_parts() -> None:
    model = build(SIZED, "z", {"w": matrix(0)}, "x y", [3, WIDTH])
    parts = split(model, {"at": [["b"]]})
    assert inputs(parts[1]) == ["b"]
    check_joined(model, parts)


# -- Connections -------------------------------------------------------------------------------------------------------


def quantized() -> onnx.ModelProto:
    """Return two MatMuls with a quantized value between them, which is dequantized twice."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("QuantizeLinear", ["a", "scale", "zero"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "scale", "zero"], ["d"]),
        helper.make_node("MatMul", ["d", "v"], ["b"]),
        helper.make_node("DequantizeLinear", ["q", "scale", "zero"], ["e"]),
        helper.make_node("Add", ["b", "e"], ["y"]),
    ]
    return build(nodes, "y", {"w": matrix(0), "v": matrix(1), "scale": np.float32(0.1), "zero": np.uint8(128)})


@pytest.mark.parametrize(
    ("options", "connections"), [({"parts": 2}, ["a"]), ({"at": [["q"]]}, ["d", "e"]), ({"at": [["d"]]}, ["d", "e"])]
)
def test_quantized_values_do_not_connect_parts(options: dict[str, Any], connections: list[str]) -> None:
    parts = split(quantized(), options)
    assert [outputs(part) for part in parts] == [connections, ["y"]]
    check_joined(quantized(), parts)


def test_sequences_and_captured_values_do_not_connect_parts() -> None:
    sequence = [
        helper.make_node("SequenceConstruct", ["x", "x"], ["s"]),
        helper.make_node("ConcatFromSequence", ["s"], ["y"], axis=0),
    ]
    assert "'s' cannot connect two parts: it is not a tensor" in refuse(build(sequence, "y", {}), {"at": [["s"]]})
    branch = helper.make_graph(
        [helper.make_node("Neg", ["a"], ["n"])], "b", [], [helper.make_tensor_value_info("n", TensorProto.FLOAT, None)]
    )
    captured = [
        helper.make_node("Relu", ["x"], ["a"]),
        helper.make_node("If", ["condition"], ["y"], then_branch=branch, else_branch=branch),
    ]
    model = build(captured, "y", {"condition": np.bool_(True)})
    assert "'a' cannot connect two parts: it is read by a subgraph" in refuse(model, {"at": [["a"]]})
    assert "the model can be split into at most 1 parts" in refuse(model, {"parts": 2})


def test_a_connection_of_unknown_type_is_refused() -> None:
    nodes = [helper.make_node("Strange", ["x"], ["a"], domain="own"), helper.make_node("Relu", ["a"], ["y"])]
    assert "the type of the value 'a', which connects two parts, is unknown" in refuse(build(nodes, "y", {}), {"at": [["a"]]})


def test_connections_have_the_names_of_the_models_sizes() -> None:
    parts = split(chain(), {"parts": 2})
    assert [sizes(part)["h1"] for part in parts] == [["n", WIDTH]] * 2
    assert read_metadata(parts[1]) == {"part": 1, "parts": 2, "inputs": {"x": ["n", WIDTH], "y": ["n", WIDTH]}}


def test_a_part_of_a_model_with_external_data_has_only_its_own_data(tmp_path: Path) -> None:
    model = build(multiply("x", "a", "b"), "b", {"wa": matrix(1, 16), "wb": matrix(2, 16)}, sizes=["n", 16])
    source, output = tmp_path / "whole.onnx", tmp_path / "part.onnx"
    onnx.save(model, source, save_as_external_data=True, location="all.bin", size_threshold=0)
    SCRIPT["split"]({"source": str(source), "output": str(output), "options": {"at": [["a"]], "part": 1}})
    assert (tmp_path / "part.onnx.data").read_bytes() == matrix(2, 16).tobytes()
    [weights] = onnx.load(output).graph.initializer
    assert np.array_equal(numpy_helper.to_array(weights), matrix(2, 16))

    onnx.save(chain(), source, save_as_external_data=True, location="small.bin", size_threshold=0)
    check_joined(chain(), split(source, {"layers": [1, 2]}, tmp_path))  # small tensors become a part of the model's file


def test_the_log_lists_the_connections(capfd: pytest.CaptureFixture[str]) -> None:
    split(chain(), {"parts": 2})
    printed = capfd.readouterr().err
    assert "part 1 of 2, counted from 0: 8 of 17 nodes, 128 bytes of weights\nreads from earlier parts: mask, h1\n" in printed
    assert "computes for later parts: mask, h1\n" in printed


# -- Any graph ---------------------------------------------------------------------------------------------------------


@st.composite
def graphs(draw: st.DrawFn) -> onnx.ModelProto:
    """Return a random graph with matrices, quantized values, computations of sizes and nodes that no output needs."""
    nodes: list[Any] = []
    values = ["x", "y"]
    for number in range(draw(st.integers(1, 12))):
        one, other = (draw(st.sampled_from(values)) for _ in range(2))
        name, quantize = f"v{number}", ("scale", "zero")
        match draw(st.sampled_from(["matrix", "add", "quantize", "reshape", "split", "constant"])):
            case "matrix":
                nodes.append(helper.make_node("MatMul", [one, draw(st.sampled_from(["w", "t"]))], [name]))
            case "add":
                nodes.append(helper.make_node("Add", [one, other], [name]))
            case "quantize":
                nodes.append(helper.make_node("QuantizeLinear", [one, *quantize], [f"q{number}"]))
                nodes.append(helper.make_node("DequantizeLinear", [f"q{number}", *quantize], [name]))
            case "reshape":
                nodes.append(helper.make_node("Shape", [other], [f"s{number}"]))
                nodes.append(helper.make_node("Reshape", [one, f"s{number}"], [name]))
            case "split":
                nodes.append(helper.make_node("Split", [one], [f"l{number}", f"r{number}"], axis=1, num_outputs=2))
                nodes.append(helper.make_node("Concat", [f"r{number}", f"l{number}"], [name], axis=1))
            case "constant":
                nodes.append(helper.make_node("Add", ["t", "w"], [f"c{number}"]))
                nodes.append(helper.make_node("MatMul", [one, f"c{number}"], [name]))
        values.append(name)
    ends = draw(st.lists(st.sampled_from(values[2:]), min_size=1, max_size=3, unique=True))
    nodes.insert(0, helper.make_node("Transpose", ["w"], ["t"]))
    return build(nodes, " ".join(ends), {"w": matrix(0), "scale": np.float32(0.5), "zero": np.uint8(128)}, "x y")


@pytest.mark.slow
@settings(deadline=None, max_examples=60)
@given(graphs(), st.data())
def test_the_parts_of_any_graph_compute_what_the_graph_computes(model: onnx.ModelProto, data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 4))
    names = [name for node in model.graph.node for name in node.output if name.startswith("v")]
    at = data.draw(st.lists(st.sampled_from(names), min_size=1, max_size=3, unique=True))
    for options in ({"parts": count}, {"at": [[name] for name in at]}):
        try:
            parts = split(model, options)
        except REFUSED:
            continue
        check_joined(model, parts)
        computed = [name for part in parts for node in part.graph.node if node.op_type != "Transpose" for name in node.output]
        own = [name for name in computed if name[0] not in "cs"]  # without constants
        assert len(own) == len(set(own))
        types = {value.type.tensor_type.elem_type for part in parts for value in (*part.graph.input, *part.graph.output)}
        assert types <= {TensorProto.FLOAT, TensorProto.INT64}
