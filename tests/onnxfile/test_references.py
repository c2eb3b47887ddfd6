"""References to context binaries: each folder is read once, for any number of binaries."""

from __future__ import annotations

from pathlib import Path

from epbuild.onnxfile.edit.compiled import References
from epbuild.onnxfile.read.headers import read_header
from epbuild.onnxfile.read.model_header import ModelHeader
from tests.onnxfile.context_models import compiled


def test_each_header_is_read_once_for_any_number_of_binaries(tmp_path: Path) -> None:
    models = [compiled(tmp_path / f"m{number}.onnx", binary=f"b{number // 2}.bin") for number in range(8)]
    read: list[Path] = []

    def reading(path: Path) -> ModelHeader:
        read.append(path)
        return read_header(path)

    references = References(reading)
    users = [list(references.find_users(tmp_path / f"b{number}.bin", tmp_path)) for number in range(4)]
    assert users == [models[start : start + 2] for start in range(0, 8, 2)]
    assert sorted(read) == models


def test_folder_between_models_and_binary_may_hold_other_users(tmp_path: Path) -> None:
    outer = compiled(tmp_path / "m.onnx", binary="sub/b.bin")
    inner = compiled(tmp_path / "sub/n.onnx", binary="b.bin")
    (tmp_path / "sub/broken.onnx").write_bytes(b"broken")
    references = References()
    assert list(references.find_users(tmp_path / "sub/b.bin", tmp_path)) == [inner, outer]
    assert list(references.find_unreadable(tmp_path / "sub/b.bin", tmp_path)) == [tmp_path / "sub/broken.onnx"]
    assert list(references.find_unreadable(tmp_path / "c.bin", tmp_path)) == []
