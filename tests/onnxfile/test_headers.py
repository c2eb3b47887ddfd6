from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
import time
import tracemalloc
from pathlib import Path
from typing import Any

import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper

from epbuild.onnxfile.read.headers import parse_header, read_header
from epbuild.onnxfile.read.model_header import ExternalData, Initializer, ModelHeader, ValueInfo
from epbuild.onnxfile.read.wire import MalformedModel, encode_varint
from tests.onnxfile.models import (
    CONTEXT_OP,
    context_node,
    external_tensor,
    if_node,
    model,
    operator_counts,
    subgraph,
    two_level_model,
)

ROOT = Path(__file__).parents[2]
LIGHT_MODELS = sorted(Path(onnx.__file__).parent.glob("backend/test/data/light/*.onnx"))


def header(proto: Any) -> ModelHeader:
    return parse_header(io.BytesIO(proto.SerializeToString()))


def as_onnx_sees_it(values: Any) -> tuple[ValueInfo, ...]:
    return tuple(
        ValueInfo(
            value.name,
            value.type.tensor_type.elem_type,
            tuple(
                dim.dim_value if dim.HasField("dim_value") else dim.dim_param or None for dim in value.type.tensor_type.shape.dim
            ),
        )
        for value in values
    )


@pytest.mark.parametrize("path", LIGHT_MODELS, ids=lambda path: path.stem)
def test_real_models_are_read_like_the_onnx_package(path: Path) -> None:
    proto = onnx.load(path)
    read = read_header(path)
    weights = {tensor.name for tensor in proto.graph.initializer}
    assert read.ir_version == proto.ir_version
    assert read.producer_name == proto.producer_name
    assert read.opsets == {opset.domain: opset.version for opset in proto.opset_import}
    assert read.graph_name == proto.graph.name
    assert read.inputs == as_onnx_sees_it(value for value in proto.graph.input if value.name not in weights)
    assert read.outputs == as_onnx_sees_it(proto.graph.output)
    assert [(tensor.name, tensor.elem_type, tensor.dims) for tensor in read.initializers] == [
        (tensor.name, tensor.data_type, tuple(tensor.dims)) for tensor in proto.graph.initializer
    ]
    assert read.operators == operator_counts(proto)
    assert not read.is_compiled
    assert read.remaining_nodes == len(proto.graph.node)


def test_real_models_for_tests_exist() -> None:
    assert len(LIGHT_MODELS) >= 9


def test_symbolic_unknown_and_absent_shapes_differ() -> None:
    sequence = helper.make_tensor_sequence_value_info("sequence", TensorProto.FLOAT, [1])
    unranked = helper.make_tensor_value_info("unranked", TensorProto.INT64, None)
    scalar = helper.make_tensor_value_info("scalar", TensorProto.BOOL, [])
    mixed = helper.make_tensor_value_info("mixed", TensorProto.INT4, ["batch", 3, None])
    paddle = helper.make_tensor_value_info("paddle", TensorProto.FLOAT, [-1, 0, -(2**63)])
    assert header(model([], inputs=[sequence, unranked, scalar, mixed, paddle])).inputs == (
        ValueInfo("sequence", 0, None),
        ValueInfo("unranked", TensorProto.INT64, None),
        ValueInfo("scalar", TensorProto.BOOL, ()),
        ValueInfo("mixed", TensorProto.INT4, ("batch", 3, None)),
        ValueInfo("paddle", TensorProto.FLOAT, (None, 0, None)),
    )


def test_weights_listed_as_inputs_are_not_required_inputs() -> None:
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4]) for name in ("x", "w", "sparse")]
    sparse = helper.make_sparse_tensor(
        helper.make_tensor("sparse", TensorProto.FLOAT, [1], [1.0]),
        helper.make_tensor("indices", TensorProto.INT64, [1], [2]),
        [4],
    )
    weight = helper.make_tensor("w", TensorProto.FLOAT, [4], [0.0] * 4)
    read = header(model([], inputs=values, initializer=[weight], sparse_initializer=[sparse]))
    assert [value.name for value in read.inputs] == ["x"]
    assert [tensor.name for tensor in read.initializers] == ["w"]
    assert read.overridable == ("w", "sparse")


def test_initializers_are_inline_or_external() -> None:
    raw = helper.make_tensor("raw", TensorProto.FLOAT, [2, 3], bytes(24), raw=True)
    typed = helper.make_tensor("typed", TensorProto.FLOAT, [3], [1.0, 2.0, 3.0])
    whole = external_tensor("whole", "w.data")
    part = external_tensor("part", "sub/w.data", offset=4096, length=16)
    read = header(model([], initializer=[raw, typed, whole, part]))
    assert read.initializers == (
        Initializer("raw", TensorProto.FLOAT, (2, 3), 24, None),
        Initializer("typed", TensorProto.FLOAT, (3,), 12, None),
        Initializer("whole", TensorProto.FLOAT, (4,), 0, ExternalData("w.data")),
        Initializer("part", TensorProto.FLOAT, (4,), 0, ExternalData("sub/w.data", 4096, 16)),
    )


def test_external_files_of_all_tensors_are_found() -> None:
    def constant(location: str, attribute: str = "value") -> Any:
        tensor = external_tensor("", location)
        value: Any = tensor
        if attribute == "sparse_value":
            value = onnx.SparseTensorProto(values=tensor, dims=[4])
        return helper.make_node("Constant", [], ["c"], **{attribute: value})

    then = subgraph([constant("then-constant")], initializer=[external_tensor("t", "then-initializer")])
    otherwise = subgraph([if_node(subgraph([constant("nested")]), subgraph([]))])
    tensors = helper.make_node("Custom", [], ["c"], domain="custom", many=[external_tensor("", "list")])
    sparse = onnx.SparseTensorProto(values=external_tensor("s", "sparse-initializer"), dims=[4])
    proto = model(
        [constant("constant"), constant("sparse-constant", "sparse_value"), tensors, if_node(then, otherwise)],
        initializer=[external_tensor("a", "initializer"), external_tensor("b", "constant")],
        sparse_initializer=[sparse],
    )
    function = helper.make_function("custom", "F", [], ["c"], [constant("function")], [helper.make_opsetid("", 21)])
    proto.functions.append(function)
    # The order is that of the file. ONNX puts a node's attributes and a graph's nodes before the initializers.
    read = header(proto)
    assert set(read.external_locations) == {
        "constant",
        "sparse-constant",
        "list",
        "then-constant",
        "then-initializer",
        "nested",
        "initializer",
        "sparse-initializer",
        "function",
    }
    assert len(read.external_locations) == 9
    assert read.external_locations[0] == "constant"
    assert read.subgraph_data == {"then-constant", "then-initializer", "nested"}
    assert read.operators == operator_counts(proto)


def test_subgraph_data_includes_functions_and_files_shared_with_the_graph() -> None:
    branch = subgraph([], initializer=[external_tensor("t", "both"), external_tensor("u", "function-branch")])
    proto = model([], initializer=[external_tensor("a", "both"), external_tensor("b", "main")])
    nodes = [if_node(branch, subgraph([]))]
    proto.functions.append(helper.make_function("custom", "F", ["condition"], ["y"], nodes, [helper.make_opsetid("", 21)]))
    read = header(proto)
    assert set(read.external_locations) == {"both", "main", "function-branch"}
    assert read.subgraph_data == {"both", "function-branch"}


@pytest.mark.parametrize("entry", ["offset", "length"])
@pytest.mark.parametrize("text", ["-1", "1_0", " 1", "0x10", "", "9" * 5000, "٣"])
def test_external_extent_that_is_not_a_byte_count_is_refused(entry: str, text: str) -> None:
    tensor = external_tensor("w", "w.data")
    tensor.external_data.add(key=entry, value=text)
    with pytest.raises(MalformedModel, match=f"the {entry} of the external tensor 'w' is not a byte count"):
        header(model([], initializer=[tensor]))


def test_external_tensor_without_a_file_is_refused() -> None:
    with pytest.raises(MalformedModel, match="the external tensor 'w' names no file"):
        header(model([], initializer=[external_tensor("w", "")]))


def test_metadata_and_opsets_are_read() -> None:
    proto = model([])
    helper.set_model_props(proto, {"ep_compatibility_info.QNN": "v2:6", "empty": ""})
    proto.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    read = header(proto)
    assert read.metadata == {"ep_compatibility_info.QNN": "v2:6", "empty": ""}
    assert read.opsets == {"": 21, "com.microsoft": 1}
    assert read.producer_name == "epbuild-tests"


def test_nodes_in_every_subgraph_are_counted() -> None:
    read = header(two_level_model())
    assert read.operators == {CONTEXT_OP: 2, ("", "If"): 1, ("", "Relu"): 1, ("", "Identity"): 1}
    assert read.is_compiled
    assert read.remaining_nodes == 3
    assert [node.name for node in read.ep_context_nodes] == ["outer", "inner"]


def test_epcontext_operator_of_another_domain_is_not_a_compiled_context() -> None:
    read = header(model([helper.make_node("EPContext", [], ["y"], domain="someone.else")]))
    assert not read.is_compiled
    assert read.remaining_nodes == 1


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "the file is empty"),
        (b"\x08\x0a", "no graph was found: this is not an ONNX model"),
        (b"PK\x03\x04 a zip archive", "at byte"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n", "git lfs pull"),
    ],
)
def test_file_that_is_not_a_model_is_refused_with_the_reason(tmp_path: Path, data: bytes, message: str) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(data)
    with pytest.raises(MalformedModel, match=message):
        read_header(path)


def test_truncated_model_is_malformed_at_every_length() -> None:
    tensor = external_tensor("w", "w.data", offset=64)
    proto = two_level_model()
    proto.graph.initializer.append(tensor)
    proto.graph.node.append(context_node("embedded", embed_mode=1, ep_cache_context=b"\x00\xff" * 40))
    data = proto.SerializeToString()
    graph_end = data.index(proto.graph.SerializeToString()) + proto.graph.ByteSize()
    for cut in range(len(data)):
        try:
            parse_header(io.BytesIO(data[:cut]))
        except MalformedModel:
            continue
        assert cut >= graph_end


@given(st.binary(max_size=400))
def test_random_bytes_raise_only_expected_errors(data: bytes) -> None:
    with contextlib.suppress(MalformedModel):
        parse_header(io.BytesIO(data))


@given(st.data())
def test_damaged_model_raises_only_expected_errors(data: st.DataObject) -> None:
    damaged = bytearray(two_level_model().SerializeToString())
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(MalformedModel):
        parse_header(io.BytesIO(damaged))


def test_damaged_input_is_reported_with_its_offset() -> None:
    value = b"\x0a\x01x" + b"\x12\x02\x0a\x7f"  # its type is longer than the input
    for before in (b"", b"\x12\x04name", b"\x12\x07another"):
        graph = before + b"\x5a" + encode_varint(len(value)) + value
        with pytest.raises(MalformedModel) as error:
            parse_header(io.BytesIO(b"\x3a" + encode_varint(len(graph)) + graph))
        assert error.value.offset == 2 + len(before) + 2 + len(b"\x0a\x01x\x12\x02")


def test_endlessly_nested_subgraphs_are_refused_without_a_stack_overflow() -> None:
    graph = b""
    for _ in range(2_000):
        attribute = b"\x32" + encode_varint(len(graph)) + graph
        node = b"\x2a" + encode_varint(len(attribute)) + attribute
        graph = b"\x0a" + encode_varint(len(node)) + node
    with pytest.raises(MalformedModel, match="nested deeper"):
        parse_header(io.BytesIO(b"\x3a" + encode_varint(len(graph)) + graph))


class CountingFile(io.FileIO):
    """File that counts the bytes read from it."""

    count = 0

    def read(self, size: int | None = -1, /) -> bytes:
        data = super().read(-1 if size is None else size) or b""
        self.count += len(data)
        return data


def write_model_with_holes(path: Path, weights: int, context: int) -> None:
    """Write a model with an inline weight and an embedded context of these sizes, both as holes in a sparse file."""

    def part(tag: bytes, prefix: bytes, hole: int, suffix: bytes = b"") -> tuple[bytes, int, bytes]:
        return tag + encode_varint(len(prefix) + hole + len(suffix)) + prefix, hole, suffix

    node = context_node("n", embed_mode=1).SerializeToString()
    string, _, _ = part(b"\x22", b"", context)
    name = b"\x0a\x10ep_cache_context"
    attribute, _, _ = part(b"\x2a", name + string, context)
    context_head, _, context_tail = part(b"\x0a", attribute, context, node)
    raw, _, _ = part(b"\x4a", b"", weights)
    tensor_head, _, tensor_tail = part(b"\x2a", b"\x08\x04\x10\x01" + raw, weights, b"\x42\x01w")
    size = len(context_head + context_tail + tensor_head + tensor_tail) + weights + context
    with path.open("wb") as file:
        file.write(b"\x3a" + encode_varint(size) + context_head)
        file.seek(context, io.SEEK_CUR)
        file.write(context_tail + tensor_head)
        file.seek(weights, io.SEEK_CUR)
        file.write(tensor_tail + b"\x42\x02\x10\x15")


def test_large_weights_and_embedded_contexts_are_never_read(tmp_path: Path) -> None:
    path = tmp_path / "large.onnx"
    write_model_with_holes(path, weights=1_500_000_000, context=400_000_000)
    assert path.stat().st_size > 1_900_000_000
    tracemalloc.start()
    try:
        with CountingFile(path) as file:
            read = parse_header(file)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert read.initializers[0].inline_bytes == 1_500_000_000
    payload = read.ep_context_nodes[0].payload
    assert payload is not None
    assert payload[1] == 400_000_000
    assert file.count < 200_000
    assert peak < 10_000_000


@pytest.mark.slow
def test_graph_of_a_hundred_thousand_nodes_is_read_within_seconds() -> None:
    node = helper.make_node("Conv", ["block/x", "block/w"], ["block/y"], name="block/conv", group=1, pads=[1, 1, 1, 1])
    encoded = node.SerializeToString()
    graph = (b"\x0a" + encode_varint(len(encoded)) + encoded) * 100_000
    file = io.BytesIO(b"\x3a" + encode_varint(len(graph)) + graph)
    start = time.process_time()
    assert parse_header(file).operators == {("", "Conv"): 100_000}
    assert time.process_time() - start < 4


def test_external_data_is_listed_with_the_required_bytes() -> None:
    tensors = [
        external_tensor("a", "w.bin", offset=64, length=16),
        external_tensor("b", "w.bin", length=70),
        external_tensor("c", "v.bin"),
    ]
    assert header(model([], initializer=tensors)).external_data == {"w.bin": 80, "v.bin": 0}


READ = """
import pathlib, sys
from epbuild.onnxfile.read.headers import read_header
from epbuild.onnxfile.read.wire import MalformedModel
try:
    read_header(pathlib.Path(sys.argv[1]))
except MalformedModel as error:
    print(error)
print(pathlib.Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0])
"""
"""Script that runs in its own process, because tracing memory in this one takes five times as long."""


@pytest.mark.gate
@pytest.mark.skipif(sys.platform != "linux", reason="the peak of a process's memory is measured as Linux tells it")
@pytest.mark.parametrize(
    "field", [b"\x2a\x00", *(pytest.param(other, marks=pytest.mark.exhaustive) for other in (b"\x5a\x00", b"\x62\x00"))]
)
def test_file_of_tiny_fields_does_not_exhaust_memory(field: bytes, tmp_path: Path) -> None:
    graph = field * 3_000_000
    file = tmp_path / "tiny.onnx"
    file.write_bytes(b"\x3a" + encode_varint(len(graph)) + graph)
    command, environment = [sys.executable, "-c", READ, str(file)], {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, encoding="utf-8", check=True)
    told, peak = done.stdout.splitlines()
    assert "more than 500,000" in told
    assert int(peak) * 1024 < 200_000_000


def test_oversized_texts_are_refused_before_they_exhaust_memory() -> None:
    value = b"\x12" + encode_varint(15 << 20) + bytes(15 << 20)
    pair = b"\x72" + encode_varint(len(value)) + value
    file = io.BytesIO(pair * 5 + b"\x3a\x00")
    with pytest.raises(MalformedModel, match="too long for a header"):
        parse_header(file)
