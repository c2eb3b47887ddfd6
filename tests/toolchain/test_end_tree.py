"""Ends of processes together with all of their descendants."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import psutil

from epbuild.toolchain.process import end_tree

PARENT = """
import pathlib, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
pathlib.Path("child").write_text(str(child.pid))
pathlib.Path("begun").touch()
child.wait()
pathlib.Path("reported").touch()
"""


def test_parent_process_ends_before_it_can_report_its_child(tmp_path: Path) -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT], cwd=tmp_path)
    while not (tmp_path / "begun").exists():
        assert parent.poll() is None
        time.sleep(0.01)
    end_tree(parent.pid)
    parent.wait(timeout=10)
    child = int((tmp_path / "child").read_text())
    while psutil.pid_exists(child) and psutil.Process(child).status() != psutil.STATUS_ZOMBIE:
        time.sleep(0.01)
    assert not (tmp_path / "reported").exists()
