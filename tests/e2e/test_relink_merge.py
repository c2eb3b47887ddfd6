"""`relink` and `merge` on compiled models: the real QNN EP computes the same numbers, bit for bit."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from epbuild.onnxfile.read.headers import read_header
from tests.support.gate import mark_rest_exhaustive
from tests.support.projects import Project, toolchain_python

pytestmark = [
    pytest.mark.gate,
    pytest.mark.skipif(sys.platform != "linux", reason="the HTP emulator that runs compiled contexts comes in the Linux wheel"),
]

RECIPE = """\
epbuild: 1
name: parts
toolchains:
  qnn: {packages: [onnxruntime==1.31.1, onnxruntime-qnn==2.7.0]}
models: {first: first.onnx, second: second.onnx, split: split.onnx, quantized: quantized.onnx}
targets:
  npu:
    toolchain: qnn
    ep: QNNExecutionProvider
    provider_options: {backend_type: htp, soc_model: SC8380XP}
groups:
  parts: {models: [first, second, split, quantized], targets: [npu], expect: {fallback_nodes: any}}
outputs:
  - {layout: directory, path: dist}
"""
WIDTH = 64
ROWS = 64
QNN_FLOAT_32 = 0x0232
"""Number of the type float32 in QNN's files."""
CLOSE = 0.1
"""Maximum difference of half precision from the CPU EP, for values of up to a few hundred."""


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """Return four compiled models: two plain ones, one of two partitions, and one with quantized inputs and outputs."""
    folder = tmp_path_factory.mktemp("parts")
    project = Project(folder / "project", folder / "cache")
    project.folder.mkdir()
    write_sources(project.folder)
    project.recipe.write_text(RECIPE, encoding="utf-8")
    project.build()
    assert len(list((project.folder / "dist").glob("*.bin"))) == 4
    return project


def write_sources(folder: Path) -> None:
    def save(name: str, nodes: Sequence[onnx.NodeProto], inputs: Sequence[str], output: str, **constants: numpy.ndarray) -> None:
        values = {
            value: helper.make_tensor_value_info(value, TensorProto.FLOAT, [ROWS, WIDTH]) for value in (*inputs, output, "h", "d")
        }
        inner = [values[value] for value in ("h", "d") if any(value in node.output for node in nodes)]
        initializers = [numpy_helper.from_array(array, constant) for constant, array in constants.items()]
        graph = helper.make_graph(
            nodes, name, [values[value] for value in inputs], [values[output]], initializers, value_info=inner
        )
        opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
        onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), folder / f"{name}.onnx")

    def weights(seed: int) -> numpy.ndarray:
        return (numpy.random.default_rng(seed).standard_normal((WIDTH, WIDTH)) / 8).astype(numpy.float32)

    def node(operator: str, inputs: str, output: str, **attributes: str) -> onnx.NodeProto:
        return helper.make_node(operator, inputs.split(), [output], name=f"{operator}_{output}", **attributes)

    def through(value: str, output: str, scale: str) -> list[onnx.NodeProto]:
        zero = "zero8" if scale == "sw" else "zero"
        return [
            node("QuantizeLinear", f"{value} {scale} {zero}", f"{value}_q"),
            node("DequantizeLinear", f"{value}_q {scale} {zero}", output),
        ]

    save("first", [node("MatMul", "x w", "y")], ["x"], "y", w=weights(0))
    # Not symmetric in its inputs, so that swapped inputs give wrong numbers.
    save("second", [node("MatMul", "y w", "h"), node("Sub", "h x", "z")], ["y", "x"], "z", w=weights(1))
    split = [
        node("MatMul", "x w", "h"),
        node("CDist", "h h", "d", domain="com.microsoft", metric="euclidean"),
        node("MatMul", "d v", "y"),
    ]
    save("split", split, ["x"], "y", w=weights(2), v=weights(3))
    quantized = [*through("x", "xd", "sx"), *through("w", "wd", "sw"), node("MatMul", "xd wd", "h"), *through("h", "y", "sx")]
    scales = {"sx": numpy.float32(16 / 65535), "sw": numpy.float32(1 / 255)}
    zeros = {"zero": numpy.uint16(32768), "zero8": numpy.uint8(128)}
    save(
        "quantized",
        quantized,
        ["x"],
        "y",
        w=weights(4),
        **{name: numpy.asarray(array) for name, array in (scales | zeros).items()},
    )


def epbuild(project: Project, *arguments: str) -> None:
    done = project.epbuild(*arguments)
    assert done.returncode == 0, done.stdout + done.stderr


def outputs(
    folder: Path, model: Path, feeds: Mapping[str, int], provider: str = "QNNExecutionProvider"
) -> dict[str, numpy.ndarray]:
    """Run a model on inputs from random seeds in a process of the toolchain's Python, and return its outputs."""
    folder.mkdir(parents=True, exist_ok=True)
    answer = folder / "answer.npz"
    answer.unlink(missing_ok=True)
    script = folder / "run.py"
    script.write_text(_RUN, encoding="utf-8")
    done = subprocess.run(
        [toolchain_python("onnxruntime-qnn==2.7.0"), "-I", script, model, provider, json.dumps(dict(feeds)), answer],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=folder,
    )
    assert done.returncode == 0, done.stderr
    with numpy.load(answer) as arrays:
        return dict(arrays)


_RUN = """
import json, sys
import numpy
import onnxruntime
import onnxruntime_qnn

model, provider, feeds, answer = sys.argv[1:]
options = onnxruntime.SessionOptions()
if provider == "QNNExecutionProvider":
    onnxruntime.register_execution_provider_library(provider, onnxruntime_qnn.get_library_path())
    devices = [device for device in onnxruntime.get_ep_devices() if device.ep_name == provider]
    options.add_provider_for_devices(devices, {"backend_type": "htp", "soc_model": "SC8380XP"})
    session = onnxruntime.InferenceSession(model, sess_options=options)
else:
    session = onnxruntime.InferenceSession(model, providers=[provider])
shapes = {value.name: value.shape for value in session.get_inputs()}
values = {name: numpy.random.default_rng(seed).standard_normal(shapes[name]).astype("float32") for name, seed in json.loads(feeds).items()}
names = [value.name for value in session.get_outputs()]
numpy.savez(answer, **dict(zip(names, session.run(names, values))))
"""


def same(left: Mapping[str, numpy.ndarray], right: Mapping[str, numpy.ndarray]) -> bool:
    return left.keys() == right.keys() and all(numpy.array_equal(left[name], right[name]) for name in left)


@pytest.mark.parametrize("name", mark_rest_exhaustive(["first", "split", "quantized"], sample=["first", "split"]))
def test_embedded_extracted_and_moved_contexts_compute_the_same_numbers(parts: Project, tmp_path: Path, name: str) -> None:
    model = parts.folder / f"dist/{name}_ctx.onnx"
    before = outputs(tmp_path, model, {"x": 7})
    work = tmp_path / "work"
    whole = work / "whole.onnx"
    epbuild(parts, "relink", str(model), "--embed", "-o", str(whole))
    epbuild(parts, "relink", str(whole), "--extract", "-o", str(work / "extracted"))
    epbuild(parts, "relink", str(model), "--binary", "contexts/moved.bin", "-o", str(work / "moved"))
    assert [path.name for path in work.glob("*.bin")] == []
    for made in (whole, work / "extracted/whole.onnx", work / f"moved/{name}_ctx.onnx"):
        assert same(outputs(tmp_path, made, {"x": 7}), before), made
    # The same operations in place, one after the other.
    moved = work / f"moved/{name}_ctx.onnx"
    for arguments in (["--binary", "m.bin"], ["--embed"], ["--extract", "--binary", "sub/e.bin"]):
        epbuild(parts, "relink", str(moved), *arguments, "--in-place")
        assert same(outputs(tmp_path, moved, {"x": 7}), before), arguments
    assert sorted(path.relative_to(moved.parent).as_posix() for path in moved.parent.rglob("*.*")) == [moved.name, "sub/e.bin"]


def test_both_partitions_of_a_model_refer_to_one_context_binary(parts: Project) -> None:
    nodes = read_header(parts.folder / "dist/split_ctx.onnx").ep_context_nodes
    assert [(node.main_context, node.reference) for node in nodes] == [(1, "split_qnn.bin"), (0, None)]
    assert [node.partition_name for node in nodes] == [node.name for node in nodes]


def test_a_shared_binary_is_renamed_for_both_models_and_never_embedded(quickstart: Project, tmp_path: Path) -> None:
    quickstart.build("epbuild.yaml", "emit:decoder/snapdragon-SM8750/*")
    folder = quickstart.folder / "dist/quickstart/decoder/snapdragon-SM8750"
    models = [str(folder / f"{name}_ctx.onnx") for name in ("prefill", "decode")]
    assert quickstart.epbuild("relink", models[0], "--binary", "x.bin", "-o", str(tmp_path / "half")).returncode == 2
    assert quickstart.epbuild("relink", *models, "--embed", "-o", str(tmp_path / "whole")).returncode == 2
    assert quickstart.epbuild("relink", *models, "--binary", "x.bin", "--in-place").returncode == 2  # a build made it
    epbuild(quickstart, "relink", *models, "--binary", "npu/decoder.bin", "-o", str(tmp_path / "moved"))
    assert (tmp_path / "moved/npu/decoder.bin").read_bytes() == (folder / "prefill_qnn.bin").read_bytes()
    for path in (tmp_path / "moved").glob("*.onnx"):
        assert [node.reference for node in read_header(path).ep_context_nodes] == ["npu/decoder.bin"]
    assert quickstart.epbuild("run", "--check", "epbuild.yaml", "emit:decoder/snapdragon-SM8750/*").returncode == 0


def test_two_merged_models_compute_the_numbers_of_the_sequence(parts: Project, tmp_path: Path) -> None:
    dist = parts.folder / "dist"
    made = tmp_path / "made/both.onnx"
    epbuild(parts, "merge", str(dist / "first_ctx.onnx"), str(dist / "second_ctx.onnx"), "-o", str(made))
    source = tmp_path / "source.onnx"
    glued = onnx.compose.merge_models(
        onnx.compose.add_prefix(onnx.load(parts.folder / "first.onnx"), "a_"),
        onnx.load(parts.folder / "second.onnx"),
        [("a_y", "y")],
    )
    onnx.save(glued, source)
    got = outputs(tmp_path, made, {"x": 7})
    expected = outputs(tmp_path, source, {"a_x": 7, "x": 7}, "CPUExecutionProvider")
    assert numpy.abs(got["z"] - expected["z"]).max() < CLOSE
    # With prefixes, every value has a different name than in its context, and each model has its own input.
    apart = tmp_path / "apart/both.onnx"
    arguments = ["-p", "a_", "-p", "b_", "-c", "first_ctx.y=second_ctx.y"]
    epbuild(parts, "merge", str(dist / "first_ctx.onnx"), str(dist / "second_ctx.onnx"), "-o", str(apart), *arguments)
    got = outputs(tmp_path, apart, {"a_x": 7, "b_x": 8})
    expected = outputs(tmp_path, source, {"a_x": 7, "x": 8}, "CPUExecutionProvider")
    assert numpy.abs(got["b_z"] - expected["z"]).max() < CLOSE


def wrap(parts: Project, folder: Path, name: str, *arguments: str) -> Path:
    """Write an EPContext model around a context binary with the script in ONNX Runtime's wheel."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.bin").write_bytes((parts.folder / f"dist/{name}_qnn.bin").read_bytes())
    header = read_header(parts.folder / f"dist/{name}_ctx.onnx")
    common = {"data_type": QNN_FLOAT_32, "dims": [ROWS, WIDTH], "quant_params": {"definition": 0, "encoding": 0}}
    ends = [*((0, value) for value in header.inputs), *((1, value) for value in header.outputs)]
    tensors = {value.name: {"id": number, "type": end, **common} for number, (end, value) in enumerate(ends)}
    (folder / f"{name}.json").write_text(json.dumps({"graph": {"tensors": tensors}}), encoding="utf-8")
    script = toolchain_python("onnxruntime-qnn==2.7.0").parents[1].glob("lib/*/site-packages/onnxruntime/tools/qnn/gen_*.py")
    command = [sys.executable, str(next(script)), "-b", f"{name}.bin", "-q", f"{name}.json", *arguments]
    subprocess.run(command, cwd=folder, check=True)
    path = folder / f"{name}_qnn_ctx.onnx"
    model = onnx.load(path)
    model.ir_version, model.opset_import[0].version = 10, 21  # the newest ones of onnx are too new for ONNX Runtime
    onnx.save(model, path)
    return path


def test_models_of_onnx_runtimes_own_script_are_read_loaded_and_merged(parts: Project, tmp_path: Path) -> None:
    first = wrap(parts, tmp_path, "first", "--disable_embed_mode")
    inspected = parts.epbuild("inspect", str(first), "--json")
    (node,) = json.loads(inspected.stdout)["ep_context_nodes"]
    assert (node["source"], node["target"]) == ("Qnn", "SC8380XP")
    python = str(toolchain_python("onnxruntime-qnn==2.7.0"))
    done = parts.epbuild("verify", str(first), "--load", "--interpreter", python, "--option", "backend_type=htp", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    found = {item["check"]: item for item in json.loads(done.stdout)["findings"]}
    assert (found["source"]["outcome"], found["load"]["outcome"]) == ("passed", "passed")
    whole, made = tmp_path / "whole.onnx", tmp_path / "made/chain.onnx"
    epbuild(parts, "relink", str(first), "--embed", "-o", str(whole))
    epbuild(parts, "merge", str(whole), str(parts.folder / "dist/second_ctx.onnx"), "-o", str(made))
    source = tmp_path / "source.onnx"
    second = onnx.compose.add_prefix(onnx.load(parts.folder / "second.onnx"), "s_")
    onnx.save(onnx.compose.merge_models(onnx.load(parts.folder / "first.onnx"), second, [("y", "s_y")]), source)
    expected = outputs(tmp_path, source, {"x": 7, "s_x": 7}, "CPUExecutionProvider")["s_z"]
    assert numpy.abs(outputs(tmp_path, made, {"x": 7})["z"] - expected).max() < CLOSE


def test_embedded_split_quantized_and_repeated_models_run_when_merged(parts: Project, tmp_path: Path) -> None:
    dist = parts.folder / "dist"
    whole = tmp_path / "quantized_whole.onnx"
    epbuild(parts, "relink", str(dist / "quantized_ctx.onnx"), "--embed", "-o", str(whole))
    made = tmp_path / "made/chain.onnx"
    models = [whole, dist / "first_ctx.onnx", dist / "first_ctx.onnx", dist / "split_ctx.onnx"]
    prefixes = [argument for number in range(4) for argument in ("-p", f"m{number}_")]
    connections = [argument for number in range(1, 4) for argument in ("-c", f"{number}.y={number + 1}.x")]
    epbuild(parts, "merge", *map(str, models), "-o", str(made), *prefixes, *connections)
    assert sorted(path.name for path in made.parent.glob("*.bin")) == ["first_qnn.bin", "split_qnn.bin"]
    seed = {"m0_x": 7}
    got = outputs(tmp_path, made, seed)["m3_y"]
    glued = onnx.compose.add_prefix(onnx.load(parts.folder / "quantized.onnx"), "m0_")
    for number, name in enumerate(("first", "first", "split"), 1):
        following = onnx.compose.add_prefix(onnx.load(parts.folder / f"{name}.onnx"), f"m{number}_")
        glued = onnx.compose.merge_models(glued, following, [(f"m{number - 1}_y", f"m{number}_x")])
    source = tmp_path / "source.onnx"
    onnx.save(glued, source)
    expected = outputs(tmp_path, source, seed, "CPUExecutionProvider")["m3_y"]
    assert numpy.abs(got - expected).max() < CLOSE
    assert numpy.abs(expected).max() > 1
