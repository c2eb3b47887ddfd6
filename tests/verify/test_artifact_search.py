"""Paths for `epbuild verify`: a folder of outputs, one output, a manifest or a model, and ignored files."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import pytest

from epbuild.core.errors import NothingToVerify
from epbuild.verify.artifact import ArtifactFolder, find_artifacts
from epbuild.verify.static import check_artifact
from tests.support.compiled_models import context_node, emitted, list_files, relu, save

needs_links = pytest.mark.skipif(sys.platform == "win32", reason="making links takes a privilege on Windows")


def places(path: Path) -> dict[str, list[str]]:
    return {artifact.place: [model.file for model in artifact.models] for artifact in find_artifacts(path)}


def outcomes(path: Path) -> set[tuple[str, str, str]]:
    return {(f.check, f.subject, f.outcome) for artifact in find_artifacts(path) for f in check_artifact(artifact)}


def test_every_output_below_a_folder_is_found_with_its_manifest(tmp_path: Path) -> None:
    emitted(tmp_path / "b" / "npu")
    emitted(tmp_path / "a")
    models = ["prefill_ctx.onnx", "decode_ctx.onnx"]
    assert places(tmp_path) == {"a/": models, "b/npu/": models}
    assert ("digests", "b/npu/llm.bin", "passed") in outcomes(tmp_path)
    assert ("sharing", "b/npu/", "passed") in outcomes(tmp_path)


def test_models_without_a_manifest_are_found_by_folder(tmp_path: Path) -> None:
    emitted(tmp_path / "a")
    save(tmp_path / "m_ctx.onnx", context_node())
    save(tmp_path / "c" / "n_ctx.onnx", context_node())
    assert {place: len(models) for place, models in places(tmp_path).items()} == {"": 1, "a/": 2, "c/": 1}


def test_an_output_inside_another_output_is_checked_once(tmp_path: Path) -> None:
    emitted(tmp_path)
    emitted(tmp_path / "inner")
    assert not [row for row in outcomes(tmp_path) if row[2] != "passed"]
    (tmp_path / "other").mkdir()
    save(tmp_path / "other" / "m.onnx", relu())
    assert [row for row in outcomes(tmp_path) if row[2] != "passed"] == [("files", "other/m.onnx", "skipped")]


def test_hidden_folders_are_skipped(tmp_path: Path) -> None:
    emitted(tmp_path / "dist")
    emitted(tmp_path / ".dist.epbuild-0123")
    assert list(places(tmp_path)) == ["dist/"]


@needs_links
def test_a_link_to_another_folder_is_not_entered(tmp_path: Path) -> None:
    emitted(tmp_path / "elsewhere")
    emitted(tmp_path / "dist" / "a")
    (tmp_path / "dist" / "b").symlink_to(tmp_path / "elsewhere")
    assert list(places(tmp_path / "dist")) == ["a/"]


@needs_links
def test_a_manifest_that_links_outside_the_artifact_is_refused_unread(tmp_path: Path) -> None:
    folder = emitted(tmp_path / "dist")
    (folder / "manifest.json").rename(tmp_path / "manifest.json")
    (folder / "manifest.json").symlink_to(tmp_path / "manifest.json")
    [artifact] = find_artifacts(folder)
    assert artifact.manifest is None
    assert artifact.flaw is not None
    assert "is a link to a path outside" in artifact.flaw


@needs_links
def test_a_model_named_by_the_user_can_be_a_link(tmp_path: Path) -> None:
    save(tmp_path / "store" / "0123", context_node(None, embed_mode=1, ep_cache_context=b"context"))
    (tmp_path / "m.onnx").symlink_to(tmp_path / "store" / "0123")
    assert ("model", "m.onnx", "passed") in outcomes(tmp_path / "m.onnx")


@pytest.mark.parametrize("name", ["gone", "gone.onnx", "empty", "README.json"])
def test_a_path_with_nothing_to_verify_is_a_usage_error(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "README.json").write_text("{}", encoding="utf-8")
    with pytest.raises(NothingToVerify) as refused:
        find_artifacts(tmp_path / name)
    assert refused.value.exit_code == 2
    assert [problem.code for problem in refused.value.problems] == ["EPB600"]


def test_a_folder_of_only_source_models_fails(tmp_path: Path) -> None:
    save(tmp_path / "m.onnx", relu())
    assert ("model", ".", "failed") in outcomes(tmp_path)
    assert ("model", "m.onnx", "failed") in outcomes(tmp_path / "m.onnx")


def test_source_models_beside_compiled_models_are_skipped_and_reported(tmp_path: Path) -> None:
    save(tmp_path / "m.onnx", relu())
    (tmp_path / "llm.bin").write_bytes(b"context")
    save(tmp_path / "m_ctx.onnx", context_node())
    assert {row for row in outcomes(tmp_path) if row[0] == "model"} == {
        ("model", "m.onnx", "skipped"),
        ("model", "m_ctx.onnx", "passed"),
    }
    assert not [row for row in outcomes(tmp_path) if row[2] == "failed"]


def test_a_manifest_of_another_program_is_ignored(tmp_path: Path) -> None:
    save(tmp_path / "m_ctx.onnx", context_node())
    (tmp_path / "manifest.json").write_text('{"schema_version": "1.0", "components": {}}', encoding="utf-8")
    [artifact] = find_artifacts(tmp_path)
    assert not artifact.has_manifest
    with pytest.raises(NothingToVerify):
        find_artifacts(tmp_path / "manifest.json")


def broken(path: Path, change: Any) -> ArtifactFolder:
    folder = emitted(path)
    document = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    changed = change(document)
    (folder / "manifest.json").write_text(changed if isinstance(changed, str) else json.dumps(document), encoding="utf-8")
    [artifact] = find_artifacts(folder)
    return artifact


ASSET = f"../shared_assets/sha256-{'0' * 64}"
BROKEN: dict[str, tuple[Any, str]] = {
    "no JSON": (lambda _: "{", "it is not JSON"),
    "nested without end": (lambda _: "[" * 200_000, "it is not JSON"),
    "a number that is not finite": (lambda document: document.update(surprise=math.inf), "not finite"),
    "larger than any": (lambda _: '{"format": 1, "x": "' + "x" * (65 << 20) + '"}', "too large for a manifest"),
    "a newer format": (
        lambda document: document.update(format=2),
        "its format is 2, but this version of epbuild supports only 1",
    ),
    "no models": (lambda document: document.update(models=[]), "$.models"),
    "files of another kind": (lambda document: document.update(files={"a": 1}), "$.files"),
    "a size as text": (lambda document: document["files"][0].update(size="1"), "$.files[0].size"),
    "a path upwards": (lambda document: document["files"][0].update(path="../x"), "outside its folder"),
    "an absolute path": (lambda document: document["files"][0].update(path="/etc/hostname"), "outside its folder"),
    "a file outside shared assets": (lambda document: document["files"][0].update(shared="../x"), "$.files[0].shared"),
    "a shared model": (lambda document: document["files"][0].update(shared=f"{ASSET}/x"), "that is not external data"),
    "a shared file of another name": (
        lambda document: document["files"][0].update(role="external-data", shared=f"{ASSET}/x"),
        "another name in its shared asset",
    ),
    "a way out of a shared asset": (lambda document: document["files"][0].update(shared=f"{ASSET}/../x"), "outside its folder"),
    "a model missing from the files": (lambda document: document["models"][0].update(file="x.onnx"), "but not its file"),
    "a signature of another kind": (
        lambda document: document["models"][0]["source"].update(inputs=[1]),
        "$.models[0].source.inputs[0]",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_an_unusable_manifest_is_one_failure_with_its_reason(tmp_path: Path, name: str) -> None:
    change, words = BROKEN[name]
    artifact = broken(tmp_path, change)
    assert artifact.flaw is not None
    assert words in artifact.flaw
    failed = [finding for finding in check_artifact(artifact) if finding.outcome == "failed"]
    assert [(finding.check, finding.subject, finding.code) for finding in failed] == [("manifest", "manifest.json", "EPB612")]
    assert len(failed[0].message) < 400


@needs_links
def test_a_shared_asset_outside_the_package_is_refused_unread(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "w.data").write_bytes(b"secret")
    listed = {"path": "w.data", "role": "external-data", "size": 6, "sha256": "0" * 64, "shared": f"{ASSET}/w.data"}
    asset = tmp_path / "package" / ASSET.removeprefix("../")
    asset.parent.mkdir(parents=True)
    asset.symlink_to(secret)

    def share_data(document: Any) -> None:
        document["files"].append(listed)
        document["models"][1]["compiled"] = False

    artifact = broken(tmp_path / "package" / "a", share_data)
    assert "is a link" in str(artifact.flaw)
    asset.unlink()
    secret.rename(asset)
    [artifact] = find_artifacts(artifact.folder)
    assert "is not in a model package" in str(artifact.flaw)
    (tmp_path / "package" / "manifest.json").write_text("{}", encoding="utf-8")
    [artifact] = find_artifacts(artifact.folder)
    assert artifact.flaw is None
    # The data of an uncompiled model is beside it.
    assert [model.shared_data for model in artifact.models] == [artifact.folder / ASSET, None]


def test_models_beside_a_broken_manifest_are_still_checked(tmp_path: Path) -> None:
    artifact = broken(tmp_path, lambda _: "{")
    assert {model.file for model in artifact.models} == {"prefill_ctx.onnx", "decode_ctx.onnx"}
    assert any(finding.check == "references" for finding in check_artifact(artifact))


def test_unknown_keys_in_a_manifest_are_ignored(tmp_path: Path) -> None:
    artifact = broken(tmp_path, lambda document: document["models"][0]["source"].update(surprise=1))
    assert artifact.manifest is not None


def test_the_last_of_two_manifest_entries_for_a_file_counts(tmp_path: Path) -> None:
    emitted(tmp_path)
    list_files(tmp_path)
    document = json.loads((tmp_path / "manifest.json").read_text(encoding="utf-8"))
    document["files"] += [{**document["files"][0], "size": 1}]
    (tmp_path / "manifest.json").write_text(json.dumps(document), encoding="utf-8")
    assert ("digests", document["files"][0]["path"], "failed") in outcomes(tmp_path)
