"""Comparison of trees with several artifacts: their pairs at any path, and the sizes of each file."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from epbuild.diff.difference import Comparison, compare
from epbuild.diff.sizes import SizeChange
from tests.support.compiled_models import SHARED, context_node, emitted, list_files, save

Sized = tuple[str, str, int | None, int | None]


def output(folder: Path, group: str = "decoder", target: str = "npu") -> Path:
    """Write a sharing group as epbuild emits it, for one target."""
    emitted(folder)
    path = folder / "manifest.json"
    document = json.loads(path.read_text(encoding="utf-8"))
    document["group"] = group
    document["target"]["name"] = target
    path.write_text(json.dumps(document), encoding="utf-8")
    return folder


def changes_of(found: Comparison) -> list[tuple[str, object, object]]:
    return [(item.what, item.old, item.new) for item in found.differences]


def sized(found: Comparison) -> list[Sized]:
    return [(item.kind, item.name, item.before, item.after) for item in found.sizes]


@pytest.fixture
def old(tmp_path: Path) -> Path:
    return tmp_path / "old"


@pytest.fixture
def new(tmp_path: Path) -> Path:
    return tmp_path / "new"


def test_moved_output_is_matched_by_group_and_target(old: Path, new: Path) -> None:
    output(old / "decoder/npu")
    output(old / "vision/npu", "vision")
    output(new / "decoder-npu")
    output(new / "vision-npu", "vision")
    found = compare(old, new)
    assert found.verdict == "The artifacts differ only in names."
    assert changes_of(found) == [
        ("decoder-npu: folder", "decoder/npu", "decoder-npu"),
        ("vision-npu: folder", "vision/npu", "vision-npu"),
    ]
    assert found.artifacts == ("decoder-npu/", "vision-npu/")


def test_outputs_that_swapped_folders_are_matched_with_themselves(old: Path, new: Path) -> None:
    output(old / "a", target="one")
    output(old / "b", target="two")
    output(new / "a", target="two")
    output(new / "b", target="one")
    assert {item.sense for item in compare(old, new).differences} == {"names"}
    assert {item.place for item in compare(old, new).differences} == {("folder",)}


def test_outputs_of_equal_group_and_target_are_matched_by_folder(old: Path, new: Path) -> None:
    for side in (old, new):
        output(side / "plain")
        output(side / "again")
    assert not compare(old, new).differences
    shutil.move(new / "again", new / "moved")
    assert [item.is_one_sided_artifact for item in compare(old, new).differences] == [False]
    assert changes_of(compare(old, new)) == [("moved: folder", "again", "moved")]


def test_target_renamed_in_place_is_the_same_output(old: Path, new: Path) -> None:
    output(old / "x", target="phone")
    output(old / "y", target="laptop")
    output(new / "x", target="handset")
    output(new / "y", target="laptop")
    assert changes_of(compare(old, new)) == [("x: name of the target", "phone", "handset")]


def test_output_of_only_one_side_is_reported_with_all_its_sizes(old: Path, new: Path) -> None:
    output(old / "x", target="phone")
    output(new / "x", target="phone")
    output(new / "y", target="laptop")
    found = compare(old, new)
    assert [(item.artifact, item.kind, item.is_one_sided_artifact) for item in found.differences] == [("y/", "added", True)]
    assert [item for item in found.sizes if item.artifact == "y/"] == [
        SizeChange("model", "prefill", None, (new / "y/prefill_ctx.onnx").stat().st_size, "y/"),
        SizeChange("model", "decode", None, (new / "y/decode_ctx.onnx").stat().st_size, "y/"),
        SizeChange("context binary", "llm.bin", None, len(SHARED), "y/"),
    ]


def test_shared_binary_is_counted_once_and_unchanged_sizes_are_reported(old: Path, new: Path) -> None:
    emitted(old)
    emitted(new)
    (new / "llm.bin").write_bytes(SHARED + bytes(100))
    list_files(new)
    sizes = [(new / f"{name}_ctx.onnx").stat().st_size for name in ("prefill", "decode")]
    assert sized(compare(old, new)) == [
        ("model", "prefill", sizes[0], sizes[0]),
        ("model", "decode", sizes[1], sizes[1]),
        ("context binary", "llm.bin", len(SHARED), len(SHARED) + 100),
    ]


def test_renamed_binary_is_matched_by_its_node(old: Path, new: Path) -> None:
    save(old / "m_ctx.onnx", context_node("sub/old.bin"))
    save(new / "m_ctx.onnx", context_node("new.bin"))
    (old / "sub").mkdir()
    (old / "sub/old.bin").write_bytes(bytes(10))
    (new / "new.bin").write_bytes(bytes(30))
    assert sized(compare(old, new))[1:] == [("context binary", "sub/old.bin -> new.bin", 10, 30)]


def test_names_on_both_sides_are_not_renames(old: Path, new: Path) -> None:
    for folder, order in ((old, ("a.bin", "b.bin")), (new, ("b.bin", "a.bin"))):
        for model, binary in zip(("m", "n"), order, strict=True):
            save(folder / f"{model}_ctx.onnx", context_node(binary))
        (folder / "a.bin").write_bytes(bytes(10))
        (folder / "b.bin").write_bytes(bytes(20))
    assert sized(compare(old, new))[2:] == [("context binary", "a.bin", 10, 10), ("context binary", "b.bin", 20, 20)]


def test_external_data_has_its_size_and_embedded_contexts_count_as_model(old: Path, new: Path) -> None:
    save(old / "m_ctx.onnx", context_node("m.bin"), external="w.bin", extent=(0, 16))
    (old / "m.bin").write_bytes(bytes(1000))
    (old / "w.bin").write_bytes(bytes(16))
    save(new / "m_ctx.onnx", context_node(embed_mode=1, ep_cache_context=bytes(1000)), external="w.bin", extent=(0, 16))
    (new / "w.bin").write_bytes(bytes(64))
    model, binary, data = sized(compare(old, new))
    assert model[3] is not None
    assert model[2] is not None
    assert model[3] > model[2] + 900
    assert binary == ("context binary", "m.bin", 1000, None)
    assert data == ("external data", "w.bin", 16, 64)
