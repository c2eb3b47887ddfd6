"""Drafts: writers are safe while other processes publish and sweep in the same folder. Leftovers of killed writers are removed."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from epbuild.cache.drafts import Draft, Drafts, _lock
from epbuild.core.file_use import discard
from tests.cache.interrupts import interrupted
from tests.core.fake_windows import hold_open_files
from tests.support.moments import at_each_call

needs_draft_locks = pytest.mark.skipif(
    sys.platform == "win32", reason="on Windows, only the age of a draft shows that it is abandoned"
)
DAY = 24 * 3600


@pytest.fixture
def drafts(tmp_path: Path) -> Drafts:
    return Drafts(tmp_path / "tmp")


def age(path: Path, seconds: float) -> None:
    then = time.time() - seconds
    os.utime(path, (then, then))


def test_open_draft_is_not_swept_at_any_age(drafts: Drafts, tmp_path: Path) -> None:
    with drafts.new() as draft:
        draft.file.write(b"slowly")
        age(draft.path, 2 * DAY)
        Drafts(tmp_path / "tmp").sweep()
        draft.publish(tmp_path / "published")
    assert (tmp_path / "published").read_bytes() == b"slowly"


@needs_draft_locks
def test_abandoned_draft_is_swept_at_once(drafts: Drafts, tmp_path: Path) -> None:
    with drafts.new() as draft:
        name = draft.path.name
    (tmp_path / "tmp" / name).write_bytes(b"half")
    drafts.sweep()
    assert list((tmp_path / "tmp").iterdir()) == []


def test_stale_drafts_without_a_lock_are_swept_after_a_day(drafts: Drafts, tmp_path: Path) -> None:
    folder = tmp_path / "tmp"
    folder.mkdir()
    for name, seconds in (("1-abcdef", 2 * DAY), ("2-abcdef", 60)):
        (folder / name).write_bytes(b"half")
        age(folder / name, seconds)
    drafts.sweep()
    assert [path.name for path in folder.iterdir()] == ["2-abcdef"]


@pytest.mark.skipif(sys.platform == "win32", reason="imitates Windows")
def test_drafts_of_ended_processes_are_swept_on_windows(drafts: Drafts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        pass
    folder = tmp_path / "tmp"
    folder.mkdir()
    for name in (f"{process.pid}-abc.draft", f"{os.getpid()}-abc.draft", f"{process.pid}-def", "other.draft"):
        (folder / name).write_bytes(b"half")
    hold_open_files(monkeypatch)
    drafts.sweep()
    assert sorted(path.name for path in folder.iterdir()) == sorted(
        [f"{os.getpid()}-abc.draft", f"{process.pid}-def", "other.draft"]
    )


@pytest.mark.skipif(sys.platform == "win32", reason="imitates Windows")
def test_draft_is_closed_before_it_is_published_or_removed_on_windows(
    drafts: Drafts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold_open_files(monkeypatch)
    with written(drafts, tmp_path, b"data") as draft:
        draft.publish(tmp_path / "published", read_only=True)
    with written(drafts, tmp_path, b"data"):
        pass
    with pytest.raises(KeyboardInterrupt), at_each_call(_lock, interrupt), drafts.new():
        pass
    assert list((tmp_path / "tmp").iterdir()) == []


def interrupt(arguments: Mapping[str, Any]) -> None:
    raise KeyboardInterrupt


@contextmanager
def written(drafts: Drafts, folder: Path, data: bytes) -> Iterator[Draft]:
    with drafts.new() as draft:
        draft.file.write(data)
        yield draft


@contextmanager
def moved(drafts: Drafts, folder: Path, data: bytes) -> Iterator[Draft]:
    (folder / "made").write_bytes(data)
    age(folder / "made", 2 * DAY)
    with drafts.moved(folder / "made") as draft:
        assert draft is not None
        yield draft


@pytest.mark.parametrize(
    "drafted",
    [written, pytest.param(moved, marks=pytest.mark.skipif(sys.platform == "win32", reason="which moves no open file"))],
)
def test_concurrent_sweeps_remove_nothing_of_active_writers(
    drafts: Drafts, tmp_path: Path, drafted: Callable[[Drafts, Path, bytes], AbstractContextManager[Draft]]
) -> None:
    writing = threading.Event()
    writing.set()

    def sweep() -> None:
        while writing.is_set():
            drafts.sweep()

    sweeper = threading.Thread(target=sweep)
    sweeper.start()
    try:
        for number in range(100):
            with drafted(drafts, tmp_path, str(number).encode()) as draft:
                published = tmp_path / f"published {number}"  # Windows does not replace read-only files
                draft.publish(published, read_only=True)
            assert published.read_bytes() == str(number).encode()
    finally:
        writing.clear()
        sweeper.join()


@pytest.mark.skipif(sys.platform == "win32" or os.geteuid() == 0, reason="needs permissions that bind")
def test_unremovable_file_keeps_its_permissions(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "file"
    path.parent.mkdir()
    path.touch(mode=0o444)
    path.parent.chmod(0o555)
    try:
        with pytest.raises(PermissionError):
            discard(path)
    finally:
        path.parent.chmod(0o755)
    assert path.stat().st_mode & 0o777 == 0o444


@pytest.mark.gate
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(
    "drafted",
    [written, pytest.param(moved, marks=pytest.mark.skipif(sys.platform == "win32", reason="which moves no open file"))],
)
def test_interrupt_at_any_line_leaves_no_draft(
    drafts: Drafts, tmp_path: Path, drafted: Callable[[Drafts, Path, bytes], AbstractContextManager[Draft]]
) -> None:
    def work() -> None:
        with drafted(drafts, tmp_path, b"data") as draft:
            draft.publish(tmp_path / "published")

    (tmp_path / "tmp").mkdir()
    moments = 0
    for moment in interrupted(work):
        assert list((tmp_path / "tmp").iterdir()) == [], f"interrupted at line {moment}"
        moments += 1
    assert moments > 20
