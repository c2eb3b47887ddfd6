"""Weights that models have in common: by content, wherever a model stores them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy
import pytest
from onnx import TensorProto, helper, numpy_helper

from epbuild.onnxfile.read.weights import _SAMPLE, Weight, WeightBytes, count_weights, estimate_common_bytes, read_weights
from epbuild.onnxfile.read.wire import MalformedModel
from tests.onnxfile.models import if_node, model, subgraph

SIZE = 40_000


def content(seed: int) -> numpy.ndarray[Any, Any]:
    return numpy.random.default_rng(seed).standard_normal(SIZE // 4, numpy.float32)


def tensor(seed: int, name: str = "w") -> TensorProto:
    return numpy_helper.from_array(content(seed), name)


def constant(value: TensorProto) -> Any:
    return helper.make_node("Constant", [], ["c"], value=value)


def typed(seed: int) -> TensorProto:
    return helper.make_tensor("t", TensorProto.FLOAT, [SIZE // 4], content(seed))


def written(path: Path, proto: Any) -> tuple[Weight, ...]:
    path.write_bytes(proto.SerializeToString())
    return read_weights(path, {})


def initialized(path: Path, *seeds: int, prefix: str = "w") -> tuple[Weight, ...]:
    initializers = [tensor(seed, f"{prefix}{number}") for number, seed in enumerate(seeds)]
    return written(path, model([helper.make_node("Relu", ["x"], ["y"])], initializer=initializers))


def external(path: Path, *seeds: int, length: bool = True) -> tuple[Weight, ...]:
    """Write a model whose weights are in `shared.bin`, each at its seed's position, and return the weights."""
    data = path.parent / "shared.bin"
    data.write_bytes(b"".join(content(seed).tobytes() for seed in range(8)))
    tensors = []
    for seed in seeds:
        made = TensorProto(name=f"e{seed}", data_type=TensorProto.FLOAT, dims=[SIZE // 4], data_location=TensorProto.EXTERNAL)
        entries = {"location": "shared.bin", "offset": str(seed * SIZE)} | ({"length": str(SIZE)} if length else {})
        for key, value in entries.items():
            made.external_data.add(key=key, value=value)
        tensors.append(made)
    path.write_bytes(model([helper.make_node("Relu", ["x"], ["y"])], initializer=tensors).SerializeToString())
    return read_weights(path, {"shared.bin": data})


def test_models_with_different_weights_of_equal_names_share_nothing(tmp_path: Path) -> None:
    one, other = initialized(tmp_path / "a.onnx", 1, 2), initialized(tmp_path / "b.onnx", 3, 4)
    assert count_weights([one, other]) == WeightBytes(4 * SIZE, 4 * SIZE)
    assert estimate_common_bytes({"a": one, "b": other}) == {"a": (0, 2 * SIZE), "b": (0, 2 * SIZE)}


def test_equal_weights_are_shared_under_any_name(tmp_path: Path) -> None:
    one, other = initialized(tmp_path / "a.onnx", 1, 2, 3), initialized(tmp_path / "b.onnx", 4, 1, prefix="v")
    assert count_weights([one, other]) == WeightBytes(5 * SIZE, 4 * SIZE)
    assert estimate_common_bytes({"a": one, "b": other}) == {"a": (SIZE, 3 * SIZE), "b": (SIZE, 2 * SIZE)}


@pytest.mark.parametrize(
    "nodes",
    [
        lambda: [constant(tensor(1))],
        lambda: [constant(typed(1))],
        lambda: [if_node(subgraph([], initializer=[tensor(1)]), subgraph([constant(tensor(1))]))],
    ],
    ids=["constant", "typed constant", "subgraphs"],
)
def test_weights_in_nodes_equal_initializers_and_external_data(tmp_path: Path, nodes: Any) -> None:
    inside = written(tmp_path / "a.onnx", model(nodes()))
    for other in (
        initialized(tmp_path / "b.onnx", 1),
        external(tmp_path / "c.onnx", 1),
        external(tmp_path / "d.onnx", 1, length=False),
    ):
        assert count_weights([inside, other]) == WeightBytes(2 * SIZE, SIZE)
        assert estimate_common_bytes({"a": inside, "b": other})["b"] == (SIZE, SIZE)


def test_content_repeated_within_one_model_is_not_shared(tmp_path: Path) -> None:
    one, other = initialized(tmp_path / "a.onnx", 1, 1), initialized(tmp_path / "b.onnx", 2)
    assert count_weights([one, other]) == WeightBytes(2 * SIZE, 2 * SIZE)
    assert estimate_common_bytes({"a": one, "b": other})["a"] == (0, 2 * SIZE)


def test_contents_with_equal_beginnings_are_compared_completely(tmp_path: Path) -> None:
    models = []
    for number in (0, 1):
        values = content(1)
        values[-1] = number
        assert _SAMPLE < SIZE
        made = model([constant(numpy_helper.from_array(values))])
        models.append(written(tmp_path / f"{number}.onnx", made))
    assert count_weights(models) == WeightBytes(2 * SIZE, 2 * SIZE)
    assert estimate_common_bytes(dict(zip("ab", models, strict=True))) == {"a": (SIZE, SIZE), "b": (SIZE, SIZE)}


def test_integers_in_typed_fields_may_equal_any_content(tmp_path: Path) -> None:
    numbers = helper.make_tensor("t", TensorProto.INT64, [100], list(range(100)))
    one = written(tmp_path / "a.onnx", model([constant(numbers)]))
    most, total = estimate_common_bytes({"a": one, "b": initialized(tmp_path / "b.onnx", 1)})["a"]
    assert most == total > 0


def test_weights_at_the_same_file_position_are_not_read(tmp_path: Path) -> None:
    one, other = external(tmp_path / "a.onnx", 1, 2), external(tmp_path / "b.onnx", 1, 2)
    assert one == other
    lone = external(tmp_path / "c.onnx", 1)
    (tmp_path / "shared.bin").unlink()
    assert count_weights([lone, lone]) == WeightBytes(2 * SIZE, SIZE)


def test_truncated_data_is_refused(tmp_path: Path) -> None:
    external(tmp_path / "a.onnx", 7)
    data = tmp_path / "shared.bin"
    data.write_bytes(data.read_bytes()[:-1])
    with pytest.raises(MalformedModel, match="needs bytes"):
        read_weights(tmp_path / "a.onnx", {"shared.bin": data})
