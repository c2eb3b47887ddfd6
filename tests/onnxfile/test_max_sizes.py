"""Sizes of spill-fill buffers: the models of a context binary get the largest one."""

from __future__ import annotations

from pathlib import Path

from epbuild.onnxfile.edit.rewrite import raise_max_sizes
from epbuild.onnxfile.read.headers import read_header
from tests.support.compiled_models import context_node, save


def sizes(path: Path) -> list[int]:
    return [node.max_size for node in read_header(path).ep_context_nodes]


def test_models_of_one_context_binary_get_the_largest_size(tmp_path: Path) -> None:
    first = save(tmp_path / "a.onnx", context_node("both.bin"), context_node("own.bin", name="own", max_size=3))
    last = save(tmp_path / "b.onnx", context_node("both.bin", max_size=70))
    before = last.read_bytes()
    (tmp_path / "c.onnx").write_bytes(b"no model")
    raise_max_sizes([first, last, tmp_path / "c.onnx", tmp_path / "missing.onnx"])
    assert (sizes(first), sizes(last)) == ([70, 3], [70])
    assert last.read_bytes() == before
