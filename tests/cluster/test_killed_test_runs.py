"""Killed test runs: no process of their clusters remains."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.support.quick_builds import wait_until

ENDLESS = Path(__file__).with_name("endless_run.py")


def in_groups(groups: set[int]) -> list[int]:
    found = []
    for process in psutil.process_iter():
        try:
            if os.getpgid(process.pid) in groups and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
        except (ProcessLookupError, psutil.NoSuchProcess):
            continue
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="clusters of tests are Linux's")
def test_killed_test_run_leaves_no_cluster_process(tmp_path: Path) -> None:
    path = os.pathsep.join(sys.path)
    command = [sys.executable, str(ENDLESS), str(tmp_path / "log")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": path}) as run:
        assert run.stdout is not None
        groups = set(map(int, run.stdout.readline().split()))
        try:
            wait_until(lambda: len(in_groups(groups)) > len(groups), what="a child begins")
        finally:
            run.kill()
    wait_until(lambda: not in_groups(groups), 20, "all of them end")
