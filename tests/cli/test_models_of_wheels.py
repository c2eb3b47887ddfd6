"""Models in wheels of Python packages.

The release and the path in the wheel identify a model. It is fetched once, from the index that uv is configured for.
"""

from __future__ import annotations

import hashlib
import sys
import threading
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from epbuild.cache.blobs import BlobStore
from epbuild.cache.garbage import Garbage, Needs
from epbuild.core.errors import EpbuildError, PlanError
from epbuild.fetch.models import Pins, fetch_model
from epbuild.fetch.partial import FetchError
from epbuild.fetch.wheels import find_wheel_digests
from epbuild.recipe.address import PackageAddress
from tests.support.fake_fetcher import Arrivals
from tests.support.packages import write_wheel

FOREIGN = "macosx_14_0_arm64" if sys.platform != "darwin" else "win_amd64"
RELEASE = "my-models==1.0"
ADDRESS = PackageAddress("my-models", "1.0", "onnx/det.onnx")
MODEL = b"a model"
FILES = {"my_models/onnx/det.onnx": MODEL, "my_models/onnx/det.data": b"weights", "my_models/onnx/rec.onnx": b"another"}


class Index:
    """A folder of wheels as the only index of uv, and a store to fetch into."""

    def __init__(self, folder: Path) -> None:
        self.wheels = folder / "wheels"
        self.store = BlobStore(folder / "cache")

    def has(self, version: str = "1.0", files: dict[str, bytes] = FILES, tag: str = "py3-none-any") -> Path:
        return write_wheel(self.wheels, "my-models", version, "numpy", files=files, tag=tag)

    def fetch(self, address: str, wheels: Mapping[str, Sequence[str]] | None = None) -> Path:
        return fetch_model(address, Pins(wheels=wheels or {}), self.store, progress=Arrivals(), cancelled=threading.Event()).graph

    def refusal(
        self, address: str, kind: type[EpbuildError], code: str, wheels: Mapping[str, Sequence[str]] | None = None
    ) -> str:
        with pytest.raises(kind) as refused:
            self.fetch(address, wheels)
        (problem,) = refused.value.problems
        assert problem.code == code
        assert [path.name for path in (self.store.root / "remote").glob("*.part")] == []
        return problem.text


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Index:
    found = Index(tmp_path)
    found.wheels.mkdir()
    monkeypatch.setenv("UV_OFFLINE", "1")
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv"))
    monkeypatch.setenv("UV_FIND_LINKS", str(found.wheels))
    return found


@pytest.mark.parametrize("file", ["my_models/onnx/det.onnx", "onnx/det.onnx"])
def test_a_file_is_named_from_the_root_of_its_wheel_or_of_its_package(index: Index, file: str) -> None:
    index.has()
    graph = index.fetch(f"package:My_Models==1.0/{file}")
    assert graph.read_bytes() == MODEL
    assert (graph.parent / "det.data").read_bytes() == b"weights"
    assert not graph.stat().st_mode & 0o222


def test_all_models_of_one_wheel_need_one_fetch(index: Index) -> None:
    wheel = index.has()
    det = index.fetch("package:my-models==1.0/onnx/det.onnx")
    wheel.unlink()
    rec = index.fetch("package:my-models==1.0/onnx/rec.onnx")
    assert rec.parent == det.parent
    assert sorted(path.name for path in (index.store.root / "remote").iterdir()) == [det.parents[2].name]


def test_each_release_is_stored_separately(index: Index) -> None:
    index.has()
    index.has("1.1", {"my_models/onnx/det.onnx": b"newer"})
    assert index.fetch("package:my-models==1.1/onnx/det.onnx").read_bytes() == b"newer"
    assert index.fetch("package:my-models==1.0/onnx/det.onnx").read_bytes() == MODEL


def test_concurrent_builds_find_a_complete_wheel(index: Index) -> None:
    index.has()
    found: list[Path] = []
    threads = [
        threading.Thread(target=lambda: found.append(index.fetch("package:my-models==1.0/onnx/det.onnx"))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    assert len(set(found)) == 1


def test_remains_of_a_killed_fetch_are_replaced(index: Index) -> None:
    index.has()
    folder = index.fetch("package:my-models==1.0/onnx/det.onnx").parents[2]
    folder.rename(folder.with_suffix(".part"))
    model = folder.with_suffix(".part") / "my_models/onnx/det.onnx"
    model.chmod(0o644)  # Windows does not remove read-only files
    model.unlink()
    assert index.fetch("package:my-models==1.0/onnx/det.onnx").read_bytes() == MODEL
    assert list(folder.parent.iterdir()) == [folder]


class NoUsers:
    """Users of the store when no build uses it."""

    def needs(self) -> Needs:
        return Needs()

    def models(self) -> frozenset[str]:
        return frozenset()

    def blobs_of(self, record: Mapping[str, Any], /) -> Iterable[str]:
        return ()


def test_gc_collects_wheels_and_partial_wheels(index: Index) -> None:
    index.has()
    folder = index.fetch("package:my-models==1.0/onnx/det.onnx").parents[2]
    (left := folder.with_name("0" * 64 + ".part") / "my_models").mkdir(parents=True)
    (left / "half.onnx").write_bytes(b"half")
    garbage = Garbage(index.store.root)
    things = {thing.name: thing for thing in garbage.entries()}
    assert things[f"remote/{left.parent.name}"].size == 4
    assert things[f"remote/{folder.name}"].size > sum(map(len, FILES.values()))
    models = [thing for thing in things.values() if thing.kind == "remote model"]
    assert garbage.remove_models(models, NoUsers()) == {model.name for model in models}
    assert all(garbage.remove(thing) for thing in things.values() if thing not in models)
    assert list(folder.parent.iterdir()) == []


def test_a_wheel_for_another_python_is_accepted(index: Index) -> None:
    index.has(tag="cp39-none-any")
    assert index.fetch("package:my-models==1.0/onnx/det.onnx").read_bytes() == MODEL


def test_a_missing_file_of_a_wheel_is_reported_with_the_existing_files(index: Index) -> None:
    index.has()
    text = index.refusal("package:my-models==1.0/onnx/dett.onnx", PlanError, "EPB295")
    assert "the wheel of my-models==1.0 has no file onnx/dett.onnx." in text
    assert "The wheel contains my_models/onnx/det.onnx, my_models/onnx/rec.onnx." in text


def test_the_nearest_of_many_files_are_named(index: Index) -> None:
    index.has(files={f"my_models/{name}.onnx": MODEL for name in ("det_v1", "det_v2", "rec", "cls", "encoder", "decoder")})
    text = index.refusal("package:my-models==1.0/det.onnx", PlanError, "EPB295")
    assert "my_models/det_v1.onnx" in text
    assert "my_models/encoder.onnx" not in text


def test_a_wheel_without_models_is_reported(index: Index) -> None:
    index.has(files={})
    text = index.refusal("package:my-models==1.0/onnx/det.onnx", PlanError, "EPB295")
    assert "no files of this type" in text


def test_an_ambiguous_path_is_refused_and_a_full_path_is_accepted(index: Index) -> None:
    index.has(files={"one/m.onnx": MODEL, "two/m.onnx": b"other"})
    text = index.refusal("package:my-models==1.0/m.onnx", PlanError, "EPB296")
    assert "one/m.onnx, two/m.onnx" in text
    assert index.fetch("package:my-models==1.0/one/m.onnx").read_bytes() == MODEL


def test_a_missing_release_is_reported(index: Index) -> None:
    index.has()
    assert "the package index has no version 2.0 of my-models" in index.refusal(
        "package:my-models==2.0/m.onnx", FetchError, "EPB320"
    )


def test_a_wheel_for_another_platform_is_refused_with_the_platforms_name(index: Index) -> None:
    index.has(tag=f"py3-none-{FOREIGN}")
    text = index.refusal("package:my-models==1.0/onnx/det.onnx", FetchError, "EPB320")
    assert "no wheel for this platform" in text
    assert FOREIGN in text


def test_source_distributions_are_never_built(index: Index, tmp_path: Path) -> None:
    import io
    import tarfile

    setup = f"open({str(tmp_path / 'ran')!r}, 'w').close()".encode()
    with tarfile.open(index.wheels / "my_models-1.0.tar.gz", "w:gz") as sources:
        for name, data in {"setup.py": setup, "PKG-INFO": b"Metadata-Version: 2.1\nName: my-models\nVersion: 1.0\n"}.items():
            entry = tarfile.TarInfo(f"my_models-1.0/{name}")
            entry.size = len(data)
            sources.addfile(entry, io.BytesIO(data))
    text = index.refusal("package:my-models==1.0/onnx/det.onnx", FetchError, "EPB320")
    assert "it has only a source distribution and no wheel" in text
    assert not (tmp_path / "ran").exists()


def test_an_unreachable_package_index_is_reported(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("UV_OFFLINE")
    monkeypatch.setenv("UV_DEFAULT_INDEX", "https://127.0.0.1:9/simple")
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    text = index.refusal("package:my-models==1.0/onnx/det.onnx", FetchError, "EPB320")
    assert "the package index cannot be reached" in text
    assert "Check the network" in text


# -- Locked wheels ------------------------------------------------------------------------------------------------------


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_a_release_is_locked_with_its_wheels_for_all_platforms_and_pythons(index: Index) -> None:
    wheels = [index.has(tag=tag) for tag in (f"py3-none-{FOREIGN}", "cp39-none-any", "cp313-cp313-win_arm64")]
    assert find_wheel_digests(ADDRESS) == tuple(sorted(map(digest, wheels)))


def test_a_missing_release_cannot_be_locked(index: Index) -> None:
    index.has()
    with pytest.raises(FetchError, match=r"the package index has no version 2\.0 of my-models"):
        find_wheel_digests(PackageAddress("my-models", "2.0", "m.onnx"))


@pytest.mark.parametrize("tag", ["py3-none-any", "cp39-none-any"])
def test_a_locked_wheel_is_fetched(index: Index, tag: str) -> None:
    index.has(tag=tag)
    assert index.fetch(ADDRESS.text, {RELEASE: find_wheel_digests(ADDRESS)}).read_bytes() == MODEL


@pytest.mark.parametrize("tag", ["py3-none-any", "cp39-none-any"])
def test_a_wheel_with_other_bytes_is_refused_before_unpacking(index: Index, tag: str) -> None:
    locked = {RELEASE: [digest(index.has(tag=tag))]}
    found = digest(index.has(files={**FILES, "my_models/onnx/det.onnx": b"other"}, tag=tag))
    text = index.refusal(ADDRESS.text, FetchError, "EPB321", locked)
    assert f"is not in the lock and was not unpacked: its sha256 is {found}." in text
    assert "`epbuild lock --upgrade-package my-models`" in text
    assert list((index.store.root / "remote").iterdir()) == []


def test_an_unchecked_wheel_is_fetched_again_only_for_locking(index: Index) -> None:
    locked = {RELEASE: [digest(index.has())]}
    unchecked = index.fetch(ADDRESS.text)
    assert index.fetch(ADDRESS.text, locked) == unchecked
    checked = fetch_model(
        ADDRESS.text, Pins(wheels=locked, only_checked=True), index.store, progress=Arrivals(), cancelled=threading.Event()
    ).graph
    assert checked != unchecked
    assert checked.read_bytes() == MODEL
    assert index.fetch(ADDRESS.text, locked) == checked


def test_only_locked_releases_are_checked(index: Index) -> None:
    index.has()
    assert index.fetch(ADDRESS.text, {"others==1.0": ["0" * 64]}).read_bytes() == MODEL
