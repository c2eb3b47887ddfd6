"""Locking: versions, Pythons, platforms and models stay as locked until the user requests others."""

from __future__ import annotations

import hashlib
import sysconfig
from collections.abc import Mapping
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from epbuild.commands.lock import Upgrade, make_lock, write_lock
from epbuild.core.errors import PlanError, ToolchainError
from epbuild.engine.events import EventList
from epbuild.recipe.model import ToolchainSpec
from epbuild.session.events import Fetched, ToolchainLocked, ToolchainStarted
from epbuild.session.request import Request
from epbuild.toolchain.lock import Lock, LockedEnvironment, LockedModel, LockedToolchain, Package
from epbuild.toolchain.lock_file import read_lock, render
from epbuild.toolchain.resolve import Python
from tests.support.fake_builds import RECIPE
from tests.support.fake_fetcher import FakeFetcher
from tests.support.recipe_texts import changed

COMMIT = "c" * 40
ADDRESS = f"hf://acme/tiny/decode.onnx@{COMMIT}"
REMOTE = ("decode: decode.onnx", f"decode: '{ADDRESS}'")
HERE = "linux-x86_64"
NEWEST = {"numpy": "2.5.5", "onnxruntime-qnn": "2.7.0"}


class Index:
    """Package index with the newest version of each package, unless another one is preferred."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.recipe = folder / "epbuild.yaml"
        self.pythons: list[str] = []
        self.fetcher = FakeFetcher(folder / "fetched", model_with_data())
        self.events = EventList()
        self.newest = dict(NEWEST)
        self.write_recipe()
        monkeypatch.setenv("EPBUILD_CACHE_DIR", str(folder / "cache"))
        monkeypatch.setattr(sysconfig, "get_platform", lambda: HERE)

    def write_recipe(self, *changes: tuple[str, str]) -> None:
        self.recipe.write_text(changed(RECIPE, *changes), encoding="utf-8")

    def lock(self, upgrade: Upgrade | None = None) -> Lock:
        """Lock the recipe, and return the new lock."""
        found = make_lock(Request(self.recipe), self.events, upgrade, fetcher=self.fetcher, resolver=self)
        write_lock(found)
        place = self.recipe.with_suffix(".lock")
        assert read_lock(place.read_text(encoding="utf-8"), str(place)) == found.lock
        return found.lock

    def versions(self, lock: Lock, platform: str = HERE) -> dict[str, str]:
        return {package.name: package.version for package in lock.toolchains["qnn"].platforms[platform].packages}

    def find_python(self, toolchain: ToolchainSpec) -> Python:
        return Python(toolchain.python or "cpython-3.11", ())

    def resolve_packages(
        self, toolchain: ToolchainSpec, python: Python, platform: str, preferred: Mapping[str, str]
    ) -> LockedEnvironment:
        self.pythons.append(python.name)
        versions = {name: preferred.get(name, version) for name, version in self.newest.items()}
        digests = {
            name: hashlib.sha256(f"{name} {version} {platform}".encode()).hexdigest() for name, version in versions.items()
        }
        name = python.name.replace("@", "-")
        return LockedEnvironment(name, tuple(Package(name, versions[name], (digests[name],)) for name in sorted(versions)))


def model_with_data() -> dict[str, bytes]:
    """Return the files of a model with external data."""
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4]) for name in ("x", "y")]
    weight = helper.make_tensor("w", TensorProto.FLOAT, [4], b"\0" * 16, raw=True)
    graph = helper.make_graph([helper.make_node("Add", ["x", "w"], ["y"])], "g", values[:1], values[1:], [weight])
    model = helper.make_model(graph)
    onnx.external_data_helper.convert_model_to_external_data(model, location="weights.bin", size_threshold=0)
    onnx.external_data_helper.set_external_data(model.graph.initializer[0], "weights.bin", 0, 16)
    model.graph.initializer[0].ClearField("raw_data")
    return {"decode.onnx": model.SerializeToString(), "weights.bin": b"\0" * 16}


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Index:
    return Index(tmp_path, monkeypatch)


def test_foreign_file_named_like_the_lock_is_not_overwritten(index: Index) -> None:
    place = index.recipe.with_suffix(".lock")
    place.write_text('{"nodes": {}}\n', encoding="utf-8")
    with pytest.raises(PlanError, match="this is not an epbuild lock"):
        index.lock()
    assert place.read_text(encoding="utf-8") == '{"nodes": {}}\n'


# -- Toolchains --------------------------------------------------------------------------------------------------------


def test_catalog_toolchain_is_locked_like_a_written_toolchain(index: Index) -> None:
    written = "toolchains:\n  qnn: {packages: [onnxruntime-qnn==2.7.0]}\n"
    packages = "[onnxruntime==1.31.1, onnxruntime-qnn==2.7.0]"
    index.write_recipe(("[onnxruntime-qnn==2.7.0]", packages))
    lock = index.lock()
    index.write_recipe((written, ""), ("toolchain: qnn, ", ""), ("    toolchain: qnn\n", ""))
    assert index.lock() == lock
    assert "onnxruntime-qnn" in index.versions(lock)


def test_locked_versions_stay_when_newer_versions_exist(index: Index) -> None:
    index.lock()
    index.newest["numpy"] = "2.6.0"
    assert index.versions(index.lock()) == NEWEST
    assert index.versions(index.lock(Upgrade(("numpy",))))["numpy"] == "2.6.0"
    index.newest["numpy"] = "2.7.0"
    assert index.versions(index.lock(Upgrade(everything=True)))["numpy"] == "2.7.0"


def test_new_platform_gets_the_locked_versions_of_the_others(index: Index) -> None:
    index.lock()
    index.newest["numpy"] = "2.6.0"
    packages = "packages: [onnxruntime-qnn==2.7.0]"
    index.write_recipe((packages, f"{packages}, platforms: [windows-arm64, {HERE}]"))
    lock = index.lock()
    assert index.versions(lock, "windows-arm64") == index.versions(lock) == NEWEST


def test_platform_removed_from_the_recipe_leaves_the_lock(index: Index) -> None:
    packages = "packages: [onnxruntime-qnn==2.7.0]"
    index.write_recipe((packages, f"{packages}, platforms: [windows-arm64, {HERE}]"))
    assert index.lock().toolchains["qnn"].platforms.keys() == {"windows-arm64", HERE}
    index.write_recipe((packages, f"{packages}, platforms: [{HERE}]"))
    assert index.lock().toolchains["qnn"].platforms.keys() == {HERE}


def test_unspecified_python_keeps_its_locked_version(index: Index) -> None:
    place = index.recipe.with_suffix(".lock")
    environment = LockedEnvironment("cpython-3.12", (Package("numpy", "2.0", ("a" * 64,)),))
    place.write_text(render(Lock("small", {"qnn": LockedToolchain((), {HERE: environment})})), encoding="utf-8")
    assert index.lock().toolchains["qnn"].platforms[HERE].python == "cpython-3.12"
    assert index.lock(Upgrade(everything=True)).toolchains["qnn"].platforms[HERE].python == "cpython-3.11"


def test_unknown_platform_is_refused_unless_others_are_named(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sysconfig, "get_platform", lambda: "plan9-mips")
    with pytest.raises(ToolchainError, match="EPB309"):
        index.lock()
    packages = "packages: [onnxruntime-qnn==2.7.0]"
    index.write_recipe((packages, f"{packages}, platforms: [windows-arm64]"))
    assert index.lock().toolchains["qnn"].platforms.keys() == {"windows-arm64"}


def test_progress_of_locking_is_reported(index: Index) -> None:
    index.lock()
    started = [event.text for event in index.events if isinstance(event, ToolchainStarted)]
    assert started[-1] == "resolving packages for linux-x86_64"
    [locked] = [event for event in index.events if isinstance(event, ToolchainLocked)]
    assert (locked.toolchain, locked.platforms, locked.packages) == ("qnn", (HERE,), 2)


# -- Models ------------------------------------------------------------------------------------------------------------


def test_model_pinned_only_by_commit_is_fetched_and_locked_with_its_data(index: Index) -> None:
    index.write_recipe(REMOTE)
    folder = index.recipe.parent / "fetched"
    lock = index.lock()
    digests = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}
    assert lock.models == {"decode": LockedModel(digests["decode.onnx"], {"weights.bin": digests["weights.bin"]})}
    assert Fetched("decode") in index.events
    index.lock()
    assert [address for address, _ in index.fetcher.asked] == [ADDRESS]


def test_file_that_is_not_a_model_is_not_locked(index: Index) -> None:
    index.write_recipe(REMOTE)
    index.fetcher.files["decode.onnx"] = b"<html>not found</html>"
    with pytest.raises(PlanError, match="the model 'decode' is not a complete ONNX file"):
        index.lock()


def test_pinned_model_is_not_fetched(index: Index) -> None:
    index.write_recipe((REMOTE[0], f"decode: {{path: 'https://models.example/decode.onnx', sha256: {'A' * 64}}}"))
    assert index.lock().models == {"decode": LockedModel("a" * 64)}
    assert index.fetcher.asked == []


def test_unused_model_is_neither_fetched_nor_locked(index: Index) -> None:
    index.write_recipe(
        ("decode: decode.onnx", f"decode: decode.onnx, spare: '{ADDRESS}'"), ("groups:\n", "groups:\n  default: none\n")
    )
    assert index.lock().models == {}
    assert index.fetcher.asked == []


def test_local_models_may_be_missing_when_locking(index: Index) -> None:
    assert not list(index.recipe.parent.glob("*.onnx"))
    assert index.lock().models == {}
