"""Merged groups: one emitted model that the real QNN EP runs with the numbers of its members in sequence."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from epbuild.onnxfile.read.headers import read_header
from tests.support.projects import Project, compiled, toolchain_python

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="the HTP emulator that runs compiled contexts comes in the Linux wheel"
)

RECIPE = """\
epbuild: 1
name: chain
toolchains:
  qnn: {packages: [onnxruntime==1.31.1, onnxruntime-qnn==2.7.0]}
models: {first: first.onnx, second: second.onnx}
targets:
  npu:
    toolchain: qnn
    ep: QNNExecutionProvider
    provider_options: {backend_type: htp, soc_model: SC8380XP}
groups:
  chain:
    models: [first, second]
    targets: [npu]
    merge: {name: chain}
  apart:
    models: [first, second]
    targets: [npu]
outputs:
  - {layout: directory, path: "dist/${group}"}
"""
MERGE = "merge: {name: chain}"
MERGED = "dist/chain/chain_ctx.onnx"
ROWS = WIDTH = 64


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """Build the group twice: merged, and as two models."""
    folder = tmp_path_factory.mktemp("chain")
    project = Project(folder / "project", folder / "cache")
    project.folder.mkdir()
    write_source(project.folder / "first.onnx", [("MatMul", "x w", "y")], ["x"], "y", seed=0)
    # Not symmetric in its inputs, so that swapped inputs give wrong numbers.
    write_source(project.folder / "second.onnx", [("MatMul", "y w", "h"), ("Sub", "h x", "z")], ["y", "x"], "z", seed=1)
    project.recipe.write_text(RECIPE, encoding="utf-8")
    project.build()
    return project


def write_source(path: Path, nodes: list[tuple[str, str, str]], inputs: list[str], output: str, seed: int) -> None:
    weights = (numpy.random.default_rng(seed).standard_normal((WIDTH, WIDTH)) / 8).astype(numpy.float32)
    ends = {name: helper.make_tensor_value_info(name, TensorProto.FLOAT, [ROWS, WIDTH]) for name in (*inputs, output)}
    made = [
        helper.make_node(operator, values.split(), [result], name=f"{operator}_{result}") for operator, values, result in nodes
    ]
    graph = helper.make_graph(
        made, path.stem, [ends[name] for name in inputs], [ends[output]], [numpy_helper.from_array(weights, "w")]
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), path)


def epbuild(project: Project, *arguments: str) -> str:
    done = project.epbuild(*arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


_RUN = """
import sys
import numpy
import epbuild.runtime

folder, chain, feeds, answer = sys.argv[1:]
values = dict(numpy.load(feeds))
with epbuild.runtime.open(folder) as group:
    for name in chain.split():
        wanted = [value.name for value in group[name].get_inputs()]
        outputs = [value.name for value in group[name].get_outputs()]
        values |= dict(zip(outputs, group[name].run(outputs, {name: values[name] for name in wanted})))
    numpy.savez(answer, models=list(group), **values)
"""


def seeded(seed: int) -> numpy.ndarray:
    return numpy.random.default_rng(seed).standard_normal((ROWS, WIDTH)).astype(numpy.float32)


def ran(project: Project, folder: str, models: str, scratch: Path, **values: int | numpy.ndarray) -> dict[str, Any]:
    """Run the models of an output in sequence in the toolchain's Python, and return their results.

    `epbuild.runtime` opens the models. A number stands for a random value with that seed.
    """
    script, feeds, answer = scratch / "run.py", scratch / "feeds.npz", scratch / "answer.npz"
    arrays: dict[str, Any] = {name: seeded(value) if isinstance(value, int) else value for name, value in values.items()}
    numpy.savez(feeds, **arrays)
    package = Path(__file__).parents[2]
    script.write_text(f"import sys; sys.path.insert(0, {str(package)!r})\n{_RUN}", encoding="utf-8")
    answer.unlink(missing_ok=True)
    done = subprocess.run(
        [toolchain_python("onnxruntime-qnn==2.7.0"), "-I", script, project.folder / folder, models, feeds, answer],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    with numpy.load(answer) as arrays:
        return dict(arrays)


def test_the_merged_model_equals_its_members_in_sequence_bit_for_bit(chain: Project, tmp_path: Path) -> None:
    output = chain.folder / "dist/chain"
    assert sorted(path.name for path in output.iterdir()) == [
        "chain_ctx.onnx",
        "first_qnn.bin",
        "manifest.json",
        "second_qnn.bin",
    ]
    merged = ran(chain, "dist/chain", "chain", tmp_path, x=7)
    apart = ran(chain, "dist/apart", "first second", tmp_path, x=7)
    assert merged["models"].tolist() == ["chain"]
    assert apart["models"].tolist() == ["first", "second"]
    assert numpy.abs(apart["z"]).max() > 1
    assert numpy.array_equal(merged["z"], apart["z"])


def test_verify_loads_and_compares_the_merged_output(chain: Project, tmp_path: Path) -> None:
    first, second = (onnx.load(chain.folder / f"{name}.onnx") for name in ("first", "second"))
    glued = onnx.compose.merge_models(onnx.compose.add_prefix(first, "a_"), second, [("a_y", "y")])
    for node in glued.graph.node:
        node.input[:] = ["x" if name == "a_x" else name for name in node.input]
    del glued.graph.input[0]
    assert [value.name for value in glued.graph.input] == ["x"]
    onnx.save(glued, tmp_path / "glued.onnx")
    said = epbuild(chain, "verify", "dist/chain", "--load", "--json")
    findings = {(finding["check"], finding["subject"]): finding["outcome"] for finding in json.loads(said)["findings"]}
    assert findings["load", "chain_ctx.onnx"] == "passed"
    assert "failed" not in findings.values()
    said = epbuild(
        chain, "verify", "dist/chain", "--numbers", "--source", f"chain={tmp_path / 'glued.onnx'}", "--atol", "0.1", "--json"
    )
    findings = {(finding["check"], finding["subject"]): finding["outcome"] for finding in json.loads(said)["findings"]}
    assert findings["numbers", "chain_ctx.onnx"] == "passed"


def test_changing_a_connection_or_prefix_only_merges_again(chain: Project, tmp_path: Path) -> None:
    before = chain.folder.joinpath(MERGED).read_bytes()
    settings = "{name: chain, connect: {first.y: second.x}, prefixes: {first: a_, second: b_}}"
    chain.edit(MERGE, f"merge: {settings}")
    try:
        plan = {step["id"]: step for step in json.loads(epbuild(chain, "plan", "--json"))["steps"]}
        assert plan["merge:chain/npu"]["kind"] == "merge"
        assert {ident for ident, step in plan.items() if step["state"] != "current"} == {
            "merge:chain/npu",
            "emit:chain/npu/directory",
        }
        events = chain.build()
        assert compiled(events) == {"merge:chain/npu"}
        said = [event["text"] for event in events if event["event"] == "step_output" and event["step"] == "merge:chain/npu"]
        assert said == ["first.y feeds second.x"]
        header = read_header(chain.folder / MERGED)
        assert [value.name for value in header.inputs] == ["a_x", "b_y"]
        merged = ran(chain, "dist/chain", "chain", tmp_path, a_x=7, b_y=8)
        first = ran(chain, "dist/apart", "first", tmp_path, x=7)["y"]
        expected = ran(chain, "dist/apart", "second", tmp_path, y=8, x=first)["z"]
        assert numpy.array_equal(merged["b_z"], expected)
    finally:
        chain.edit(f"merge: {settings}", MERGE)
        chain.build()
    assert chain.folder.joinpath(MERGED).read_bytes() == before
