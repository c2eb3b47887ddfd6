"""Files of epbuild itself, by which a memo and a snapshot detect another version of epbuild."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from epbuild.core.own_files import list_program_files


@pytest.mark.skipif(os.name == "nt", reason="most users on Windows may not make links")
def test_editor_lock_file_is_not_a_file_of_epbuild(tmp_path: Path) -> None:
    (tmp_path / "core").mkdir()
    (tmp_path / "core" / "own_files.py").touch()
    (tmp_path / "core" / ".#own_files.py").symlink_to("user@machine.1")
    assert list_program_files([str(tmp_path)]) == [str(tmp_path / "core" / "own_files.py")]
