"""Baselines: sizes and figures of an earlier release, from its report, manifests or archives."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from epbuild.archive.artifact import Artifact
from epbuild.archive.formats import FORMATS, ArchiveName, write_archive
from epbuild.core.digest import Write
from epbuild.core.errors import Problem
from epbuild.plan.baselines import Baselines
from epbuild.plan.steps import Baseline
from epbuild.recipe.model import Reference
from tests.support.fake_builds import HERE, sharing_group

PAIR = sharing_group("prefill", "decode")


def model(name: str, key: str, size: int | None) -> dict[str, Any]:
    return {"name": name, "action_key": key, **({} if size is None else {"compiled_size": size})}


def manifest(*models: dict[str, Any], **more: Any) -> bytes:
    document = {"format": 1, "group": "decoder", "target": {"name": "npu"}, "models": models, "files": []}
    return json.dumps(document | more).encode()


PACKAGE = json.dumps({"components": {}, "additional_metadata": {"epbuild": {"format": 1, "files": []}}}).encode()
SHARED = manifest(model("prefill", "k", 700), model("decode", "k", 700))


def find(path: Path) -> tuple[int | None, list[Problem]]:
    """Return the size of the pair in a release, and the problems."""
    problems: list[Problem] = []
    baselines = Baselines(path.parent, problems)
    found = baselines.find_size(PAIR, Reference(path.name, HERE))
    assert isinstance(found, Baseline)
    assert path in baselines.files
    return found.size, problems


@pytest.mark.parametrize(
    ("content", "size"),
    [
        (SHARED, 700),
        (manifest({"name": "both", "action_key": "m", "merged": [model("prefill", "k", 700), model("decode", "k", 700)]}), 700),
        (manifest(model("prefill", "k", 700)), None),
        (manifest(model("prefill", "k", 400), model("decode", "l", 300)), None),
        (manifest(model("prefill", "k", 700), model("decode", "k", 700), group="other"), None),
        (b'{"format": 1, "steps": [{"action": "share:decoder/npu", "size": 4}, {"action": "share:decoder/npu", "size": 5}]}', 9),
        (b'{"format": 1, "steps": [{"action": "share:decoder/npu", "size": 4}, {"action": "share:decoder/npu"}]}', None),
    ],
)
def test_only_models_that_were_compiled_together_are_compared(tmp_path: Path, content: bytes, size: int | None) -> None:
    (tmp_path / "release.json").write_bytes(content)
    assert find(tmp_path / "release.json") == (size, [])


def copy_data(artifact: Artifact, write: Write) -> None:
    write(memoryview(artifact.data or b""))


def write_manifests(path: Path, name: str, manifests: Sequence[tuple[str, bytes]]) -> None:
    path.parent.mkdir(exist_ok=True)
    listed = [Artifact.generated(place, "manifest", data) for place, data in manifests]
    with path.open("wb") as file:
        write_archive(cast("ArchiveName", name), listed, copy_data, file)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("of_package", [False, True])
def test_folders_and_archives_are_read(tmp_path: Path, name: str, of_package: bool) -> None:
    place = "decoder/npu/manifest.json" if of_package else "manifest.json"
    listed = [Artifact.generated(place, "manifest", SHARED), Artifact.generated("a.bin", "model", bytes(9999))]
    listed += [Artifact.generated("manifest.json", "manifest", PACKAGE)] if of_package else []
    path = tmp_path / "release" / f"out.{name}"
    path.parent.mkdir()
    with path.open("wb") as file:
        write_archive(cast("ArchiveName", name), listed, copy_data, file)
    assert find(path) == find(path.parent) == (700, [])
    unpacked = tmp_path / "dist"
    for artifact in listed:
        (unpacked / artifact.path).parent.mkdir(parents=True, exist_ok=True)
        (unpacked / artifact.path).write_bytes(artifact.data or b"")
    assert find(unpacked) == (700, [])


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (manifest(model("prefill", "k", None)), "has no sizes of compile results, because an earlier epbuild wrote it"),
        (PACKAGE, "is the manifest of a model package, which lists no models; write the folder of the package"),
        (manifest(model("prefill", "k", 7), format=2), "is not a report or manifest that this epbuild can read"),
        (
            manifest(model("prefill", "k", 7) | {"measured": {"figures": {"load_ms": 1e308}, "on": "device"}}),
            "is not a report or manifest that this epbuild can read",
        ),
        (manifest(model("prefill", "k", 1 << 62)), "is not a report or manifest that this epbuild can read"),
        (b'{"format": 1, "models": 7}', "is not a report or manifest that this epbuild can read"),
        (b"x", "is not a report or manifest that this epbuild can read"),
    ],
)
def test_a_release_without_sizes_is_refused_in_one_sentence(tmp_path: Path, content: bytes, why: str) -> None:
    (tmp_path / "release.json").write_bytes(content)
    size, [problem] = find(tmp_path / "release.json")
    assert (size, problem.code, problem.message) == (None, "EPB298", f"the baseline 'release.json' {why}")


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize(
    "manifests",
    [
        [("manifest.json", SHARED), ("manifest.json", SHARED)],
        [("a/manifest.json", SHARED), ("b/manifest.json", SHARED + b" " * (8 << 20))],
    ],
)
def test_an_archive_with_a_duplicate_or_too_large_manifest_is_refused(
    tmp_path: Path, name: str, manifests: Sequence[tuple[str, bytes]]
) -> None:
    write_manifests(tmp_path / f"r.{name}", name, manifests)
    size, [problem] = find(tmp_path / f"r.{name}")
    what = f"'r.{name}/{manifests[1][0]}', which is damaged, larger than 8 MiB or a duplicate"
    assert (size, problem.code, problem.message) == (None, "EPB298", f"the baseline 'r.{name}' contains {what}")


@pytest.mark.slow
def test_the_number_and_the_size_of_manifests_are_limited(tmp_path: Path) -> None:
    write_manifests(tmp_path / "r.zip", "zip", [(f"{number}/manifest.json", b"{}") for number in range(10_001)])
    with (tmp_path / "manifest.json").open("wb") as file:
        file.truncate((64 << 20) + 1)
    for name in ("r.zip", "manifest.json"):
        size, [problem] = find(tmp_path / name)
        assert (size, problem.code) == (None, "EPB298")
        assert problem.message.endswith("has more than 64 MiB of JSON, or more than 10,000 manifests")


def test_a_folder_with_two_releases_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "releases"
    write_manifests(folder / "v9.zip", "zip", [("manifest.json", SHARED)])
    write_manifests(folder / "copy.zip", "zip", [("manifest.json", SHARED)])
    for hidden, data in ((".git", b"{"), ("web", b'{"name": "app", "models": []}')):
        (folder / hidden).mkdir()
        (folder / hidden / "manifest.json").write_bytes(data)
    assert find(folder) == (700, [])
    write_manifests(folder / "v10.zip", "zip", [("manifest.json", SHARED.replace(b"700", b"701"))])
    size, [problem] = find(folder)
    both = "'releases/copy.zip/manifest.json' and 'releases/v10.zip/manifest.json'"
    why = f"is ambiguous: {both} have different sizes of the group 'decoder' for 'npu'"
    assert (size, problem.code, problem.message) == (None, "EPB298", f"the baseline 'releases' {why}")
