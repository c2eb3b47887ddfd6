"""Models that real programs prepare in a toolchain of their own, compiled by the real EP."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from pathlib import Path

import jsonschema
import numpy
import onnx
import pytest
from onnx import numpy_helper

from epbuild.core.canonical import read_schema
from tests.support.projects import RECIPES, Project, compiled, emitted
from tests.support.quick_builds import PATIENCE, check_no_workers, start, wait_until, workers, write_project

PREPARED = """\
models:
  left:
    path: left.onnx
    prepare:
      - {infer_shapes: {}, toolchain: tools}
      - {run: [python, scripts/scale.py, "${in}", "${out}", 0.5], files: [scripts], toolchain: tools}
  right: right.onnx
"""
SCALE = """\
import sys

import onnx
from common import scaled

model = onnx.load(sys.argv[1])
for tensor in model.graph.initializer:
    tensor.CopyFrom(scaled(tensor, float(sys.argv[3])))
onnx.save(model, sys.argv[2])
"""
COMMON = """\
from onnx import numpy_helper


def scaled(tensor, factor):
    weights = numpy_helper.to_array(tensor)
    return numpy_helper.from_array(weights * weights.dtype.type(factor), tensor.name)
"""
INFER, SCALED, COMPILED = "prepare:left/1-infer_shapes", "prepare:left/2-run", "compile:left/npu/left"
HANGS = "import pathlib, time\npathlib.Path('begun').touch()\ntime.sleep(600)\n"


@pytest.fixture
def prepared(project: Project) -> Project:
    """Return the quick project, whose left model is prepared twice."""
    write_project(project)
    project.edit("models: {left: left.onnx, right: right.onnx}\n", PREPARED)
    project.edit("toolchains:\n", "toolchains:\n  tools: {packages: [onnx==1.19.1]}\n")
    (project.folder / "scripts").mkdir()
    write(project, "scale.py", SCALE)
    write(project, "common.py", COMMON)
    return project


def write(project: Project, name: str, text: str) -> None:
    (project.folder / "scripts" / name).write_text(text, encoding="utf-8")


def test_a_prepared_model_is_compiled_and_only_changed_steps_run_again(prepared: Project) -> None:
    prepared.edit('path: "dist/${group}"', 'path: "dist/${group}", include_source: "base/${model}.onnx", provenance: true')
    assert {INFER, SCALED, COMPILED} <= compiled(prepared.build())
    base = onnx.load(prepared.folder / "dist/left/base/left.onnx")
    [weights] = map(numpy_helper.to_array, base.graph.initializer)
    [original] = map(numpy_helper.to_array, onnx.load(prepared.folder / "left.onnx").graph.initializer)
    assert numpy.array_equal(weights, original * numpy.float32(0.5))
    manifest = json.loads((prepared.folder / "dist/left/manifest.json").read_bytes())
    jsonschema.validate(manifest, read_schema("manifest"))
    assert [step["kind"] for step in manifest["models"][0]["source"]["prepared"]["by"]] == ["infer_shapes", "run"]
    statement = (prepared.folder / "dist/left/provenance.intoto.json").read_text(encoding="utf-8")
    assert '"scripts/scale.py"' in statement
    assert prepared.epbuild("verify", "dist/left").returncode == 0
    assert "Nothing to do" in prepared.epbuild("run").stdout

    write(prepared, "common.py", f"# a comment\n{COMMON}")
    events = prepared.build()
    assert compiled(events) == {SCALED}  # and provenance names another script
    assert emitted(events) == {"emit:left/npu/directory"}

    prepared.edit("0.5", "0.25")
    assert compiled(prepared.build()) == {SCALED, COMPILED}

    write(prepared, "unused.py", "")
    assert "Nothing to do" not in prepared.epbuild("run").stdout  # a file that appears in the folder counts
    assert prepared.epbuild("run", "--check").returncode == 0


SPLIT = """\
epbuild: 1
name: split
models:
  first: &decoder
    path: tiny-llm/decoder.onnx
    input_shapes: {input_ids: [1, 8], position_ids: [1, 8], past_key_0: [1, 4, 32, 24]}
    prepare: [{split: {layers: [1], part: 0}}]
  second: {<<: *decoder, prepare: [{split: {layers: [1], part: 1}}]}
targets: {npu: {ep: qnn, soc: SM8750}}
outputs: [{layout: directory, path: "dist/${group}"}]
"""


def test_a_recipe_can_prepare_one_part_of_a_model_at_a_time(project: Project) -> None:
    project.folder.mkdir(exist_ok=True)
    shutil.copytree(RECIPES / "models/tiny-llm", project.folder / "tiny-llm")
    project.recipe.write_text(SPLIT, encoding="utf-8")
    steps = [f"prepare:{name}/1-split" for name in ("first", "second")]
    assert compiled(project.build("epbuild.yaml", *steps)) == set(steps)
    first, second = (project.epbuild("log", name).stdout for name in steps)
    connections = "cosine, sine, causal_bias, written, kept, layer_0.after_mlp"
    assert (
        f"part 0 of 2, counted from 0: 78 of 130 nodes, 553,944 bytes of weights\ncomputes for later parts: {connections}"
        in first
    )
    assert f"reads from earlier parts: {connections}" in second


@pytest.mark.parametrize(
    ("script", "code", "said"),
    [
        ("raise ValueError('the weights are upside down')", "EPB455", "ValueError: the weights are upside down"),
        ("import os; os.abort()", "EPB458" if os.name != "nt" else "EPB455", "crashed (SIGABRT)" if os.name != "nt" else "ended"),
        ("import sys; print('bad luck'); sys.exit(3)", "EPB455", "exited with status 3. It printed: bad luck"),
        ("import sys; open(sys.argv[2], 'wb').write(b'no model' * 99)", "EPB457", "incomplete or invalid ONNX file"),
        ("pass", "EPB457", "did not write out/left.onnx"),
        ("import time; print('on and on', flush=True); time.sleep(600)", "EPB453", "It printed: on and on"),
    ],
    ids=["raises", "crashes", "exits", "garbage", "nothing", "hangs"],
)
def test_a_failed_program_is_reported_with_its_last_output(prepared: Project, script: str, code: str, said: str) -> None:
    write(prepared, "scale.py", script)
    prepared.edit("files: [scripts], toolchain: tools", "files: [scripts], toolchain: tools, timeout: 6")
    done = prepared.epbuild("run", "emit:left/*")
    assert done.returncode == 1
    assert f"{SCALED}: error: 'python scripts/scale.py' " in done.stderr
    assert said in done.stderr
    assert f"[{code}]" in done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    assert not (prepared.folder / "dist/left").exists()


@pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")
@pytest.mark.parametrize("end", ["SIGINT", "SIGKILL"])
def test_a_program_ends_with_the_build(prepared: Project, end: str) -> None:
    write(prepared, "scale.py", HANGS)
    running = start(prepared, "run", "emit:left/*")
    wait_until(lambda: any((prepared.folder / ".epbuild/tmp").rglob("begun")))
    assert len(workers(prepared)) >= 2
    running.send_signal(getattr(signal, end))
    running.communicate(timeout=PATIENCE)
    assert running.returncode == (130 if end == "SIGINT" else -signal.SIGKILL)
    check_no_workers(prepared)
    write(prepared, "scale.py", SCALE)
    assert {SCALED, COMPILED} <= compiled(prepared.build("emit:left/*"))


def test_a_nondeterministic_program_is_reported(prepared: Project) -> None:
    write(prepared, "scale.py", SCALE.replace("onnx.save", "import time\nmodel.doc_string = str(time.time_ns())\nonnx.save"))
    done = prepared.epbuild("run", "emit:left/*", "--rebuild-and-compare")
    assert done.returncode == 1
    assert f"{SCALED}: error: the rebuilt left.onnx differs" in done.stderr
    assert (Path(prepared.folder) / ".epbuild/rebuilt/prepare+left+2-run/rebuilt/left.onnx").is_file()
