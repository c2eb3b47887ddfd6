"""`epbuild merge`: reported connections, and refused inputs."""

from __future__ import annotations

from pathlib import Path

import pytest

from epbuild.onnxfile.read.headers import read_header
from tests.cli.context_models import compiled, files
from tests.support.commands import epbuild

pytestmark = pytest.mark.slow  # each test starts the real command


def test_merge_reports_connections(tmp_path: Path) -> None:
    compiled(tmp_path / "a.onnx", "x", "y", author="one")
    compiled(tmp_path / "b.onnx", "y", "z", author="two")
    done = epbuild(tmp_path, "merge", "a.onnx", "b.onnx", "-o", "out/ab.onnx")
    assert (done.returncode, done.stderr) == (0, "")
    assert [line.replace("\\", "/") for line in done.stdout.splitlines()] == [
        "wrote    out/ab.onnx",
        "file     out/a_qnn.bin",
        "file     out/b_qnn.bin",
        "feeds    y of a.onnx -> y of b.onnx",
        "note     the metadata 'author' was left out, since the models have different values for it",
    ]
    assert sorted(files(tmp_path / "out")) == ["a_qnn.bin", "ab.onnx", "b_qnn.bin"]


def test_connections_use_names_and_prefixes_follow_the_order_of_models(tmp_path: Path) -> None:
    compiled(tmp_path / "a.onnx", "in", "out")
    compiled(tmp_path / "b.onnx", "in", "out")
    done = epbuild(tmp_path, "merge", "a.onnx", "b.onnx", "-o", "ab.onnx", "-c", "a.out=b.in", "-p", "a_", "-p", "")
    assert (done.returncode, done.stderr) == (0, "")
    header = read_header(tmp_path / "ab.onnx")
    assert ([item.name for item in header.inputs], [item.name for item in header.outputs]) == (["a_in"], ["out"])


def test_merging_unconnected_models_is_reported(tmp_path: Path) -> None:
    compiled(tmp_path / "a.onnx", "x", "y")
    compiled(tmp_path / "b.onnx", "x", "z")
    done = epbuild(tmp_path, "merge", "a.onnx", "b.onnx", "-o", "ab.onnx")
    assert "feeds    nothing: no output has the same name as an input of a later model\nshared   input x\n" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["a.onnx", "-o", "m.onnx"], "name at least two models"),
        (["a.onnx", "b.onnx"], "Missing option '--output'"),
        (["a.onnx", "b.onnx", "-o", "m.onnx", "-p", "a_"], "pass --prefix once for each of the 2 models"),
        (["a.onnx", "b.onnx", "-o", "m.onnx", "-c", "a.y"], "is not of the form MODEL.OUTPUT=MODEL.INPUT"),
        (["a.onnx", "b.onnx", "-o", "b.onnx"], "b.onnx already exists and is not overwritten"),
        (["c.onnx", "d.onnx", "-o", "m.onnx"], "OpenVINOExecutionProvider loads only 1 context per model"),
        (
            ["a.onnx", "d.onnx", "-o", "m.onnx", "-p", "", "-p", "d_"],
            "does not load a context whose inputs or outputs are renamed",
        ),
    ],
)
def test_a_refused_merge_exits_with_2_and_writes_nothing(tmp_path: Path, arguments: list[str], words: str) -> None:
    compiled(tmp_path / "a.onnx", "x", "y")
    compiled(tmp_path / "b.onnx", "y", "z")
    compiled(tmp_path / "c.onnx", "x", "y", "OpenVINOExecutionProvider")
    compiled(tmp_path / "d.onnx", "y", "z", "OpenVINOExecutionProvider")
    before = files(tmp_path)
    done = epbuild(tmp_path, "merge", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert files(tmp_path) == before
