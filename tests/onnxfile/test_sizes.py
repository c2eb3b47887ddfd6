"""Fixed sizes: their effect on a model. Nothing else in the model changes."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from epbuild.onnxfile.edit.fix_sizes import fix_sizes
from epbuild.onnxfile.read.headers import read_header
from epbuild.onnxfile.read.sizes import fit_sizes, suggest_sizes
from epbuild.onnxfile.read.wire import MalformedModel

Dim = int | str | None
FLOAT = TensorProto.FLOAT


def value(name: str, dims: list[Dim] | None) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, FLOAT, dims)


def model_of(
    inputs: dict[str, list[Dim] | None],
    outputs: dict[str, list[Dim]] | None = None,
    between: dict[str, list[Dim]] | None = None,
    *,
    nodes: list[onnx.NodeProto] | None = None,
    initializers: list[onnx.TensorProto] | None = None,
) -> onnx.ModelProto:
    """Return a model that passes its first input through two operators, or a model of these `nodes`."""
    first = next(iter(inputs))
    nodes = nodes or [helper.make_node("Relu", [first], ["m"]), helper.make_node("Neg", ["m"], ["y"])]
    graph = helper.make_graph(
        nodes,
        "g",
        [value(name, dims) for name, dims in inputs.items()],
        [value(name, dims) for name, dims in (outputs or {"y": [None] * len(inputs[first] or ())}).items()],
        initializers or [],
        value_info=[value(name, dims) for name, dims in (between or {}).items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def fixed(folder: Path, model: onnx.ModelProto, sizes: dict[str, list[int]]) -> onnx.ModelProto:
    source, copy = folder / "source.onnx", folder / "copy.onnx"
    source.write_bytes(model.SerializeToString())
    copy.unlink(missing_ok=True)
    found = fit_sizes(read_header(source), sizes)
    assert not found.misfits
    fix_sizes(source, copy, found.shapes)
    return onnx.load(copy)


def dims(values: Any, name: str) -> list[Dim]:
    (found,) = (item for item in values if item.name == name)
    return [dim.dim_value if dim.HasField("dim_value") else dim.dim_param or None for dim in found.type.tensor_type.shape.dim]


def misfits(model: onnx.ModelProto, tmp_path: Path, sizes: dict[str, list[int]]) -> list[tuple[str, str, int | None]]:
    source = tmp_path / "source.onnx"
    source.write_bytes(model.SerializeToString())
    return [(found.kind, found.reason, found.dimension) for found in fit_sizes(read_header(source), sizes).misfits]


@pytest.mark.parametrize("open_dim", ["batch", None, -1, 0, "", "?"])
def test_any_open_dimension_is_fixed(tmp_path: Path, open_dim: Dim) -> None:
    found = fixed(tmp_path, model_of({"x": [open_dim, 3, open_dim]}), {"x": [2, 3, 2]})
    assert dims(found.graph.input, "x") == [2, 3, 2]


def test_input_of_unknown_rank_gets_the_requested_sizes(tmp_path: Path) -> None:
    model = model_of({"x": [1]})
    model.graph.input[0].type.tensor_type.ClearField("shape")
    assert dims(fixed(tmp_path, model, {"x": [2, 3]}).graph.input, "x") == [2, 3]


def test_symbol_gets_its_size_everywhere(tmp_path: Path) -> None:
    inner = helper.make_graph(
        [helper.make_node("Identity", ["m"], ["in_branch"])], "branch", [], [value("in_branch", ["seq", 8])],
        value_info=[value("also_there", [1, "seq"])],
    )  # fmt: skip
    nodes = [
        helper.make_node("Relu", ["x"], ["m"]),
        helper.make_node("If", ["c"], ["y"], then_branch=inner, else_branch=inner),
    ]
    model = model_of(
        {"x": ["seq", 8], "other": [1, "seq"], "free": ["past", "seq"]},
        {"y": ["seq", 8]},
        {"m": ["seq", 8]},
        nodes=nodes,
        initializers=[numpy_helper.from_array(np.array(True), "c")],
    )
    found = fixed(tmp_path, model, {"x": [64, 8]})
    assert [dims(found.graph.input, name) for name in ("x", "other", "free")] == [[64, 8], [1, 64], ["past", 64]]
    assert dims(found.graph.output, "y") == [64, 8]
    assert dims(found.graph.value_info, "m") == [64, 8]
    branch = found.graph.node[1].attribute[0].g
    assert (dims(branch.output, "in_branch"), dims(branch.value_info, "also_there")) == ([64, 8], [1, 64])


def test_sizes_that_may_depend_on_another_input_size_are_removed(tmp_path: Path) -> None:
    model = model_of({"x": [None, 8]}, {"y": [1, 8]}, {"m": [1, 8]})
    found = fixed(tmp_path, model, {"x": [4, 8]})
    assert (dims(found.graph.output, "y"), dims(found.graph.value_info, "m")) == ([None, None], [None, None])
    inferred = onnx.shape_inference.infer_shapes(found, strict_mode=True)
    assert dims(inferred.graph.output, "y") == [4, 8]


def test_sizes_noted_by_an_exporter_for_open_inputs_are_kept(tmp_path: Path) -> None:
    model = model_of({"x": ["n", 8]}, {"y": ["n", 8]}, {"m": ["q", 8]})
    found = fixed(tmp_path, model, {"x": [4, 8]})
    assert (dims(found.graph.output, "y"), dims(found.graph.value_info, "m")) == ([4, 8], ["q", 8])


def test_sizes_after_unknown_operators_are_kept(tmp_path: Path) -> None:
    nodes = [helper.make_node("Own", ["x"], ["m"], domain="my.ops"), helper.make_node("Neg", ["m"], ["y"])]
    model = model_of({"x": [None, 8]}, {"y": [1, 8]}, {"m": [1, 8]}, nodes=nodes)
    found = fixed(tmp_path, model, {"x": [1, 8]})
    assert dims(found.graph.value_info, "m") == [1, 8]


def test_denotation_is_kept(tmp_path: Path) -> None:
    model = model_of({"x": ["n", 8]})
    model.graph.input[0].type.tensor_type.shape.dim[0].denotation = "DATA_BATCH"
    found = fixed(tmp_path, model, {"x": [4, 8]}).graph.input[0].type.tensor_type.shape.dim[0]
    assert (found.dim_value, found.denotation) == (4, "DATA_BATCH")


def test_symbols_in_sequences_are_fixed(tmp_path: Path) -> None:
    model = model_of({"x": ["n", 8]})
    inner = helper.make_tensor_type_proto(FLOAT, ["n", 8])
    model.graph.value_info.append(helper.make_value_info("s", helper.make_sequence_type_proto(inner)))
    found = fixed(tmp_path, model, {"x": [4, 8]})
    assert found.graph.value_info[0].type.sequence_type.elem_type.tensor_type.shape.dim[0].dim_value == 4


def test_initializer_that_is_also_an_input_keeps_its_size(tmp_path: Path) -> None:
    tensor = numpy_helper.from_array(np.zeros((2, 8), np.float32), "w")
    model = model_of({"x": ["n", 8], "w": ["n", 8]}, initializers=[tensor])
    assert dims(fixed(tmp_path, model, {"w": [2, 8]}).graph.input, "x") == [2, 8]
    assert misfits(model, tmp_path, {"w": [4, 8]}) == [("contradiction", "its size is 2 in the model, not 4", 0)]


def test_misfit_is_reported_with_its_reason(tmp_path: Path) -> None:
    model = model_of({"x": ["n", 3, "n"], "y0": ["n"]})
    assert misfits(model, tmp_path, {"z": [1]}) == [("unknown", "the model has no such input", None)]
    assert misfits(model, tmp_path, {"x": [1, 3]}) == [("rank", "it has 3 dimensions, [n, 3, n], but 2 sizes are given", None)]
    assert misfits(model, tmp_path, {"x": [1, 4, 1]}) == [("contradiction", "its size is 3 in the model, not 4", 1)]
    assert misfits(model, tmp_path, {"x": [1, 3, 2]}) == [("contradiction", "'n' is both 1 and 2", 2)]
    assert misfits(model, tmp_path, {"x": [1, 3, 1], "y0": [2]}) == [("contradiction", "'n' is 2 here and 1 in 'x'", 0)]


def test_fixed_sizes_change_nothing(tmp_path: Path) -> None:
    source = tmp_path / "m.onnx"
    source.write_bytes(model_of({"x": [4, 8]}).SerializeToString())
    assert fit_sizes(read_header(source), {"x": [4, 8]}).shapes == {}


def test_equivalent_sizes_give_equal_results(tmp_path: Path) -> None:
    source = tmp_path / "m.onnx"
    source.write_bytes(model_of({"x": ["n", 8], "z": ["n"]}).SerializeToString())
    header = read_header(source)
    assert (
        fit_sizes(header, {"x": [4, 8]}).shapes == fit_sizes(header, {"z": [4], "x": [4, 8]}).shapes == {"x": (4, 8), "z": (4,)}
    )


def test_placeholder_dimensions_can_have_different_sizes(tmp_path: Path) -> None:
    found = fixed(tmp_path, model_of({"x": [-1, 3, "?", "?"]}), {"x": [1, 3, 48, 192]})
    assert dims(found.graph.input, "x") == [1, 3, 48, 192]


def test_model_that_allows_no_sizes_gets_no_copy(tmp_path: Path) -> None:
    source, copy = tmp_path / "source.onnx", tmp_path / "copy.onnx"
    source.write_bytes(model_of({"x": ["n"]}).SerializeToString())
    with pytest.raises(MalformedModel, match="declarations of its inputs cannot be changed"):
        fix_sizes(source, copy, {"nothing": (1,)})
    assert not copy.exists()


def test_memory_does_not_grow_with_the_weights(tmp_path: Path) -> None:
    weights = numpy_helper.from_array(np.zeros(16 << 20, np.uint8), "w")
    source, copy = tmp_path / "source.onnx", tmp_path / "copy.onnx"
    source.write_bytes(model_of({"x": ["n", 8]}, initializers=[weights]).SerializeToString())
    tracemalloc.start()
    try:
        fix_sizes(source, copy, {"x": (4, 8)})
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert copy.stat().st_size > 16 << 20
    assert most < 4 << 20


@pytest.mark.parametrize(
    ("shape", "suggested"),
    [
        (["batch", 3, None, None], (1, 3, 224, 224)),
        ([-1, "?", "?", 3], (1, 224, 224, 3)),
        (["batch_size", "sequence_length"], (1, 64)),
        (["batch_size", 8, "past_sequence_length", 64], (1, 8, 64, 64)),
        ([None, 80, None], (1, 80, 64)),
        ([None], (1,)),
    ],
)
def test_suggested_sizes_fit_the_kind_of_model(tmp_path: Path, shape: list[Dim], suggested: tuple[int, ...]) -> None:
    source = tmp_path / "m.onnx"
    source.write_bytes(model_of({"x": shape}).SerializeToString())
    assert suggest_sizes(read_header(source).inputs) == {"x": suggested}


def test_minimal_set_of_inputs_is_suggested(tmp_path: Path) -> None:
    source = tmp_path / "m.onnx"
    source.write_bytes(model_of({"ids": ["batch", "seq"], "mask": ["batch", "seq"], "fixed": [1]}).SerializeToString())
    header = read_header(source)
    found = suggest_sizes(header.inputs)
    assert found == {"ids": (1, 64)}
    assert fit_sizes(header, found).shapes == {"ids": (1, 64), "mask": (1, 64)}


NAMES = st.sampled_from(["a", "b", "batch", "seq", "größe", "?"])
DIMS = st.one_of(st.none(), NAMES, st.integers(-1, 300))
SHAPES = st.lists(DIMS, min_size=0, max_size=4)


@st.composite
def models(draw: st.DrawFn) -> tuple[onnx.ModelProto, dict[str, list[int]]]:
    """Draw a model with any dimensions, and sizes that fit some of its inputs."""
    shapes = draw(st.lists(SHAPES, min_size=1, max_size=4))
    inputs = {f"x{index}": shape for index, shape in enumerate(shapes)}
    rank = len(shapes[0])
    same_rank = st.lists(DIMS, min_size=rank, max_size=rank)
    weights = numpy_helper.from_array(np.frombuffer(draw(st.binary(max_size=400)), np.uint8), "w")
    model = model_of(inputs, {"y": draw(same_rank)}, {"m": draw(same_rank)}, initializers=[weights])  # type: ignore[arg-type]
    sizes = draw(st.dictionaries(NAMES, st.integers(1, 70_000), min_size=6))
    free = st.integers(1, 70_000)
    wanted = {
        name: [
            sizes.get(d, 1) if isinstance(d, str) and d != "?" else d if isinstance(d, int) and d > 0 else draw(free)
            for d in shape
        ]
        for name, shape in inputs.items()
        if draw(st.booleans())
    }
    return model, wanted


@given(models())
def test_any_model_with_fixed_sizes_is_valid_and_keeps_its_weights(
    tmp_path_factory: pytest.TempPathFactory, case: tuple[onnx.ModelProto, dict[str, list[int]]]
) -> None:
    model, wanted = case
    found = fixed(tmp_path_factory.mktemp("sizes"), model, wanted)
    onnx.checker.check_model(found)
    symbols = {
        dim.dim_param: size
        for name, sizes in wanted.items()
        for dim, size in zip(_input(model, name).type.tensor_type.shape.dim, sizes, strict=True)
        if dim.dim_param not in ("", "?")
    }
    for name, sizes in wanted.items():
        assert dims(found.graph.input, name) == sizes
    for values in (found.graph.input, found.graph.output, found.graph.value_info):
        assert not {dim.dim_param for item in values for dim in item.type.tensor_type.shape.dim} & symbols.keys()
    assert found.graph.initializer == model.graph.initializer
    assert found.graph.node == model.graph.node
    for proto in (found, model):
        for field in ("input", "output", "value_info"):
            proto.graph.ClearField(field)
    assert found == model


def _input(model: onnx.ModelProto, name: str) -> onnx.ValueInfoProto:
    (found,) = (item for item in model.graph.input if item.name == name)
    return found
