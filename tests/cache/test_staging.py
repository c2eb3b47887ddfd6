"""Staging directories of killed builds: they are removed, whenever the build was killed, and used ones stay."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import pytest

from epbuild.cache.staging import staged, sweep
from tests.cache.interrupts import interrupted
from tests.core.fake_windows import hold_open_files


@pytest.mark.skipif(sys.platform == "win32", reason="imitates Windows")
def test_files_left_open_by_interrupted_work_are_removed_on_windows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def work(directory: Path) -> None:
        file = (directory / "half.bin").open("wb")
        file.write(b"half")
        raise KeyboardInterrupt

    hold_open_files(monkeypatch)
    with pytest.raises(KeyboardInterrupt), staged(tmp_path, "action") as directory:
        work(directory)
    assert list(tmp_path.iterdir()) == []


def test_lock_without_its_directory_is_removed(tmp_path: Path) -> None:
    (tmp_path / "action-1-abcd.lock").touch()
    sweep(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_directory_without_its_lock_is_removed(tmp_path: Path) -> None:
    (tmp_path / "action-1-abcd" / "out").mkdir(parents=True)
    sweep(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_staging_in_use_survives_concurrent_sweeps(tmp_path: Path) -> None:
    working = threading.Event()
    working.set()

    def sweep_all_the_time() -> None:
        while working.is_set():
            sweep(tmp_path)

    sweeper = threading.Thread(target=sweep_all_the_time)
    sweeper.start()
    try:
        for _ in range(50):
            with staged(tmp_path, "action") as directory:
                (directory / "half.bin").write_bytes(b"half")
                assert [path.name for path in directory.iterdir()] == ["half.bin"]
    finally:
        working.clear()
        sweeper.join()
    sweep(tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.gate
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_interrupt_at_any_line_leaves_no_staging(tmp_path: Path) -> None:
    def work() -> None:
        with staged(tmp_path, "action") as directory:
            (directory / "out").mkdir()
            (directory / "out" / "half.bin").write_bytes(b"half")

    moments = 0
    for moment in interrupted(work):
        assert list(tmp_path.iterdir()) == [], f"interrupted at line {moment}"
        moments += 1
    assert moments > 50
