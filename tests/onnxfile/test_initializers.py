"""Weights of several models in one file: equal numbers, each content once, and no other changes."""

from __future__ import annotations

import tempfile
import tracemalloc
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from epbuild.onnxfile.edit.initializers import share_initializers
from epbuild.onnxfile.read.headers import read_header
from epbuild.onnxfile.read.weights import WeightBytes
from epbuild.onnxfile.read.wire import MalformedModel
from tests.onnxfile.models import external_tensor, if_node, model, subgraph

FILE = "group.weights.bin"
PAGE, GRANULARITY, LARGE = 4096, 65536, 1024 * 1024


class Weight(NamedTuple):
    """Initializer: the number of its random content, its size in bytes, and how it is stored."""

    content: int
    size: int
    stored: str


weights = st.builds(Weight, st.integers(0, 2), st.sampled_from([4, 32, 64, 5000]), st.sampled_from(["raw", "typed", "external"]))


def content_of(weight: Weight) -> bytes:
    return numpy.random.default_rng(weight.content).bytes(weight.size)


def write_model(path: Path, members: Sequence[Weight]) -> None:
    """Write a model of these initializers. External ones are in a file of their own, after other data."""
    path.parent.mkdir(parents=True, exist_ok=True)
    data = bytearray(b"before")
    tensors = []
    for number, weight in enumerate(members):
        content = content_of(weight)
        tensor = TensorProto(name=f"w{number}", data_type=TensorProto.UINT8, dims=[weight.size])
        if weight.stored == "raw":
            tensor.raw_data = content
        elif weight.stored == "typed":
            tensor.int32_data.extend(content)
        else:
            tensor.data_location = TensorProto.EXTERNAL
            places = {"location": f"{path.stem}.data", "offset": len(data), "length": weight.size, "checksum": "of the old file"}
            for key, value in places.items():
                tensor.external_data.add(key=key, value=str(value))
            data += content
        tensors.append(tensor)
    path.write_bytes(model([helper.make_node("Identity", ["w0"], ["y"])], initializer=tensors).SerializeToString())
    path.with_suffix(".data").write_bytes(data)


def loaded(path: Path) -> Any:
    """Load the model with its external data, as the onnx package reads it."""
    proto = onnx.load(path)
    for tensor in proto.graph.initializer:
        tensor.ClearField("data_location")
    return proto


def places(path: Path) -> dict[str, tuple[int, int | None]]:
    """Return the position of each external initializer in the weights file."""
    return {
        weight.name: (weight.external.offset, weight.external.length)
        for weight in read_header(path).initializers
        if weight.external is not None and weight.external.location == FILE
    }


def outputs(path: Path, feeds: Mapping[str, numpy.ndarray]) -> list[bytes]:
    return [output.tobytes() for output in ReferenceEvaluator(str(path)).run(None, dict(feeds))]


@given(st.lists(st.lists(weights, min_size=1, max_size=5), min_size=1, max_size=3), st.sampled_from([0, 5, 64, 65, 6000]))
def test_every_tensor_keeps_its_bytes_and_equal_contents_are_stored_once(members: list[list[Weight]], threshold: int) -> None:
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        models = {}
        for number, listed in enumerate(members):
            source = folder / "sources" / f"m{number}.onnx"
            write_model(source, listed)
            models[folder / "made" / f"m{number}.onnx"] = source
        found = share_initializers(models, FILE, threshold)

        file = folder / "made" / FILE
        stored = file.read_bytes() if file.exists() else b""
        offsets: dict[bytes, int] = {}
        total = 0
        for (copy, source), listed in zip(models.items(), members, strict=True):
            assert loaded(copy) == loaded(source)
            assert set(read_header(copy).external_data) <= {FILE}
            moved = places(copy)
            for number, weight in enumerate(listed):
                wanted = weight.stored == "external" or (weight.stored == "raw" and weight.size >= threshold)
                assert (f"w{number}" in moved) == wanted
                if wanted:
                    offset, length = moved[f"w{number}"]
                    content = content_of(weight)
                    total += weight.size
                    assert (length, stored[offset : offset + weight.size], offset % PAGE) == (weight.size, content, 0)
                    assert offsets.setdefault(content, offset) == offset
        assert len(set(offsets.values())) == len(offsets)
        assert found == WeightBytes(total, len(stored))
        assert len(stored) <= sum(-(-len(content) // PAGE) * PAGE for content in offsets)

        again = {folder / "again" / copy.name: source for copy, source in models.items()}
        assert share_initializers(again, FILE, threshold) == found
        assert {path.name: path.read_bytes() for path in (folder / "again").iterdir()} == {
            path.name: path.read_bytes() for path in (folder / "made").iterdir()
        }


def test_models_with_shared_weights_compute_identical_results(tmp_path: Path) -> None:
    random = numpy.random.default_rng(5)
    shared = random.standard_normal((32, 32)).astype(numpy.float32)
    models = {}
    for name, kind in {"prefill": numpy.float32, "decode": numpy.float16}.items():
        arrays = {"w": shared, "own": random.standard_normal(32).astype(kind), "few": numpy.array([2.0], numpy.float32)}
        nodes = [
            helper.make_node("MatMul", ["x", "w"], ["h"]),
            helper.make_node("Cast", ["own"], ["o"], to=TensorProto.FLOAT),
            helper.make_node("Add", ["h", "o"], ["s"]),
            helper.make_node("Mul", ["s", "few"], ["y"]),
        ]
        values = {end: helper.make_tensor_value_info(end, TensorProto.FLOAT, [1, 32]) for end in "xy"}
        tensors = [numpy_helper.from_array(array, key) for key, array in arrays.items()]
        proto = model(nodes, inputs=[values["x"]], outputs=[values["y"]], initializer=tensors)
        source = tmp_path / f"{name}.onnx"
        source.write_bytes(proto.SerializeToString())
        models[tmp_path / "made" / source.name] = source
    assert share_initializers(models, FILE, 64) == WeightBytes(2 * 4096 + 128 + 64, 2 * 4096 + 64)
    feeds = {"x": random.standard_normal((1, 32)).astype(numpy.float32)}
    for copy, source in models.items():
        assert outputs(copy, feeds) == outputs(source, feeds)
        assert "few" not in places(copy)


def test_subgraph_initializers_and_external_attribute_tensors_are_moved(tmp_path: Path) -> None:
    def constant(tensor: Any) -> Any:
        return helper.make_node("Constant", [], ["c"], value=tensor)

    big = numpy_helper.from_array(numpy.arange(600, dtype=numpy.int64), "big")
    outside = external_tensor("outside", "old.bin", offset=4, length=16)
    then = subgraph([constant(big), helper.make_node("Identity", ["big"], ["y"])], initializer=[big])
    source = tmp_path / "m.onnx"
    source.write_bytes(model([if_node(then, subgraph([constant(outside)]))]).SerializeToString())
    (tmp_path / "old.bin").write_bytes(b"skip" + bytes(range(16)))
    copy = tmp_path / "made" / "m.onnx"
    assert share_initializers({copy: source}, FILE).total_bytes == 4800 + 16
    assert list(read_header(copy).external_data) == [FILE]
    branches = {attribute.name: attribute.g for attribute in onnx.load(copy, load_external_data=False).graph.node[0].attribute}
    [held] = branches["then_branch"].node[0].attribute
    assert held.t == big
    assert branches["then_branch"].initializer[0].data_location == TensorProto.EXTERNAL
    [moved] = branches["else_branch"].node[0].attribute
    onnx.external_data_helper.load_external_data_for_tensor(moved.t, str(copy.parent))
    assert moved.t.raw_data == bytes(range(16))


def test_sparse_initializers_and_functions_refer_to_the_shared_file(tmp_path: Path) -> None:
    sparse = onnx.SparseTensorProto(values=external_tensor("sparse", "old.bin"), dims=[9])
    sparse.indices.CopyFrom(helper.make_tensor("", TensorProto.INT64, [4], [0, 1, 2, 3]))
    proto = model([], sparse_initializer=[sparse])
    constant = helper.make_node("Constant", [], ["c"], value=external_tensor("inner", "old.bin"))
    proto.functions.append(helper.make_function("own", "f", [], ["c"], [constant], [helper.make_opsetid("", 21)]))
    (tmp_path / "m.onnx").write_bytes(proto.SerializeToString())
    (tmp_path / "old.bin").write_bytes(bytes(range(16)))
    copy = tmp_path / "made" / "m.onnx"
    assert share_initializers({copy: tmp_path / "m.onnx"}, FILE) == WeightBytes(32, 16)
    assert read_header(copy).external_data == {FILE: 16}


def test_missing_length_is_derived_from_type_and_shape(tmp_path: Path) -> None:
    source, copy = tmp_path / "m.onnx", tmp_path / "made" / "m.onnx"
    tensors = [external_tensor("a", "old.bin"), external_tensor("b", "old.bin", offset=8)]
    source.write_bytes(model([], initializer=tensors).SerializeToString())
    (tmp_path / "old.bin").write_bytes(bytes(range(100)))
    share_initializers({copy: source}, FILE)
    assert places(copy) == {"a": (0, 16), "b": (PAGE, 16)}
    assert (copy.parent / FILE).read_bytes()[PAGE:] == bytes(range(8, 24))


def test_large_contents_are_aligned_for_windows(tmp_path: Path) -> None:
    source, copy = tmp_path / "m.onnx", tmp_path / "made" / "m.onnx"
    sizes = {"small": LARGE - 1, "large": LARGE}
    tensors = [numpy_helper.from_array(numpy.full(size, 1, numpy.uint8), name) for name, size in sizes.items()]
    source.write_bytes(model([], initializer=tensors).SerializeToString())
    share_initializers({copy: source}, FILE)
    assert places(copy)["large"] == (-(-(LARGE - 1) // GRANULARITY) * GRANULARITY, LARGE)


def test_every_folder_gets_the_file_and_copies_are_hard_links(tmp_path: Path) -> None:
    models = {}
    for name in ("a", "b"):
        write_model(tmp_path / f"{name}.onnx", [Weight(1, 5000, "raw")])
        models[tmp_path / "in" / name / f"{name}.onnx"] = tmp_path / f"{name}.onnx"
    assert share_initializers(models, FILE) == WeightBytes(10_000, 5000)
    first, second = (copy.parent / FILE for copy in models)
    assert first.samefile(second)


@pytest.mark.parametrize("order", ["sub a b", "a sub b", "a b sub", "sub other a"])
def test_model_with_weights_in_a_subgraph_gets_its_own_file(tmp_path: Path, order: str) -> None:
    models = {}
    for number, name in enumerate(order.split()):
        source = tmp_path / f"{name}.onnx"
        weight = numpy_helper.from_array(numpy.full(5000, number, numpy.uint8), "w")
        if name in ("sub", "other"):
            proto = model([if_node(subgraph([], initializer=[weight]), subgraph([]))])
        else:
            proto = model([], initializer=[weight])
        source.write_bytes(proto.SerializeToString())
        models[tmp_path / "in" / name / f"{name}.onnx"] = source
    share_initializers(models, FILE)
    files = {copy.parent.name: copy.parent / FILE for copy in models}
    assert len({file.read_bytes() for file in files.values()}) == 1
    assert files["sub"].stat().st_nlink == 1
    if "b" in files:
        assert files["a"].samefile(files["b"])
    else:
        assert {file.stat().st_nlink for file in files.values()} == {1}


def test_small_weights_need_no_file(tmp_path: Path) -> None:
    write_model(tmp_path / "a.onnx", [Weight(1, 64, "raw")])
    copy = tmp_path / "made" / "a.onnx"
    assert share_initializers({copy: tmp_path / "a.onnx"}, FILE) == WeightBytes(0, 0)
    assert [path.name for path in copy.parent.iterdir()] == ["a.onnx"]
    assert copy.read_bytes() == (tmp_path / "a.onnx").read_bytes()


@pytest.mark.parametrize(
    ("spoilt", "words"),
    [("m.onnx", "truncated"), ("m.data", r"m\.onnx: the tensor 'w0' needs bytes 6 to 5,006 of m\.data, which has 2,503 bytes")],
)
def test_incomplete_source_is_named_and_no_file_is_left(tmp_path: Path, spoilt: str, words: str) -> None:
    write_model(tmp_path / "good.onnx", [Weight(1, 5000, "raw")])
    write_model(tmp_path / "m.onnx", [Weight(2, 5000, "external")])
    content = (tmp_path / spoilt).read_bytes()
    (tmp_path / spoilt).write_bytes(content[: len(content) // 2])
    made = tmp_path / "made"
    with pytest.raises(MalformedModel, match=words):
        share_initializers({made / "good.onnx": tmp_path / "good.onnx", made / "m.onnx": tmp_path / "m.onnx"}, FILE)
    assert list(made.iterdir()) == []


def test_missing_data_leaves_no_file(tmp_path: Path) -> None:
    write_model(tmp_path / "m.onnx", [Weight(2, 5000, "external")])
    (tmp_path / "m.data").unlink()
    with pytest.raises(FileNotFoundError):
        share_initializers({tmp_path / "made" / "m.onnx": tmp_path / "m.onnx"}, FILE)
    assert list((tmp_path / "made").iterdir()) == []


@pytest.mark.parametrize("taken", [FILE, "a.onnx"])
def test_existing_file_is_not_overwritten(tmp_path: Path, taken: str) -> None:
    write_model(tmp_path / "a.onnx", [Weight(1, 5000, "raw")])
    made = tmp_path / "made"
    made.mkdir()
    (made / taken).write_bytes(b"mine")
    with pytest.raises(FileExistsError):
        share_initializers({made / "a.onnx": tmp_path / "a.onnx"}, FILE)
    assert {path.name: path.read_bytes() for path in made.iterdir()} == {taken: b"mine"}


@pytest.mark.slow
def test_memory_does_not_grow_with_the_weights(tmp_path: Path) -> None:
    size = 48 * 1024 * 1024
    tensor = TensorProto(name="w", data_type=TensorProto.UINT8, dims=[size], raw_data=bytes(size))
    (tmp_path / "a.onnx").write_bytes(model([], initializer=[tensor]).SerializeToString())
    del tensor
    tracemalloc.start()
    try:
        found = share_initializers({tmp_path / "made" / "a.onnx": tmp_path / "a.onnx"}, FILE)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert found.stored_bytes == size
    assert peak < 8 * 1024 * 1024
