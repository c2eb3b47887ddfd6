"""Export of a decoder with the architecture of Qwen2 and random weights, as a stand-in for the export of a checkpoint.

    python export.py decoder.onnx --size tiny
    python export.py decoder.onnx --size tiny --samples samples

The second command also writes samples of inputs, with which a quantizer can calibrate.

Layers have RMSNorm, rotary embeddings, grouped queries and SwiGLU. The gains of RMSNorm are part of the projections that follow, as in
exports that fold them. The cache of keys and values has a fixed number of slots. A run writes its tokens into the slots that
`position_ids` names, and reads all slots up to its own position.

The weights depend on this file only, not on the machine or on the version of numpy. They are written one tensor at a time.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

if TYPE_CHECKING:
    from collections.abc import Iterator

OPSET = 21  # has quantization to 16 bits
IR_VERSION = 10
ALIGNMENT = 4096  # bytes; a reader may map a tensor in place
CHUNK = 1 << 22  # values
EPSILON = 1e-6
SAMPLES, TOKENS = 3, 16
CACHED_DEVIATION = 1.5  # covers the range of keys and values
HIDDEN_SCORE = -100.0  # far below every score that counts, and close enough to keep the steps of quantized scores


class Size(NamedTuple):
    """Sizes of a decoder."""

    layers: int
    hidden: int
    heads: int
    cached_heads: int
    mlp: int
    words: int
    slots: int

    @property
    def head(self) -> int:
        """Width of one head."""
        return self.hidden // self.heads


SIZES = {
    "tiny": Size(layers=4, hidden=96, heads=4, cached_heads=2, mlp=256, words=256, slots=128),
    "0.5B": Size(layers=24, hidden=896, heads=14, cached_heads=2, mlp=4864, words=151_936, slots=256),
}


def draw(words: np.random.PCG64, count: int, deviation: float) -> npt.NDArray[np.float32]:
    """Return random values with a standard deviation. numpy guarantees a stable stream of words, but no stable distributions."""
    unit = (words.random_raw(count) >> np.uint64(40)).astype(np.float64) / 2**23 - 1.0
    return (unit * (deviation * math.sqrt(3.0))).astype("<f4")


class WeightsFile:
    """Writer of weights to the external data of a model."""

    def __init__(self, file: BinaryIO, name: str) -> None:
        self._file, self._name = file, name
        self._words = np.random.PCG64(1)
        self.tensors: list[onnx.TensorProto] = []

    def add(self, name: str, shape: tuple[int, ...], deviation: float) -> str:
        """Write random values with a standard deviation, and return the name of the tensor."""
        self._file.write(bytes(-self._file.tell() % ALIGNMENT))
        offset, count = self._file.tell(), math.prod(shape)
        for begin in range(0, count, CHUNK):
            self._file.write(draw(self._words, min(CHUNK, count - begin), deviation).tobytes())
        tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=shape, data_location=TensorProto.EXTERNAL)
        for key, value in (("location", self._name), ("offset", offset), ("length", 4 * count)):
            tensor.external_data.add(key=key, value=str(value))
        self.tensors.append(tensor)
        return name


class Decoder:
    """Graph of the decoder. The output of each node has the name that the caller gives it."""

    def __init__(self, size: Size, weights: WeightsFile) -> None:
        self._size, self._weights = size, weights
        self._nodes: list[onnx.NodeProto] = []
        self._constants: list[onnx.TensorProto] = []
        self._inputs: list[onnx.ValueInfoProto] = []
        self._values: list[onnx.ValueInfoProto] = []
        self._cached: list[str] = []

    def model(self) -> onnx.ModelProto:
        """Return the model. Its weights are in the weights file."""
        size = self._size
        tokens = self._input("input_ids", TensorProto.INT64, [1, "sequence"])
        positions = self._input("position_ids", TensorProto.INT64, [1, "sequence"])
        self._add_tables(positions)
        words = self._weights.add("model.embed_tokens.weight", (size.words, size.hidden), 1.0)
        state = self._declare(self._node("Gather", [words, tokens], "embedded", axis=0), [1, "sequence", size.hidden])
        for layer in range(size.layers):
            state = self._attend(state, layer)
            state = self._declare(self._mix(state, layer), [1, "sequence", size.hidden])
        state = self._declare(self._normalize(state, "hidden"), [1, "sequence", size.hidden])
        head = self._weights.add("lm_head.weight", (size.hidden, size.words), 1 / math.sqrt(size.hidden))
        self._node("MatMul", [state, head], "logits")
        return self._make_model()

    def _make_model(self) -> onnx.ModelProto:
        size = self._size
        cache: list[int | str] = [1, size.cached_heads, size.slots, size.head]
        outputs = [helper.make_tensor_value_info("logits", TensorProto.FLOAT, [1, "sequence", size.words])]
        outputs += [helper.make_tensor_value_info(name, TensorProto.FLOAT, cache) for name in self._cached]
        tensors = [*self._weights.tensors, *self._constants]
        graph = helper.make_graph(self._nodes, "decoder", self._inputs, outputs, tensors, value_info=self._values)
        opsets = [helper.make_opsetid("", OPSET)]
        return helper.make_model(graph, producer_name="export.py", opset_imports=opsets, ir_version=IR_VERSION)

    def _input(self, name: str, kind: int, shape: list[int | str]) -> str:
        self._inputs.append(helper.make_tensor_value_info(name, kind, shape))
        return name

    def _constant(self, name: str, values: object, kind: str = "<i8") -> str:
        if all(tensor.name != name for tensor in self._constants):
            self._constants.append(numpy_helper.from_array(np.array(values, dtype=kind), name))
        return name

    def _node(self, operator: str, inputs: list[str], output: str, **attributes: object) -> str:
        self._nodes.append(helper.make_node(operator, inputs, [output], name=output, **attributes))
        return output

    def _declare(self, value: str, shape: list[int | str]) -> str:
        """Declare the shape of a value at which the model may be split, as exporters do."""
        self._values.append(helper.make_tensor_value_info(value, TensorProto.FLOAT, shape))
        return value

    def _add_tables(self, positions: str) -> None:
        """Compute what all layers need from the positions: the rotation, the mask and the written slots."""
        size, half = self._size, self._size.head // 2
        angles = [[slot * 1_000_000.0 ** (-pair / half) for pair in range(half)] for slot in range(size.slots)]
        for name, function in (("cosine", math.cos), ("sine", math.sin)):
            table = self._constant(f"{name}_table", [[function(angle) for angle in row] for row in angles], "<f4")
            rows = self._node("Gather", [table, positions], f"{name}_rows", axis=0)
            self._declare(self._node("Unsqueeze", [rows, self._constant("axis_1", [1])], name), [1, 1, "sequence", half])
        column = self._node("Unsqueeze", [positions, self._constant("axes_1_3", [1, 3])], "positions_column")
        slots = self._constant("slots", np.arange(size.slots).reshape(1, 1, 1, -1))
        visible = self._node("LessOrEqual", [slots, column], "visible")
        zero, hidden = self._constant("zero", 0, "<f4"), self._constant("hidden_score", HIDDEN_SCORE, "<f4")
        self._declare(self._node("Where", [visible, zero, hidden], "mask"), [1, 1, "sequence", size.slots])
        row = self._node("Unsqueeze", [self._find_written(positions), self._constant("axes_1_2", [1, 2])], "positions_row")
        slots = self._constant("slots_column", np.arange(size.slots).reshape(1, 1, -1, 1))
        # A product with a matrix of zeros and ones writes the cache. It is exact, and uses only simple operators.
        is_written = self._node("Equal", [slots, row], "is_written")
        written = self._declare(self._node("Cast", [is_written], "written", to=TensorProto.FLOAT), [1, 1, size.slots, "sequence"])
        touched = self._node("ReduceMax", [written, self._constant("axis_3", [3])], "touched", keepdims=1)
        self._declare(self._node("Sub", [self._constant("one", 1, "<f4"), touched], "kept"), [1, 1, size.slots, 1])

    def _find_written(self, positions: str) -> str:
        """Return the slot that each token writes.

        A runtime pads a prompt with tokens of position 0 in front of it. They are not part of the text, so they write no slot.
        """
        count = self._node("Shape", [positions], "token_count", start=1)
        one = self._constant("one_token", 1)
        last = self._node("Sub", [count, one], "last_token")
        end = self._node("Gather", [positions, last], "last_position", axis=1)
        begin = self._node("Squeeze", [self._node("Sub", [one, count], "first_offset")], "first_offset_scalar")
        offsets = self._node("Range", [begin, one, one], "token_offsets")
        counts_up = self._node("Equal", [self._node("Sub", [positions, end], "distances"), offsets], "is_text")
        return self._node("Where", [counts_up, positions, self._constant("no_slot", -1)], "written_slots")

    def _normalize(self, value: str, output: str) -> str:
        """Add RMSNorm."""
        square = self._node("Mul", [value, value], f"{output}.square")
        mean = self._node("ReduceMean", [square, self._constant("last_axis", [-1])], f"{output}.mean", keepdims=1)
        shifted = self._node("Add", [mean, self._constant("epsilon", EPSILON, "<f4")], f"{output}.shifted")
        root = self._node("Sqrt", [shifted], f"{output}.root")
        return self._node("Div", [value, root], output)

    def _project(self, value: str, name: str, width: tuple[int, int], *, bias: bool = False) -> str:
        weight = self._weights.add(f"{name}.weight", width, 1 / math.sqrt(width[0]))
        product = self._node("MatMul", [value, weight], f"{name}.product")
        return self._node("Add", [product, self._weights.add(f"{name}.bias", width[1:], 0.1)], f"{name}.sum") if bias else product

    def _split_heads(self, value: str, heads: int) -> str:
        """Change the shape from [1, sequence, heads * head] to [1, heads, sequence, head]."""
        shape = self._constant(f"shape_{heads}", [1, -1, heads, self._size.head])
        return self._node(
            "Transpose", [self._node("Reshape", [value, shape], f"{value}.split")], f"{value}.heads", perm=[0, 2, 1, 3]
        )

    def _rotate(self, value: str) -> str:
        left, right = f"{value}.left", f"{value}.right"
        self._nodes.append(helper.make_node("Split", [value], [left, right], name=f"{value}.halves", axis=3, num_outputs=2))
        products = {
            (half, table): self._node("Mul", [half, table], f"{half}.{table}")
            for half in (left, right)
            for table in ("cosine", "sine")
        }
        first = self._node("Sub", [products[left, "cosine"], products[right, "sine"]], f"{value}.first")
        second = self._node("Add", [products[right, "cosine"], products[left, "sine"]], f"{value}.second")
        return self._node("Concat", [first, second], f"{value}.rotated", axis=3)

    def _remember(self, fresh: str, kind: str, layer: int) -> str:
        """Write the keys or values of a run into the cache, and return the cache for all heads."""
        size, name = self._size, f"{layer}.{kind}"
        cache: list[int | str] = [1, size.cached_heads, size.slots, size.head]
        past = self._input(f"past_key_values.{name}", TensorProto.FLOAT, cache)
        kept = self._node("Mul", [past, "kept"], f"kept.{name}")
        placed = self._node("MatMul", ["written", fresh], f"placed.{name}")
        present = self._node("Add", [kept, placed], f"present.{name}")
        self._cached.append(present)
        # Several queries use the same key.
        repeats = size.heads // size.cached_heads
        return self._node("Concat", list(self._repeat(present, repeats)), f"repeated.{name}", axis=1)

    def _repeat(self, present: str, repeats: int) -> Iterator[str]:
        heads = [f"{present}.head_{head}" for head in range(self._size.cached_heads)]
        self._nodes.append(helper.make_node("Split", [present], heads, name=f"{present}.split", axis=1, num_outputs=len(heads)))
        for head in heads:
            yield from [head] * repeats

    def _attend(self, state: str, layer: int) -> str:
        size, prefix = self._size, f"model.layers.{layer}.self_attn"
        value = self._normalize(state, f"model.layers.{layer}.input_norm")
        heads, cached = size.heads * size.head, size.cached_heads * size.head
        query = self._project(value, f"{prefix}.q_proj", (size.hidden, heads), bias=True)
        key = self._project(value, f"{prefix}.k_proj", (size.hidden, cached), bias=True)
        fresh = self._project(value, f"{prefix}.v_proj", (size.hidden, cached), bias=True)
        rotated = self._rotate(self._split_heads(query, size.heads))
        keys = self._remember(self._rotate(self._split_heads(key, size.cached_heads)), "key", layer)
        values = self._remember(self._split_heads(fresh, size.cached_heads), "value", layer)
        columns = self._node("Transpose", [keys], f"{prefix}.columns", perm=[0, 1, 3, 2])
        scale = self._constant("scale", 1 / math.sqrt(size.head), "<f4")
        scaled = self._node("Mul", [self._node("MatMul", [rotated, columns], f"{prefix}.raw"), scale], f"{prefix}.scaled")
        scores = self._node("Add", [scaled, "mask"], f"{prefix}.scores")
        shares = self._node("Softmax", [scores], f"{prefix}.shares", axis=-1)
        mixed = self._node("MatMul", [shares, values], f"{prefix}.mixed")
        by_token = self._node("Transpose", [mixed], f"{prefix}.by_token", perm=[0, 2, 1, 3])
        joined = self._node("Reshape", [by_token, self._constant("joined_shape", [1, -1, heads])], f"{prefix}.joined")
        output = self._project(joined, f"{prefix}.o_proj", (heads, size.hidden))
        return self._node("Add", [state, output], f"{prefix}.output")

    def _mix(self, state: str, layer: int) -> str:
        size, prefix = self._size, f"model.layers.{layer}.mlp"
        value = self._normalize(state, f"model.layers.{layer}.post_norm")
        gate = self._project(value, f"{prefix}.gate_proj", (size.hidden, size.mlp))
        swish = self._node("Mul", [gate, self._node("Sigmoid", [gate], f"{prefix}.sigmoid")], f"{prefix}.swish")
        up = self._project(value, f"{prefix}.up_proj", (size.hidden, size.mlp))
        gated = self._node("Mul", [swish, up], f"{prefix}.gated")
        return self._node(
            "Add", [state, self._project(gated, f"{prefix}.down_proj", (size.mlp, size.hidden))], f"{prefix}.output"
        )


def write_samples(size: Size, folder: Path) -> None:
    """Write samples of inputs: random tokens and full caches.

    No token reads the previous content of the cache. The quantizer still sees the range of the caches.
    """
    words = np.random.PCG64(2)
    folder.mkdir(parents=True, exist_ok=True)
    shape = (1, size.cached_heads, size.slots, size.head)
    for number in range(SAMPLES):
        ids = (words.random_raw(TOKENS) >> np.uint64(33)) % np.uint64(size.words)
        arrays: dict[str, Any] = {"input_ids": ids.astype("<i8").reshape(1, -1), "position_ids": np.arange(TOKENS).reshape(1, -1)}
        for layer in range(size.layers):
            for kind in ("key", "value"):
                arrays[f"past_key_values.{layer}.{kind}"] = draw(words, math.prod(shape), CACHED_DEVIATION).reshape(shape)
        np.savez(folder / f"{number}.npz", **arrays)


def main() -> None:
    """Write the model and its external data to the path on the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("output", type=Path)
    parser.add_argument("--size", choices=SIZES, default="tiny")
    parser.add_argument("--samples", type=Path, metavar="FOLDER", help="folder for samples of inputs")
    arguments = parser.parse_args()
    data = arguments.output.with_name(f"{arguments.output.name}.data")
    with data.open("wb") as file:
        model = Decoder(SIZES[arguments.size], WeightsFile(file, data.name)).model()
    onnx.save(model, arguments.output)
    if arguments.samples is not None:
        write_samples(SIZES[arguments.size], arguments.samples)


if __name__ == "__main__":
    main()
