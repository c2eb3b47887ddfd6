"""Generator of the sample models that the checked-in recipes compile.

The models are a decoder, a small classifier, and samples for ICLabel, a model from a package. The decoder comes as two graphs
of fixed sizes and as one open graph, with samples to calibrate its quantization.

The bytes depend on this file only, not on the machine or on the version of numpy.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import TYPE_CHECKING

import eeg_samples
import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

if TYPE_CHECKING:
    from collections.abc import Iterable

OPSET = 17
IR_VERSION = 8

# A llama-shaped decoder. It is small, but its weights outweigh the data that an NPU compiler adds per graph. Otherwise
# a shared context binary would not show the savings.
LAYERS = 2
HIDDEN = 96
HEADS = 4
HEAD_DIM = HIDDEN // HEADS
MLP = 256
VOCABULARY = 256
CONTEXT = 128  # slots of the static KV cache: the longest text that the decoder can hold
PREFILL_SEQUENCE = 64
DECODE_SEQUENCE = 1

WEIGHTS_FILE = "weights.bin"
WEIGHT_ALIGNMENT = 64  # bytes; a reader may map a tensor in place

CALIBRATION_SAMPLES = 3
CALIBRATION_TOKENS = 16  # the open graph takes any number
CALIBRATION_SLOTS = 24  # more than tokens, because the kept part of a cache has a range as well
CACHED_VALUES = 2.5  # standard deviation of the caches in samples: it covers the range of keys and values

CLASSES = 10

Size = int | str
Array = npt.NDArray[np.generic]


class Randomness:
    """Reproducible weights: raw generator words scaled by exact float steps.

    numpy guarantees a stable raw stream of a bit generator, but no stable distributions.
    """

    def __init__(self, seed: int) -> None:
        self._words = np.random.PCG64(seed)

    def uniform(self, shape: tuple[int, ...], deviation: float, mean: float = 0.0) -> Array:
        """Return float32 values, uniform around `mean` with this standard deviation."""
        words = self._words.random_raw(math.prod(shape)) >> np.uint64(40)
        unit = words.astype(np.float64) / 2**23 - 1.0
        values: Array = (mean + unit * (deviation * math.sqrt(3.0))).astype("<f4")
        return values.reshape(shape)

    def below(self, limit: int, shape: tuple[int, ...]) -> Array:
        """Return integers from 0 to `limit` - 1, as int64."""
        words = self._words.random_raw(math.prod(shape)) >> np.uint64(33)
        numbers: Array = (words % np.uint64(limit)).astype("<i8")
        return numbers.reshape(shape)


class GraphBuilder:
    """Collector of nodes and tensors. The output of each node has the name that the caller gives it."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._nodes: list[onnx.NodeProto] = []
        self._initializers: list[onnx.TensorProto] = []
        self._inputs: list[onnx.ValueInfoProto] = []
        self._outputs: list[onnx.ValueInfoProto] = []

    def input(self, name: str, kind: int, shape: list[Size]) -> str:
        """Declare a graph input of a TensorProto data type, and return its name."""
        self._inputs.append(helper.make_tensor_value_info(name, kind, shape))
        return name

    def output(self, name: str, kind: int, shape: list[Size]) -> None:
        """Declare the output of a node as a graph output."""
        self._outputs.append(helper.make_tensor_value_info(name, kind, shape))

    def constant(self, name: str, value: Array) -> str:
        """Add an initializer inside the graph file, and return its name."""
        self._initializers.append(numpy_helper.from_array(value, name))
        return name

    def external(self, tensors: Iterable[onnx.TensorProto]) -> None:
        """Add initializers whose data is in another file."""
        self._initializers.extend(tensors)

    def node(self, op: str, inputs: list[str], output: str, **attributes: object) -> str:
        """Add a node with one output, and return the output's name."""
        self._nodes.append(helper.make_node(op, inputs, [output], name=output, **attributes))
        return output

    def halves(self, value: str, axis: int) -> tuple[str, str]:
        """Split `value` into two equal parts along `axis`."""
        left, right = f"{value}_left", f"{value}_right"
        self._nodes.append(helper.make_node("Split", [value], [left, right], name=f"{value}_halves", axis=axis))
        return left, right

    def model(self) -> onnx.ModelProto:
        """Return all collected nodes and tensors as one model."""
        graph = helper.make_graph(self._nodes, self._name, self._inputs, self._outputs, self._initializers)
        return helper.make_model(
            graph,
            producer_name="epbuild-samples",
            opset_imports=[helper.make_opsetid("", OPSET)],
            ir_version=IR_VERSION,
        )


class WeightsFile:
    """File with the decoder's weights, and the external tensors that refer to it."""

    def __init__(self, weights: dict[str, Array]) -> None:
        self._content = bytearray()
        self._tensors: list[onnx.TensorProto] = []
        for name, value in weights.items():
            self._content.extend(bytes(-len(self._content) % WEIGHT_ALIGNMENT))
            offset, data = len(self._content), value.tobytes()
            self._content.extend(data)
            tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=value.shape)
            tensor.data_location = TensorProto.EXTERNAL
            for key, text in (("location", WEIGHTS_FILE), ("offset", str(offset)), ("length", str(len(data)))):
                tensor.external_data.add(key=key, value=text)
            self._tensors.append(tensor)

    @property
    def content(self) -> bytes:
        """Content of the file."""
        return bytes(self._content)

    @property
    def tensors(self) -> list[onnx.TensorProto]:
        """Weights as external tensors, in the order of the file."""
        return self._tensors


def decoder_weights() -> dict[str, Array]:
    """Return all weights of the decoder by name, in the order of the weights file."""
    random = Randomness(seed=1)

    def matrix(rows: int, columns: int) -> Array:
        return random.uniform((rows, columns), deviation=1 / math.sqrt(rows))

    def gain() -> Array:
        return random.uniform((HIDDEN,), deviation=0.1, mean=1.0)

    weights = {"embedding": random.uniform((VOCABULARY, HIDDEN), deviation=1.0)}
    for layer in range(LAYERS):
        prefix = f"layer_{layer}"
        weights[f"{prefix}.attention_norm"] = gain()
        for name in ("query", "key", "value", "attention_output"):
            weights[f"{prefix}.{name}"] = matrix(HIDDEN, HIDDEN)
        weights[f"{prefix}.mlp_norm"] = gain()
        weights[f"{prefix}.gate"] = matrix(HIDDEN, MLP)
        weights[f"{prefix}.up"] = matrix(HIDDEN, MLP)
        weights[f"{prefix}.down"] = matrix(MLP, HIDDEN)
    weights["final_norm"] = gain()
    weights["lm_head"] = matrix(HIDDEN, VOCABULARY)
    return weights


def rotary_tables() -> tuple[Array, Array]:
    """Return cosine and sine of the rotary embedding, one row per cache slot.

    The base is 2**half, so the frequencies are exact powers of two and only the two functions round.
    """
    half = HEAD_DIM // 2
    angles = [[slot * 2.0**-pair for pair in range(half)] for slot in range(CONTEXT)]
    cosine = np.array([[math.cos(angle) for angle in row] for row in angles], dtype="<f4")
    sine = np.array([[math.sin(angle) for angle in row] for row in angles], dtype="<f4")
    return cosine, sine


class Decoder(GraphBuilder):
    """Graph of the decoder for a fixed number of tokens per run.

    The cache has a slot per position. A run writes the keys and values of its tokens into the slots in `position_ids`. It
    attends to all slots up to its own position. A present tensor is therefore the next run's past without a change.
    """

    _ids = TensorProto.INT32
    # Within the range of float16, in which NPUs compute.
    _hidden_score = -1e4

    def __init__(self, name: str, sequence: Size, weights: WeightsFile, cache: Size = CONTEXT) -> None:
        super().__init__(name)
        self._sequence = sequence
        self.external(weights.tensors)
        self._cache_shape: list[Size] = [1, HEADS, cache, HEAD_DIM]
        self._build()

    def _build(self) -> None:
        tokens = self.input("input_ids", self._ids, [1, self._sequence])
        positions = self.input("position_ids", self._ids, [1, self._sequence])
        self._constants()
        self._position_tensors(positions)
        state = self.node("Gather", ["embedding", tokens], "embedded", axis=0)
        for layer in range(LAYERS):
            state = self._attention(state, layer)
            state = self._mlp(state, layer)
        self.node("MatMul", [self._norm(state, "final_norm"), "lm_head"], "logits")
        self.output("logits", TensorProto.FLOAT, [1, self._sequence, VOCABULARY])
        for layer in range(LAYERS):
            for kind in ("key", "value"):
                self.output(f"present_{kind}_{layer}", TensorProto.FLOAT, self._cache_shape)

    def _constants(self) -> None:
        # None of these depends on the sequence length: prefill and decode have the same ones.
        cosine, sine = rotary_tables()
        self.constant("cosine_table", cosine)
        self.constant("sine_table", sine)
        self._slots()
        self.constant("heads_shape", np.array([1, -1, HEADS, HEAD_DIM], dtype="<i8"))
        self.constant("hidden_shape", np.array([1, -1, HIDDEN], dtype="<i8"))
        self.constant("axis_1", np.array([1], dtype="<i8"))
        self.constant("axes_1_2", np.array([1, 2], dtype="<i8"))
        self.constant("axes_1_3", np.array([1, 3], dtype="<i8"))
        self.constant("one", np.array(1, dtype="<f4"))
        self.constant("attention_scale", np.array(1 / math.sqrt(HEAD_DIM), dtype="<f4"))
        self.constant("hidden_score", np.array(self._hidden_score, dtype="<f4"))
        self.constant("zero", np.array(0, dtype="<f4"))

    def _slots(self) -> None:
        """Compute the number of each cache slot, as a row and as a column."""
        self.constant("slots", np.arange(CONTEXT, dtype="<i4").reshape(1, 1, 1, CONTEXT))
        self.constant("slots_column", np.arange(CONTEXT, dtype="<i4").reshape(1, 1, CONTEXT, 1))

    def _position_tensors(self, positions: str) -> None:
        for name in ("cosine", "sine"):
            rows = self.node("Gather", [f"{name}_table", positions], f"{name}_rows", axis=0)
            self.node("Unsqueeze", [rows, "axis_1"], name)
        column = self.node("Unsqueeze", [positions, "axes_1_3"], "positions_column")
        row = self.node("Unsqueeze", [self._written_slots(positions), "axes_1_2"], "positions_row")
        visible = self.node("LessOrEqual", ["slots", column], "visible")
        self.node("Where", [visible, "zero", "hidden_score"], "causal_bias")
        # A product with a 0/1 matrix writes the cache. It is exact in any precision, and uses only the simplest operators.
        written = self.node("Cast", [self.node("Equal", ["slots_column", row], "is_written")], "written", to=TensorProto.FLOAT)
        touched = self.node("ReduceMax", [written], "touched", axes=[3], keepdims=1)
        self.node("Sub", ["one", touched], "kept")

    def _written_slots(self, positions: str) -> str:
        """Return the slot that each token writes."""
        return positions

    def _norm(self, value: str, weight: str) -> str:
        # Use one operator, not its parts. QNN 2.7.0 leaves uninitialized memory in the padding of a constant that multiplies
        # a single row. With a gain of its own, the decode graph's binary would differ from run to run.
        return self.node("LayerNormalization", [value, weight], f"{weight}_out", axis=-1, epsilon=1e-5)

    def _heads(self, value: str, weight: str) -> str:
        """Project [1, S, hidden] to [1, heads, S, head]."""
        flat = self.node("MatMul", [value, weight], f"{weight}_flat")
        split = self.node("Reshape", [flat, "heads_shape"], f"{weight}_split")
        return self.node("Transpose", [split], f"{weight}_heads", perm=[0, 2, 1, 3])

    def _rotate(self, value: str) -> str:
        left, right = self.halves(value, axis=3)
        product = {
            (half, table): self.node("Mul", [half, table], f"{half}_{table}")
            for half in (left, right)
            for table in ("cosine", "sine")
        }
        first = self.node("Sub", [product[left, "cosine"], product[right, "sine"]], f"{value}_rotated_left")
        second = self.node("Add", [product[right, "cosine"], product[left, "sine"]], f"{value}_rotated_right")
        return self.node("Concat", [first, second], f"{value}_rotated", axis=3)

    def _remember(self, fresh: str, kind: str, layer: int) -> str:
        past = self.input(f"past_{kind}_{layer}", TensorProto.FLOAT, self._cache_shape)
        kept = self.node("Mul", [past, "kept"], f"kept_{kind}_{layer}")
        placed = self.node("MatMul", ["written", fresh], f"placed_{kind}_{layer}")
        return self.node("Add", [kept, placed], f"present_{kind}_{layer}")

    def _attention(self, state: str, layer: int) -> str:
        prefix = f"layer_{layer}"
        value = self._norm(state, f"{prefix}.attention_norm")
        query = self._rotate(self._heads(value, f"{prefix}.query"))
        keys = self._remember(self._rotate(self._heads(value, f"{prefix}.key")), "key", layer)
        values = self._remember(self._heads(value, f"{prefix}.value"), "value", layer)
        keys_by_column = self.node("Transpose", [keys], f"{prefix}.keys_by_column", perm=[0, 1, 3, 2])
        raw = self.node("MatMul", [query, keys_by_column], f"{prefix}.raw_scores")
        scaled = self.node("Mul", [raw, "attention_scale"], f"{prefix}.scaled_scores")
        scores = self.node("Add", [scaled, "causal_bias"], f"{prefix}.scores")
        shares = self.node("Softmax", [scores], f"{prefix}.shares", axis=-1)
        mixed = self.node("MatMul", [shares, values], f"{prefix}.mixed")
        by_token = self.node("Transpose", [mixed], f"{prefix}.mixed_by_token", perm=[0, 2, 1, 3])
        joined = self.node("Reshape", [by_token, "hidden_shape"], f"{prefix}.joined")
        output = self.node("MatMul", [joined, f"{prefix}.attention_output"], f"{prefix}.attended")
        return self.node("Add", [state, output], f"{prefix}.after_attention")

    def _mlp(self, state: str, layer: int) -> str:
        prefix = f"layer_{layer}"
        value = self._norm(state, f"{prefix}.mlp_norm")
        gate = self.node("MatMul", [value, f"{prefix}.gate"], f"{prefix}.gate_flat")
        swish = self.node("Mul", [gate, self.node("Sigmoid", [gate], f"{prefix}.gate_sigmoid")], f"{prefix}.swish")
        up = self.node("MatMul", [value, f"{prefix}.up"], f"{prefix}.up_flat")
        gated = self.node("Mul", [swish, up], f"{prefix}.gated")
        output = self.node("MatMul", [gated, f"{prefix}.down"], f"{prefix}.mlp_out")
        return self.node("Add", [state, output], f"{prefix}.after_mlp")


class OpenDecoder(Decoder):
    """Decoder as exporters write it: one graph for any number of tokens and cache slots, taken from the input sizes."""

    _ids = TensorProto.INT64
    # Far below every score that counts, and close enough to keep the steps of quantized scores.
    _hidden_score = -100.0

    def __init__(self, name: str, weights: WeightsFile) -> None:
        super().__init__(name, "sequence_length", weights, "past_length")

    def _slots(self) -> None:
        for name, value in (("slot_axis", 2), ("first_slot", 0), ("next_slot", 1)):
            self.constant(name, np.array(value, dtype="<i8"))
        self.constant("axis_0", np.array([0], dtype="<i8"))
        self.constant("axes_0_1_2", np.array([0, 1, 2], dtype="<i8"))
        self.constant("axes_0_1_3", np.array([0, 1, 3], dtype="<i8"))
        sizes = self.node("Shape", ["past_key_0"], "past_sizes")
        count = self.node("Gather", [sizes, "slot_axis"], "slot_count", axis=0)
        numbers = self.node("Range", ["first_slot", count, "next_slot"], "slot_numbers")
        self.node("Unsqueeze", [numbers, "axes_0_1_2"], "slots")
        self.node("Unsqueeze", [numbers, "axes_0_1_3"], "slots_column")

    def _written_slots(self, positions: str) -> str:
        # A runtime pads a prompt with tokens of position 0 before it. They are no text, so they write no slot: the text consists of
        # the tokens that count up to the position of the last token.
        for name, value in (("sequence_axis", 1), ("one_token", 1), ("no_slot", -1)):
            self.constant(name, np.array(value, dtype="<i8"))
        sizes = self.node("Shape", [positions], "position_sizes")
        count = self.node("Gather", [sizes, "sequence_axis"], "token_count", axis=0)
        last = self.node("Unsqueeze", [self.node("Sub", [count, "one_token"], "last_token"), "axis_0"], "last_token_index")
        end = self.node("Gather", [positions, last], "last_position", axis=1)
        begin = self.node("Sub", ["one_token", count], "first_offset")
        offsets = self.node("Range", [begin, "one_token", "one_token"], "token_offsets")
        counts_up = self.node("Equal", [self.node("Sub", [positions, end], "distances"), offsets], "is_text")
        return self.node("Where", [counts_up, positions, "no_slot"], "written_slots")


def calibration() -> list[dict[str, Array]]:
    """Return inputs of the open decoder that cover every range for a quantizer: random tokens and full caches.

    No token attends to the previous content of the cache: its text overwrites that content or has not reached it. The quantizer
    still observes the ranges of the caches.
    """
    random = Randomness(seed=3)
    positions = np.arange(CALIBRATION_TOKENS, dtype="<i8").reshape(1, -1)
    samples = []
    for _ in range(CALIBRATION_SAMPLES):
        sample: dict[str, Array] = {"input_ids": random.below(VOCABULARY, (1, CALIBRATION_TOKENS)), "position_ids": positions}
        for layer in range(LAYERS):
            for kind in ("key", "value"):
                sample[f"past_{kind}_{layer}"] = random.uniform((1, HEADS, CALIBRATION_SLOTS, HEAD_DIM), CACHED_VALUES)
        samples.append(sample)
    return samples


def classifier() -> onnx.ModelProto:
    """Build a convolutional classifier of 32x32 color images with inline weights."""
    random = Randomness(seed=2)
    builder = GraphBuilder("classifier")
    value, channels = builder.input("image", TensorProto.FLOAT, [1, 3, 32, 32]), 3
    for stage, width in enumerate((16, 32, 64, 64)):
        kernel = random.uniform((width, channels, 3, 3), deviation=math.sqrt(2 / (channels * 9)))
        weight = builder.constant(f"conv_{stage}.weight", kernel)
        bias = builder.constant(f"conv_{stage}.bias", random.uniform((width,), deviation=0.1))
        value = builder.node("Conv", [value, weight, bias], f"conv_{stage}", kernel_shape=[3, 3], pads=[1] * 4)
        value = builder.node("Relu", [value], f"relu_{stage}")
        if stage < 3:
            value = builder.node("MaxPool", [value], f"pool_{stage}", kernel_shape=[2, 2], strides=[2, 2])
        channels = width
    value = builder.node("GlobalAveragePool", [value], "pool")
    value = builder.node("Flatten", [value], "features", axis=1)
    weight = builder.constant("head.weight", random.uniform((channels, CLASSES), deviation=2 / math.sqrt(channels)))
    bias = builder.constant("head.bias", random.uniform((CLASSES,), deviation=0.1))
    value = builder.node("Gemm", [value, weight, bias], "scores")
    builder.node("Softmax", [value], "probabilities", axis=-1)
    builder.output("probabilities", TensorProto.FLOAT, [1, CLASSES])
    return builder.model()


def normalize() -> onnx.ModelProto:
    """Build a model that scales pixels from 0..255 to -1..1, the input range of the classifier."""
    builder = GraphBuilder("normalize")
    pixels = builder.input("pixels", TensorProto.FLOAT, [1, 3, 32, 32])
    scaled = builder.node("Mul", [pixels, builder.constant("scale", np.array(1 / 127.5, "<f4"))], "scaled")
    builder.node("Sub", [scaled, builder.constant("mean", np.array(1, "<f4"))], "image")
    builder.output("image", TensorProto.FLOAT, [1, 3, 32, 32])
    return builder.model()


def write_models(directory: Path) -> None:
    """Write all sample models below `directory`, and overwrite existing files. Raises OSError."""
    decoder = directory / "tiny-llm"
    decoder.mkdir(parents=True, exist_ok=True)
    weights = WeightsFile(decoder_weights())
    (decoder / WEIGHTS_FILE).write_bytes(weights.content)
    for name, sequence in (("prefill", PREFILL_SEQUENCE), ("decode", DECODE_SEQUENCE)):
        _write_model(Decoder(name, sequence, weights).model(), decoder / f"{name}.onnx")
    _write_model(OpenDecoder("decoder", weights).model(), decoder / "decoder.onnx")
    for number, sample in enumerate(calibration()):
        with (decoder / f"calibration_{number}.npz").open("wb") as file:
            np.savez(file, allow_pickle=False, **sample)
    (directory / "classifier").mkdir(exist_ok=True)
    _write_model(classifier(), directory / "classifier" / "classifier.onnx")
    _write_model(normalize(), directory / "classifier" / "normalize.onnx")
    (directory / "iclabel").mkdir(exist_ok=True)
    for name, sample in eeg_samples.samples(Randomness(seed=4)).items():
        with (directory / "iclabel" / f"{name}.npz").open("wb") as file:
            np.savez(file, allow_pickle=False, **sample)


def _write_model(model: onnx.ModelProto, path: Path) -> None:
    path.write_bytes(model.SerializeToString(deterministic=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent, help="directory to write under")
    write_models(parser.parse_args().out)


if __name__ == "__main__":
    main()
