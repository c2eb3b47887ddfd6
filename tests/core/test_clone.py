"""Copies: clones if the file system supports them, and independent complete files in any case."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path

import pytest

from epbuild.core.clone import copy_file

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="clones are made on Linux")
CONTENT = bytes(range(256)) * 1000


def test_copy_is_a_separate_file_with_the_content_of_the_link_target(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(CONTENT)
    source = tmp_path / "a"
    if os.name != "nt":
        source = tmp_path / "link"
        source.symlink_to("a")
    (tmp_path / "there").write_bytes(b"something longer than nothing")
    for name in ("new", "there"):
        copy_file(source, tmp_path / name)
        assert (tmp_path / name).read_bytes() == CONTENT
        assert not (tmp_path / name).samefile(tmp_path / "a")
        assert (tmp_path / name).stat().st_nlink == 1


@linux_only
def test_file_is_cloned_if_possible(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def ioctl(destination: int, request: int, source: int) -> int:
        os.pwrite(destination, b"by clone: " + os.pread(source, 100, 0), 0)
        return 0

    monkeypatch.setattr("fcntl.ioctl", ioctl)
    (tmp_path / "a").write_bytes(b"content")
    copy_file(tmp_path / "a", tmp_path / "b")
    assert (tmp_path / "b").read_bytes() == b"by clone: content"


@linux_only
@pytest.mark.parametrize("number", [errno.EXDEV, errno.EOPNOTSUPP, errno.ENOTTY, errno.EIO])
def test_failed_clone_falls_back_to_a_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def ioctl(destination: int, request: int, source: int) -> int:
        os.pwrite(destination, b"x" * 400_000, 0)
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("fcntl.ioctl", ioctl)
    (tmp_path / "a").write_bytes(CONTENT)
    copy_file(tmp_path / "a", tmp_path / "b")
    assert (tmp_path / "b").read_bytes() == CONTENT


def test_missing_file_is_reported_and_nothing_is_written(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        copy_file(tmp_path / "a", tmp_path / "b")
    assert list(tmp_path.iterdir()) == []
