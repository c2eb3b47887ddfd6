"""Outputs after a power cut: the old one or the new one, complete, whichever unsynced writes were lost.

A test watches a publication. Before each change of a name, and at the end, it takes a picture of the folder as it may be on a
disk that lost all unsynced data. Names are either all there, as journals keep them, or only the synced ones. A file has the
content of its last sync, and is empty without one. Each picture is then repaired, as the next build does it.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from epbuild.archive.artifact import Artifact
from epbuild.cache.blobs import BlobStore
from epbuild.cache.digests import Digests
from epbuild.cache.workspace import Workspace
from epbuild.core.atomic import write_new
from epbuild.core.digest import ignore_count
from epbuild.core.directory import prepare, recover_swaps, scratch_path
from epbuild.core.errors import Position
from epbuild.engine.events import NoProgress
from epbuild.output.existing import OwnedFiles
from epbuild.plan.steps import Emission
from epbuild.publish.emit import OutputWriter

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads descriptors in /proc")

CHANGES = {"os.rename", "os.link", "os.remove", "os.mkdir", "os.rmdir", "ctypes.dlopen"}
"""Audit events of changes of names. The last one precedes the exchange of two folders."""
EMIT = "emit:decoder/npu/directory"
OLD = {"model.onnx": b"old model", "deep/model.bin": b"old binary", "same.json": b"the same", "gone.json": b"gone"}
NEW = {"model.onnx": b"new model", "deep/model.bin": b"new binary", "same.json": b"the same", "more/new.bin": b"new"}
MINE = {"notes.txt": b"mine", "deep/own.txt": b"mine too"}

Names = Mapping[int, list[tuple[str, int, bool]]]
"""Entries of each folder by its inode: name, inode, and whether the entry is a folder."""


@dataclass
class Disk:
    """Synced state of the files below `root`, and the pictures of it."""

    root: Path
    contents: dict[int, bytes] = field(default_factory=dict)
    names: dict[int, list[tuple[str, int, bool]]] = field(default_factory=dict)
    pictures: list[Callable[[Path], None]] = field(default_factory=list)

    def sync(self, descriptor: int) -> None:
        """Record the content of a file or folder that is synced now."""
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        if path.is_dir():
            self.names[path.stat().st_ino] = _listed(path)
        else:
            self.contents[path.stat().st_ino] = path.read_bytes()

    def sync_all(self) -> None:
        """Treat all existing files as synced."""
        for place in (self.root, *self.root.rglob("*")):
            descriptor = os.open(place, os.O_RDONLY)
            self.sync(descriptor)
            os.close(descriptor)

    def take_pictures(self) -> None:
        """Record two possible states of the disk: with all names, and with the synced names only."""
        contents, names = dict(self.contents), dict(self.names)
        now = {place.stat().st_ino: _listed(place) for place in (self.root, *self.root.rglob("*")) if place.is_dir()}
        top = self.root.stat().st_ino
        for listed in (now, {**{inode: [] for inode in now}, **names}):
            self.pictures.append(partial(_restore, inode=top, listed=listed, contents=contents))


def _listed(folder: Path) -> list[tuple[str, int, bool]]:
    return [(entry.name, entry.inode(), entry.is_dir()) for entry in os.scandir(folder)]


def _restore(place: Path, inode: int, listed: Names, contents: Mapping[int, bytes]) -> None:
    first: dict[int, Path] = {}

    def restore(place: Path, inode: int) -> None:
        place.mkdir()
        for name, entry, is_folder in listed.get(inode, []):
            if is_folder:
                restore(place / name, entry)
            elif entry in first:
                os.link(first[entry], place / name)
            else:
                (place / name).write_bytes(contents.get(entry, b""))
                first[entry] = place / name

    restore(place, inode)


_watchers: list[Disk] = []


def _before(event: str, arguments: tuple[Any, ...]) -> None:
    if event in CHANGES and _watchers:
        disk = _watchers.pop()  # its own changes are not watched
        try:
            disk.take_pictures()
        finally:
            _watchers.append(disk)


sys.addaudithook(_before)  # permanent: such hooks cannot be removed


@contextmanager
def watched(root: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    """Watch the changes of a block below `root`."""
    disk, fsync = Disk(root), os.fsync
    disk.sync_all()

    def synced(descriptor: int) -> None:
        fsync(descriptor)
        disk.sync(descriptor)

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", synced)
        _watchers.append(disk)
        try:
            yield disk
        finally:
            _watchers.clear()
    disk.take_pictures()


def emission(path: Path) -> Emission:
    return Emission(EMIT, "directory", None, path, (), Position("epbuild.yaml", 1, 1))


def files(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def publish(tmp_path: Path) -> Iterator[Callable[[Path, Mapping[str, bytes], Mapping[str, bytes]], OwnedFiles]]:
    """Yield a function that publishes files from the store and from a draft over previous files."""
    with Workspace.open(tmp_path / "workspace") as workspace:
        store, digests = BlobStore(tmp_path / "cache"), Digests(workspace.files)

        def publish(path: Path, wanted: Mapping[str, bytes], before: Mapping[str, bytes]) -> OwnedFiles:
            written = known(digests, before)
            with prepare(path, written, EMIT) as draft, scratch_path(draft) as work:
                artifacts = []
                for number, (name, data) in enumerate(wanted.items()):  # every second one as if it came from models
                    artifact = Artifact.generated(name, "asset", data)
                    if number % 2:
                        write_new(work / name, data)
                        artifact = replace(artifact, file=work / name, data=None)
                    artifacts.append(artifact)
                OutputWriter(
                    emission(path), draft, work, store, written, NoProgress(), threading.Event(), ignore_count
                ).write_folder(artifacts)
            return written

        yield publish


def known(digests: Digests, *recorded: Mapping[str, bytes]) -> OwnedFiles:
    found: dict[str, set[str]] = {}
    for files in recorded:
        for name, data in files.items():
            found.setdefault(name, set()).add(hashlib.sha256(data).hexdigest())
    return OwnedFiles(found, digests)


@pytest.mark.parametrize("exchanges", [True, False], ids=["exchanged", "two renames"])
@pytest.mark.parametrize("before", [OLD, {}], ids=["again", "first"])
def test_power_cut_leaves_the_old_or_the_new_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, publish: Any, before: Mapping[str, bytes], exchanges: bool
) -> None:
    root = tmp_path / "disk"
    root.mkdir()
    output = root / "dist" / "decoder"
    mine = MINE if before else {}
    if before:
        publish(output, before, {})
        for name, data in mine.items():
            (output / name).write_bytes(data)
    if not exchanges:
        monkeypatch.setattr(sys, "platform", "one that exchanges nothing")
    with watched(root, monkeypatch) as disk:
        publish(output, NEW, before)
    assert files(output) == {**NEW, **mine}
    assert len(disk.pictures) > 20
    whole = [{**NEW, **mine}, {**before, **mine}]
    missing = 0
    for number, picture in enumerate(disk.pictures):
        place = tmp_path / str(number)
        picture(place)
        found = place / "dist" / "decoder"
        missing += not found.exists()
        if found.exists():
            assert files(found) in whole, f"picture {number} of {len(disk.pictures)}"
        if found.parent.is_dir():
            with Workspace.open(tmp_path / "workspace") as workspace:
                recover_swaps(found, known(Digests(workspace.files), before, NEW))
            assert [path.name for path in found.parent.iterdir()] in (["decoder"], [])
        assert (files(found) if found.exists() else {}) in whole, f"picture {number} of {len(disk.pictures)}, mended"
        shutil.rmtree(place)
    if before and exchanges:
        assert missing == 0, "there is an output at every moment"
    picture(place)
    assert files(place / "dist" / "decoder") == {**NEW, **mine}, "what was told to be done lasts"
