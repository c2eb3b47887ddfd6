"""Built-in preparations with the real libraries: their results, their reproducibility and their refusals."""

from __future__ import annotations

import json
import runpy
import shutil
import subprocess
import threading
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import epbuild
from epbuild.cache.location import find_toolchain_directory
from epbuild.catalog.preparations import get_preparation
from epbuild.core.errors import Problem
from epbuild.plan.preparing import catalog_settings
from epbuild.toolchain.process import supervise
from epbuild.toolchain.provision import Requirements, provision
from tests.support.worker_listener import WorkerWords

pytestmark = pytest.mark.gate

TOOLS = ("onnxruntime==1.31.1", "onnx==1.23.2", "onnxslim==0.1.98", "sympy==1.14.0")
SCRIPTS = Path(epbuild.__file__).parent / "worker" / "preparations"
MODELS = Path(__file__).parents[2] / "recipes" / "models"
DECODER = MODELS / "tiny-llm" / "decoder.onnx"
CALIBRATION = sorted((MODELS / "tiny-llm").glob("calibration_*.npz"))
RANGES = {"ranges": {"image": [0, 1]}, "samples": 4, "seed": 0}
BATCH = 2


@pytest.fixture(scope="module")
def python() -> Path:
    return provision(Requirements(TOOLS), find_toolchain_directory(), name="tools", where=None)


class Bench:
    """Runner for scripts that works as a step does, each time in a staging directory of its own."""

    def __init__(self, python: Path, folder: Path) -> None:
        self.python = python
        self.folder = folder
        self.runs = 0
        self.worker = WorkerWords()

    def run(
        self,
        kind: str,
        source: Path,
        options: dict[str, Any],
        files: list[Path] | None = None,
        settings: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Run a script, and return its last report."""
        self.runs += 1
        staging = self.folder / str(self.runs)
        (staging / "in" / "files").mkdir(parents=True)
        (staging / "out").mkdir()
        shutil.copy(source, staging / "in" / "model.onnx")
        if (data := source.with_name("weights.bin")).exists():
            shutil.copy(data, staging / "in")
        for file in files or []:
            shutil.copy(file, staging / "in" / "files")
        samples = [f"in/files/{file.name}" for file in files or []]
        request = {
            "format": 1,
            "kind": kind,
            "source": "in/model.onnx",
            "output": "out/model.onnx",
            "options": options,
            "settings": {**get_preparation(kind).settings, **(settings or {})},
            "files": {"calibration": samples} if samples else {},
        }
        (staging / "request.json").write_text(json.dumps(request), encoding="utf-8")
        ending = supervise(
            [str(self.python), "-I", str(SCRIPTS / f"{kind}.py"), "request.json"],
            staging,
            staging / "log",
            self.worker,
            timeout=120,
            environment={},
            cancelled=threading.Event(),
        )
        assert ending.reports, ending.tail
        last = dict(ending.reports[-1])
        assert (ending.status == 0) == (last["event"] == "finished"), ending
        return last

    def made(
        self,
        kind: str,
        source: Path,
        options: dict[str, Any],
        files: list[Path] | None = None,
        settings: dict[str, Any] | None = None,
    ) -> onnx.ModelProto:
        """Run a script that has to succeed, and return the model after checking it."""
        assert self.run(kind, source, options, files, settings)["event"] == "finished"
        onnx.checker.check_model(self.output / "model.onnx", full_check=True)
        return onnx.load(self.output / "model.onnx")

    def refused(
        self,
        kind: str,
        source: Path,
        options: dict[str, Any],
        files: list[Path] | None = None,
        settings: dict[str, Any] | None = None,
    ) -> tuple[str, str]:
        """Run a script that has to refuse, and return its message and hint."""
        report = self.run(kind, source, options, files, settings)
        assert (report["event"], report["kind"], report["type"]) == ("failed", "error", "Refused")
        assert not list(self.output.iterdir())
        return report["message"], report.get("hint", "")

    @property
    def output(self) -> Path:
        return self.folder / str(self.runs) / "out"

    def log(self) -> str:
        return (self.folder / str(self.runs) / "log").read_text(encoding="utf-8")

    def bytes(self) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in self.output.iterdir()}


@pytest.fixture
def bench(python: Path, tmp_path: Path) -> Bench:
    return Bench(python, tmp_path)


@pytest.fixture
def network(tmp_path: Path) -> Path:
    return network_in(tmp_path, BATCH)


def network_in(folder: Path, batch: int | str) -> Path:
    """Write two convolutions and a dense layer at the end. Constants compute the weights of the first."""
    draw = np.random.default_rng(0)
    weights = {
        "first": draw.normal(size=(8, 3, 3, 3)),
        "second": draw.normal(size=(4, 8, 3, 3)),
        "half": np.array(0.5),
        "dense": draw.normal(size=(4 * 8 * 8, 5)),
    }
    shape = numpy_helper.from_array(np.array([0, -1], np.int64), "flat")
    nodes = [
        helper.make_node("Mul", ["first", "half"], ["halved"], "halving"),
        helper.make_node("Conv", ["image", "halved"], ["a"], "conv_a", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["a"], ["b"], "relu"),
        helper.make_node("Conv", ["b", "second"], ["c"], "conv_b", pads=[1, 1, 1, 1]),
        helper.make_node("Reshape", ["c", "flat"], ["d"], "flatten"),
        helper.make_node("MatMul", ["d", "dense"], ["scores"], "scoring"),
    ]
    graph = helper.make_graph(
        nodes,
        "network",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, [batch, 3, 8, 8])],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, [batch, 5])],
        [shape, *(numpy_helper.from_array(array.astype(np.float32), name) for name, array in weights.items())],
    )
    path = folder / "network.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def image(batch: int = BATCH) -> np.ndarray[Any, Any]:
    return np.random.default_rng(9).random((batch, 3, 8, 8), dtype=np.float32)


def scores(bench: Bench, model: Path | None = None) -> np.ndarray[Any, Any]:
    """Run a model on an image with the CPU EP. The default is the latest output."""
    run = "import numpy, onnxruntime, sys; m, x, y = sys.argv[1:]; s = onnxruntime.InferenceSession(m, providers=['CPUExecutionProvider'])"
    run += "; numpy.save(y, s.run(None, {'image': numpy.load(x)})[0])"
    given, found = bench.folder / "image.npy", bench.folder / "scores.npy"
    np.save(given, image())
    subprocess.run([bench.python, "-I", "-c", run, model or bench.output / "model.onnx", given, found], check=True)
    return np.load(found).astype(np.float64)  # type: ignore[no-any-return]


def cosine(one: np.ndarray[Any, Any], other: np.ndarray[Any, Any]) -> float:
    return float((one * other).sum() / np.linalg.norm(one) / np.linalg.norm(other))


def operators(model: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in model.graph.node]


def sample(folder: Path, name: str, **arrays: np.ndarray[Any, Any]) -> Path:
    path = folder / name
    np.savez(path, **arrays)  # type: ignore[arg-type]
    return path


# -- quantize ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"activation_type": "uint16", "weight_type": "int8", "per_channel": True}])
def test_quantize_is_accurate_and_reproducible(bench: Bench, network: Path, options: dict[str, Any]) -> None:
    model = bench.made("quantize", network, {**options, "generate": RANGES})
    first = bench.bytes()
    kinds = operators(model)
    assert "DequantizeLinear" in kinds
    assert kinds.count("QuantizeLinear") >= 3
    assert "Mul" not in kinds  # folded before
    assert cosine(scores(bench, network), scores(bench)) > 0.99
    bench.made("quantize", network, {**options, "generate": RANGES})
    assert bench.bytes() == first


def test_calibration_uses_the_values_in_the_sample_files(bench: Bench, network: Path, tmp_path: Path) -> None:
    files = [sample(tmp_path, f"{scale}.npz", image=image() * scale) for scale in (1, 3)]
    model = bench.made("quantize", network, {}, files)
    values = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    scale = next(values[node.input[1]] for node in model.graph.node if node.input[0] == "image")
    assert scale == pytest.approx(image().max() * 3 / 255, rel=1e-3)
    assert "calibrating with 2 files" in bench.worker.words
    log = "\n".join(bench.worker.words)
    for phase in ("inferring shapes", "running the model with", "3.npz, 2 of 2", "writing the quantized model"):
        assert phase in log


def test_quantize_continues_if_symbolic_shape_inference_fails(bench: Bench, tmp_path: Path) -> None:
    source = tmp_path / "two_names.onnx"
    nodes = [helper.make_node("MatMul", ["x", "w"], ["a"]), helper.make_node("Add", ["a", "y"], ["z"])]
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [size, 4]) for name, size in (("x", "n"), ("y", "m"))]
    output = helper.make_tensor_value_info("z", TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "sum", inputs, [output], [numpy_helper.from_array(np.eye(4, dtype=np.float32), "w")])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), source)
    arrays = {name: np.linspace(-1, 1, 8, dtype=np.float32).reshape(2, 4) for name in "xy"}
    assert bench.run("quantize", source, {}, [sample(tmp_path, "a.npz", **arrays)])["event"] == "finished"
    assert "symbolic shape inference failed, so quantization continues without it" in bench.log()


def test_a_decoder_is_quantized_with_dynamic_sizes_and_external_weights(bench: Bench) -> None:
    model = bench.made("quantize", DECODER, {}, CALIBRATION)
    assert [dim.dim_param for dim in model.graph.input[0].type.tensor_type.shape.dim] == ["", "sequence_length"]
    first = bench.bytes()
    assert first.keys() == {"model.onnx", "model.onnx.data"}
    bench.made("quantize", DECODER, {}, CALIBRATION)
    assert bench.bytes() == first


def test_excluded_nodes_stay_in_float(bench: Bench, network: Path) -> None:
    model = bench.made("quantize", network, {"generate": RANGES, "nodes_to_exclude": ["conv_b"]})
    weights = {node.name: node.input[1] for node in model.graph.node if node.op_type == "Conv"}
    assert weights["conv_b"] == "second"
    assert weights["conv_a"].endswith("DequantizeLinear_Output")


@pytest.mark.parametrize(
    ("options", "message", "hint"),
    [
        ({"nodes_to_exclude": ["conv_c"]}, "'nodes_to_exclude' has 'conv_c'", "Did you mean 'conv_b'?"),
        ({"nodes_to_exclude": ["halving"]}, "the node 'halving' is removed when", "skip_optimization: true"),
        ({"op_types_to_quantize": ["Conf"]}, "'op_types_to_quantize' has 'Conf'", "Did you mean 'Conv'?"),
        ({"generate": {**RANGES, "ranges": {"picture": [0, 1]}}}, "'ranges' names 'picture'", "image"),
        ({"generate": {**RANGES, "sizes": {"image": [1, 3, 8, 8]}}}, "the model takes [2, 3, 8, 8]", ""),
        (
            {"generate": {**RANGES, "ranges": {"image": [-3e38, 3e38]}}},
            "generated sample 1, the model computes NaN",
            "Calibrate with",
        ),
        ({"generate": {**RANGES, "ranges": {"image": [0, 1e37]}}}, "is not finite", "Calibrate with"),
    ],
)
def test_options_that_do_not_fit_the_model_are_refused(
    bench: Bench, network: Path, options: dict[str, Any], message: str, hint: str
) -> None:
    told = bench.refused("quantize", network, {"generate": RANGES, **options})
    assert message in told[0]
    assert hint in told[1]


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"picture": image()}, "an array 'picture', which is not an input of the model"),
        ({}, "lacks the model's input 'image'"),
        ({"image": image().astype(np.float64)}, "'image' is float64; the model takes float32"),
        ({"image": image(1)}, "has the shape [1, 3, 8, 8]; the model expects [2, 3, 8, 8]"),
        ({"image": image() * np.float32(np.nan)}, "contains values that are not finite"),
    ],
)
def test_samples_that_do_not_fit_the_inputs_are_refused_by_file_name(
    bench: Bench, network: Path, tmp_path: Path, arrays: dict[str, Any], message: str
) -> None:
    told = bench.refused("quantize", network, {}, [sample(tmp_path, "a.npz", **arrays)])
    assert "a.npz" in told[0]
    assert message in told[0]


def test_generating_samples_requires_sizes_for_dynamic_dimensions(bench: Bench, tmp_path: Path) -> None:
    message, hint = bench.refused("quantize", network_in(tmp_path, "batch"), {"generate": RANGES})
    assert "'image' has the dynamic sizes [batch, 3, 8, 8]" in message
    assert "'input_shapes' of the model" in hint
    model = bench.made("quantize", network_in(tmp_path, "batch"), {"generate": {**RANGES, "sizes": {"image": [2, 3, 8, 8]}}})
    assert "QuantizeLinear" in operators(model)


# -- Other preparations ------------------------------------------------------------------------------------------------


def test_float16_halves_a_model_and_can_keep_input_and_output_types(bench: Bench, network: Path) -> None:
    model = bench.made("float16", network, {"keep_io_types": True, "node_block_list": ["scoring"]})
    first = bench.bytes()
    types = {tensor.name: tensor.data_type for tensor in model.graph.initializer}
    assert (types["second"], types["dense"]) == (TensorProto.FLOAT16, TensorProto.FLOAT)
    assert model.graph.input[0].type.tensor_type.elem_type == TensorProto.FLOAT
    assert cosine(scores(bench, network), scores(bench)) > 0.9999
    bench.made("float16", network, {"keep_io_types": True, "node_block_list": ["scoring"]})
    assert bench.bytes() == first
    assert bench.refused("float16", network, {"node_block_list": ["score"]})[1].startswith("Did you mean 'scoring'?")


def test_simplify_folds_constants_and_computes_the_same(bench: Bench, network: Path) -> None:
    model = bench.made("simplify", network, {"model_check": True})
    first = bench.bytes()
    assert "Mul" not in operators(model)
    assert np.allclose(scores(bench, network), scores(bench), rtol=1e-5)
    bench.made("simplify", network, {"model_check": True})
    assert bench.bytes() == first
    left = bench.made("simplify", network, {"skip_optimizations": ["constant_folding"]})
    assert "Mul" in operators(left)


@pytest.mark.parametrize("options", [{"data_prop": True}, {"symbolic": True, "auto_merge": True}])
def test_infer_shapes_adds_the_inner_shapes(bench: Bench, network: Path, options: dict[str, Any]) -> None:
    model = bench.made("infer_shapes", network, options)
    found = {value.name: [dim.dim_value for dim in value.type.tensor_type.shape.dim] for value in model.graph.value_info}
    assert (found["b"], found["d"]) == ([2, 8, 8, 8], [2, 256])


def test_opset_converts_a_model_or_names_the_unconvertible_operator(bench: Bench, network: Path) -> None:
    model = bench.made("opset", network, {"target_version": 21})
    assert [opset.version for opset in model.opset_import] == [21]
    assert ", not 99" in bench.refused("opset", network, {"target_version": 99})[0]
    message, _ = bench.refused("opset", DECODER, {"target_version": 11})
    assert "No Previous Version of LayerNormalization exists" in message
    assert ".h:" not in message


def test_cut_keeps_the_nodes_between_inputs_and_outputs(bench: Bench, network: Path) -> None:
    model = bench.made("cut", network, {"inputs": ["b"], "outputs": ["c"]})
    assert operators(model) == ["Conv"]
    assert [value.name for value in (*model.graph.input, *model.graph.output)] == ["b", "c"]
    assert operators(bench.made("cut", network, {"outputs": ["b"]})) == ["Mul", "Conv", "Relu"]


def test_cut_keeps_external_weights_external(bench: Bench) -> None:
    model = bench.made("cut", DECODER, {"outputs": ["present_key_0"]})
    assert [value.name for value in model.graph.output] == ["present_key_0"]
    assert 0 < len(bench.bytes()["model.onnx.data"]) < DECODER.with_name("weights.bin").stat().st_size
    assert len(model.graph.input) < len(onnx.load(DECODER, load_external_data=False).graph.input)


@pytest.mark.parametrize(
    ("options", "message", "hint"),
    [
        ({"outputs": ["score"]}, "'outputs' has 'score'", "Did you mean 'scores'?"),
        ({"inputs": ["c"], "outputs": ["b"]}, "'inputs' lacks inputs of the model", "image"),
        ({"inputs": ["image", "c"], "outputs": ["scores"]}, "no output needs the input 'image'", "Remove it"),
        ({"outputs": ["halved"]}, "they are constants", "other outputs"),
    ],
)
def test_a_cut_without_remaining_nodes_is_refused(
    bench: Bench, network: Path, options: dict[str, Any], message: str, hint: str
) -> None:
    told = bench.refused("cut", network, options)
    assert message in told[0]
    assert hint in told[1]


def join_parts(bench: Bench, model: Path, *ways: dict[str, Any]) -> None:
    """Check that the joined parts compute exactly what the model computes, for each way to split it."""
    program, folder = Path(__file__).with_name("joined_parts.py"), bench.folder / "parts"
    folder.mkdir()
    arguments = [str(SCRIPTS / "split.py"), str(model), str(CALIBRATION[0]), str(folder), *map(json.dumps, ways)]
    done = subprocess.run([bench.python, "-I", program, *arguments], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_joined_parts_compute_exactly_what_the_decoder_computes(bench: Bench) -> None:
    join_parts(bench, DECODER, *({"parts": count} for count in range(1, 5)), {"layers": [0, 1]}, {"at": [["layer_0.after_mlp"]]})


def test_joined_parts_compute_exactly_what_a_quantized_decoder_computes(bench: Bench) -> None:
    bench.made("quantize", DECODER, {"activation_type": "uint16"}, CALIBRATION)
    model = bench.output / "model.onnx"
    join_parts(bench, model, {"parts": 3}, {"layers": [1]}, {"at": [["layer_0.after_mlp_QuantizeLinear_Output"]]})


def test_split_infers_the_sizes_of_connections_symbolically(bench: Bench) -> None:
    model = bench.made("split", DECODER, {"layers": [1], "part": 1})
    shapes = {
        value.name: [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim] for value in model.graph.input
    }
    assert shapes["layer_0.after_mlp"] == [1, "sequence_length", 96]
    assert shapes["causal_bias"] == [1, 1, "sequence_length", "past_length"]
    assert "input_ids" not in shapes


def test_a_missing_package_is_an_error_of_the_toolchain(network: Path, tmp_path: Path) -> None:
    bare = provision(Requirements(("onnx==1.23.2",)), find_toolchain_directory(), name="bare", where=None)
    report = Bench(bare, tmp_path).run("quantize", network, {"generate": RANGES})
    assert (report["event"], report["kind"]) == ("failed", "unfit")
    assert "onnxruntime" in report["message"]


def test_the_tested_packages_satisfy_the_catalog() -> None:
    from epbuild.core.errors import Position
    from epbuild.plan.preparation_options import find_package_problems
    from epbuild.recipe.model import ToolchainSpec

    where = Position("epbuild.yaml", 1, 1)
    found: list[Problem] = []
    for kind in ("quantize", "float16", "simplify", "infer_shapes", "opset", "cut", "split", "dequantize"):
        found += find_package_problems(kind, {}, ToolchainSpec("tools", where, packages=TOOLS), where)
    assert found == []


# -- dequantize --------------------------------------------------------------------------------------------------------


def test_dequantized_models_compute_with_the_dequantized_weights(bench: Bench) -> None:
    program = Path(__file__).with_name("dequantized_models.py")
    command = [str(item) for item in (bench.python, "-I", program, SCRIPTS / "dequantize.py", bench.folder)]
    found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    assert len(found) == 18
    for name, (from_same, from_float) in found.items():
        assert from_same < 1e-5, name
        assert 0 < from_float < 0.05, name


QUANTIZED = np.random.default_rng(0).integers(0, 255, (16, 32)).astype(np.uint8)
WEIGHT = ((QUANTIZED.astype(np.float32) - 120) * np.float32(0.01)).astype(np.float32)
BIAS = np.linspace(-1, 1, 32).astype(np.float32)


def dynamic(path: Path, *nodes: onnx.NodeProto, output: int = TensorProto.FLOAT, location: str | None = None) -> Path:
    """Write a model that quantizes its input, with the output `y` of these nodes."""
    first = helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"])
    constants = {
        "w": QUANTIZED,
        "ws": np.float32(0.01),
        "wz": np.uint8(120),
        "b": BIAS,
        "shape": np.array([1, 32]),
        "yes": np.array(True),
    }
    tensors = [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()]
    ends = [[helper.make_tensor_value_info("x", 1, [2, 16])], [helper.make_tensor_value_info("y", output, [2, 32])]]
    graph = helper.make_graph([first, *nodes], "dynamic", *ends, tensors)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    path.parent.mkdir(exist_ok=True)
    onnx.save(model, path, save_as_external_data=location is not None, location=location, size_threshold=64)
    return path


def integer_product(result: str, scaled: str = "i") -> list[onnx.NodeProto]:
    """Return the nodes of a product whose integer result is `i`, and whose sum `scaled` is scaled."""
    return [
        helper.make_node("MatMulInteger", ["q", "w", "z", "wz"], ["i"], "product"),
        helper.make_node("Cast", [scaled], ["c"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["s", "ws"], ["both"]),
        helper.make_node("Mul", ["c", "both"], [result]),
    ]


FORMS = {
    "scales one after another": [
        helper.make_node("MatMulInteger", ["q", "w", "z", "wz"], ["i"], "product"),
        helper.make_node("Cast", ["i"], ["c"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["ws", "c"], ["d"]),
        helper.make_node("Mul", ["d", "s"], ["e"]),
        helper.make_node("Add", ["e", "b"], ["y"]),
    ],
    "integer bias": [
        *integer_product("y", scaled="sum"),
        helper.make_node("Div", ["b", "both"], ["divided"]),
        helper.make_node("Floor", ["divided"], ["floor"]),
        helper.make_node("Cast", ["floor"], ["integer"], to=TensorProto.INT32),
        helper.make_node("Reshape", ["integer", "shape"], ["row"]),
        helper.make_node("Add", ["i", "row"], ["sum"]),
    ],
    "fused with the quantization": [
        helper.make_node("DynamicQuantizeMatMul", ["x", "w", "ws", "wz", "b"], ["y"], "product", domain="com.microsoft")
    ],
    "fused with the scales": [
        helper.make_node("MatMulIntegerToFloat", ["q", "w", "s", "ws", "z", "wz", "b"], ["y"], "product", domain="com.microsoft")
    ],
    "in a branch": [
        helper.make_node(
            "If",
            ["yes"],
            ["e"],
            then_branch=helper.make_graph(
                [
                    helper.make_node("DynamicQuantizeLinear", ["x"], ["bq", "bs", "bz"]),
                    helper.make_node("MatMulInteger", ["bq", "w", "bz", "wz"], ["bi"], "inner"),
                    helper.make_node("Cast", ["bi"], ["bc"], to=TensorProto.FLOAT),
                    helper.make_node("Mul", ["bs", "ws"], ["bb"]),
                    helper.make_node("Mul", ["bc", "bb"], ["be"]),
                ],
                "yes",
                [],
                [helper.make_tensor_value_info("be", 1, [2, 32])],
            ),
            else_branch=helper.make_graph(integer_product("ee"), "no", [], [helper.make_tensor_value_info("ee", 1, [2, 32])]),
        ),
        helper.make_node("Add", ["e", "b"], ["y"]),
    ],
}


@pytest.mark.parametrize("form", FORMS)
def test_dequantize_replaces_every_form_of_a_quantized_product(bench: Bench, tmp_path: Path, form: str) -> None:
    model = bench.made("dequantize", dynamic(tmp_path / "dynamic.onnx", *FORMS[form]), {})
    x = np.random.default_rng(1).normal(size=(2, 16)).astype(np.float32)
    [y] = ReferenceEvaluator(model).run(None, {"x": x})
    assert np.allclose(y, x @ WEIGHT + BIAS, atol=1e-5)
    assert not {"w", "ws", "wz"} & {tensor.name for tensor in model.graph.initializer}
    assert "MatMulInteger" not in str(model)


def test_dequantize_keeps_external_data_external(bench: Bench, tmp_path: Path) -> None:
    source = dynamic(tmp_path / "external" / "dynamic.onnx", *integer_product("y"), location="weights.bin")
    model = bench.made("dequantize", source, {})
    assert operators(model) == ["MatMul"]
    assert bench.bytes()["model.onnx.data"] == WEIGHT.tobytes()


def test_dequantize_logs_what_stays_quantized(bench: Bench, tmp_path: Path) -> None:
    nodes = [*integer_product("a"), *FORMS["fused with the scales"]]
    nodes[-1].input[2] = "b"  # a scale that is not the scale of the input
    nodes[-1].output[0] = "d"
    bench.made("dequantize", dynamic(tmp_path / "dynamic.onnx", *nodes, helper.make_node("Add", ["a", "d"], ["y"])), {})
    assert "still quantized: 1 MatMulIntegerToFloat: a scale is not the scale of its input" in bench.log()
    assert "replaced by float32: 1 MatMulInteger" in bench.log()


def test_dequantize_refuses_a_model_that_it_cannot_change(bench: Bench, network: Path, tmp_path: Path) -> None:
    message, hint = bench.refused("dequantize", network, {})
    assert (message, hint) == ("the model has no dynamically quantized nodes", "Remove this step from 'prepare'.")
    integer = helper.make_node("MatMulInteger", ["q", "w", "z", "wz"], ["y"])
    message, _ = bench.refused("dequantize", dynamic(tmp_path / "integer.onnx", integer, output=TensorProto.INT32), {})
    assert message.startswith(
        "none of the 1 dynamically quantized nodes can be replaced: 1 MatMulInteger: its result is not only"
    )


# -- rewrite -----------------------------------------------------------------------------------------------------------


def rms_norm(path: Path, first: bool = True) -> Path:
    """Write a model of an RMSNorm as torch exports it, with its weight `first` or last."""
    rng = np.random.default_rng(0)
    weight = rng.normal(1, 0.1, 64).astype(np.float32)
    nodes = [
        helper.make_node("Pow", ["x", "two"], ["p"]),
        helper.make_node("ReduceMean", ["p", "axes"], ["m"], keepdims=1),
        helper.make_node("Add", ["m", "eps"], ["a"]),
        helper.make_node("Sqrt", ["a"], ["s"]),
        helper.make_node("Reciprocal", ["s"], ["r"]),
        helper.make_node("Mul", ["r", "x"], ["y"]),
        helper.make_node("Mul", ["w", "y"] if first else ["y", "w"], ["z"]),
    ]
    constants = [
        numpy_helper.from_array(weight, "w"),
        numpy_helper.from_array(np.array(2, np.float32), "two"),
        numpy_helper.from_array(np.array([-1], np.int64), "axes"),
        numpy_helper.from_array(np.array(1e-5, np.float32), "eps"),
    ]
    x, z = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 8, 64]) for name in "xz")
    graph = helper.make_graph(nodes, "norm", [x], [z], constants)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), path)
    return path


def normalized(bench: Bench, model: Path) -> np.ndarray[Any, Any]:
    """Run a model of `rms_norm` on random numbers with the CPU EP."""
    run = "import numpy, onnxruntime, sys; m, y = sys.argv[1:]; s = onnxruntime.InferenceSession(m, providers=['CPUExecutionProvider'])"
    run += "; x = numpy.random.default_rng(1).normal(0, 1, (1, 8, 64)).astype('float32'); numpy.save(y, s.run(None, {'x': x})[0])"
    subprocess.run([bench.python, "-I", "-c", run, model, bench.folder / "z.npy"], check=True)
    return np.load(bench.folder / "z.npy")  # type: ignore[no-any-return]


def rewrites() -> dict[str, Any]:
    """Return the settings that the `rewrite: qnn` of a recipe receives."""
    return {"rewrites": json.loads(json.dumps(catalog_settings("rewrite", {"ep": "qnn"})["rewrites"]))}


def test_rewrite_computes_the_same(bench: Bench, tmp_path: Path) -> None:
    source = rms_norm(tmp_path / "norm.onnx")
    model = bench.made("rewrite", source, {"ep": "qnn"}, settings=rewrites())
    assert list(model.graph.node[-1].input) == ["y", "w"]
    assert (normalized(bench, bench.output / "model.onnx") == normalized(bench, source)).all()

    external = tmp_path / "external"
    external.mkdir()
    onnx.save(onnx.load(source), external / "norm.onnx", save_as_external_data=True, location="weights.bin", size_threshold=128)
    bench.made("rewrite", external / "norm.onnx", {"ep": "qnn"}, settings=rewrites())
    assert (normalized(bench, bench.output / "model.onnx") == normalized(bench, source)).all()


def test_rewrite_refuses_a_model_without_the_patterns(bench: Bench, tmp_path: Path) -> None:
    message, hint = bench.refused("rewrite", rms_norm(tmp_path / "norm.onnx", first=False), {"ep": "qnn"}, settings=rewrites())
    assert message == "the model has none of the patterns: rmsnorm"
    assert hint == "Remove this step from 'prepare'."


@pytest.mark.parametrize(("centered", "found"), [(False, [["Pow", "ReduceMean", "Add", "Sqrt", "Div"]]), (True, [])])
def test_rms_norms_stay_in_float_and_layer_norms_do_not(centered: bool, found: list[list[str]]) -> None:
    value = "d" if centered else "x"
    center = [helper.make_node("ReduceMean", ["x"], ["c"]), helper.make_node("Sub", ["x", "c"], ["d"])] if centered else []
    nodes = [
        *center,
        helper.make_node("Pow", [value, "two"], ["p"]),
        helper.make_node("ReduceMean", ["p"], ["m"]),
        helper.make_node("Add", ["m", "eps"], ["a"]),
        helper.make_node("Sqrt", ["a"], ["s"]),
        helper.make_node("Div", [value, "s"], ["y"]),
    ]
    ends = [[helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 8])] for name in "xy"]
    find_norms = runpy.run_path(str(SCRIPTS / "quantize.py"))["find_norms"]
    norms = find_norms(helper.make_graph(nodes, "norm", *ends))
    assert [[node.op_type for node in norm] for norm in norms] == found
