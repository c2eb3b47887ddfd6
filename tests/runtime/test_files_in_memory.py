"""`epbuild.runtime.open` with files in memory: which options sessions get, and what is refused."""

from __future__ import annotations

import json
import mmap
import sys
from pathlib import Path
from typing import Any

import pytest

from epbuild import runtime
from tests.runtime.fake_onnxruntime import Machine
from tests.runtime.test_open_group import QNN, emit, machine, refused, snapdragon

__all__ = ["machine", "snapdragon"]

CONTEXT, DATA = "ep.context_file_path", "session.model_external_initializers_file_folder_path"
LISTED = [
    {"path": "relu_qnn.bin", "role": "context-binary"},
    {"path": "relu.data", "role": "external-data"},
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = emit(tmp_path / "out", files=LISTED)
    (place / "relu_qnn.bin").touch()
    return place


def test_a_model_in_memory_finds_its_context_by_the_path_that_it_would_have(snapdragon: Machine, folder: Path) -> None:
    (folder / "relu_ctx.onnx").unlink()
    (folder / "relu.data").touch()
    with runtime.open(folder / "manifest.json", files={"relu_ctx.onnx": b"content"}):
        assert snapdragon.log == ["open content"]
    assert snapdragon.options[0].entries == {CONTEXT: str(folder / "relu_ctx.onnx"), DATA: str(folder)}


def test_data_in_memory_is_passed_under_the_name_in_the_model(snapdragon: Machine, folder: Path) -> None:
    (folder / "content").write_bytes(b"weights")
    with (folder / "content").open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        with runtime.open(folder, files={"relu.data": mapped, "relu_ctx.onnx": memoryview(b"content")}):
            pass
        with runtime.open(folder, files={"relu.data": mapped}):
            pass
    assert [options.data for options in snapdragon.options] == [{"relu.data": b"weights"}] * 2
    assert [options.entries for options in snapdragon.options] == [{CONTEXT: str(folder / "relu_ctx.onnx")}, {}]


def test_data_in_a_shared_asset_is_found_on_disk_and_in_memory(snapdragon: Machine, tmp_path: Path) -> None:
    asset = f"shared_assets/sha256-{'0' * 64}"
    listed = {"path": "relu.data", "role": "external-data", "shared": f"../{asset}/relu.data"}
    model = emit(tmp_path / "phone", files=[listed]) / "relu_ctx.onnx"
    with runtime.open(tmp_path, files={f"{asset}/relu.data": b"weights"}):
        pass
    (tmp_path / asset).mkdir(parents=True)
    (tmp_path / asset / "relu.data").touch()
    assert "is not in a model package" in refused(model.parent, code="EPB632")
    (tmp_path / "manifest.json").write_text("{}", encoding="utf-8")
    with runtime.open(model.parent):
        pass
    assert [options.data for options in snapdragon.options] == [{"relu.data": b"weights"}, {}]
    assert [options.entries for options in snapdragon.options] == [
        {CONTEXT: str(model)},
        {CONTEXT: str(model), DATA: str(tmp_path / asset)},
    ]


@pytest.mark.skipif(sys.platform == "win32", reason="making links takes a privilege on Windows")
def test_a_package_can_be_reached_through_a_link_but_its_assets_are_no_links(snapdragon: Machine, tmp_path: Path) -> None:
    asset = tmp_path / "package" / "shared_assets" / f"sha256-{'0' * 64}"
    files = [{"path": "a.data", "role": "external-data", "shared": f"../../shared_assets/{asset.name}/a.data"}]
    models = [{"name": "a", "file": "a_ctx.onnx"}, {"name": "b", "file": "b_ctx.onnx", "compiled": False}]
    folder = emit(tmp_path / "package" / "all" / "phone", "phone", "a", "b", files=files, models=models)
    asset.mkdir(parents=True)
    (asset / "a.data").touch()
    (tmp_path / "package" / "manifest.json").write_text("{}", encoding="utf-8")
    link = tmp_path / "current"
    link.symlink_to(folder)
    with runtime.open(link):
        pass
    # The data of the uncompiled model is beside it.
    assert [options.entries for options in snapdragon.options] == [{CONTEXT: str(link / "a_ctx.onnx"), DATA: str(asset)}, {}]
    asset.rename(tmp_path / "elsewhere")
    asset.symlink_to(tmp_path / "elsewhere")
    assert "is a link" in refused(folder, code="EPB632")


def test_the_manifests_of_all_variants_may_be_in_memory(snapdragon: Machine, tmp_path: Path) -> None:
    files: dict[str, Any] = {}
    for name in ("a", "b"):
        place = emit(tmp_path / name, name)
        files |= {f"{name}/{path.name}": path.read_bytes() or name.encode() for path in place.iterdir()}
    with runtime.open("nowhere", target="b", files=files) as group:
        assert (group.variant.target, snapdragon.log) == ("b", ["open b"])


def test_a_context_binary_in_memory_alone_is_refused_with_the_remedy(snapdragon: Machine, folder: Path) -> None:
    (folder / "relu_qnn.bin").unlink()
    text = refused(folder, files={"relu_qnn.bin": b"x", "relu.data": b""}, code="EPB634")
    assert "only in memory, but EPs read it from a file; write it there, or embed it" in text


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ([("a", b"")], "files must be a mapping"),
        ({"/a.onnx": b""}, "files must have relative paths without '..', not '/a.onnx'"),
        ({"b/../../a.onnx": b""}, "files must have relative paths without '..'"),
        ({"..\\a.onnx": b""}, "files must have relative paths without '..'"),
        ({"C:a.onnx": b""}, "files must have relative paths"),
        ({"a.onnx": "text"}, "files must map 'a.onnx' to bytes, a memoryview or an mmap, not to str"),
    ],
)
def test_unsuitable_files_are_refused(snapdragon: Machine, folder: Path, files: Any, words: str) -> None:
    assert words in refused(folder, files=files, code="EPB654")


def test_a_damaged_manifest_in_memory_is_reported(snapdragon: Machine) -> None:
    document = json.dumps({"format": 1, "group": "g", "target": {"eps": [{"ep": QNN}]}, "models": []}).encode()
    for content in (b"{", b"\xff", document):
        assert "manifest.json" in refused("nowhere", files={"manifest.json": content}, code="EPB632")
