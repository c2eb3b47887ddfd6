"""Files of epbuild itself, by which a memo and a snapshot know that another epbuild wrote them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from epbuild.core import own_files


@pytest.mark.skipif(os.name == "nt", reason="most users on Windows may not make links")
def test_a_lock_file_of_an_editor_is_no_file_of_epbuild(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "epbuild" / "core"
    folder.mkdir(parents=True)
    (folder / "own_files.py").touch()
    (folder / ".#own_files.py").symlink_to("user@machine.1")
    monkeypatch.setattr(own_files, "__file__", str(folder / "own_files.py"))
    assert own_files.own_files.__wrapped__() == [str(folder / "own_files.py")]
