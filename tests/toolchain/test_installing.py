"""Installation by uv: display of its log, and cancellation."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from epbuild.core.installer import UvListener, run_uv
from epbuild.toolchain.provision import InstallProgress, Requirements, provision


class Reports:
    def __init__(self) -> None:
        self.heard: list[tuple[str, int, int]] = []

    def installing(self, doing: str, done: int, total: int) -> None:
        self.heard.append((doing, done, total))


MIB = 1 << 20
ALL = 16 * MIB + 17 * MIB // 2


def test_install_progress_names_packages_and_reports_bytes() -> None:
    reports = Reports()
    progress = InstallProgress(reports, threading.Event())
    for line in (
        "Using CPython 3.11.7 interpreter at: env/bin/python",
        "Resolved 5 packages in 531ms",
        "Downloading numpy (16.0MiB)",
        "Downloading onnx (8.5MiB)",
        " Downloaded onnx",
        " Downloaded numpy",
        "Prepared 5 packages in 5.18s",
        "Installed 5 packages in 466ms",
        " + numpy==2.4.6",
    ):
        progress.logged(line)
    assert reports.heard == [
        ("resolved 5 packages in 531ms", 0, 0),
        ("fetching numpy", 0, 16 * MIB),
        ("fetching numpy, onnx", 0, ALL),
        ("fetching numpy", 17 * MIB // 2, ALL),
        ("downloaded numpy", ALL, ALL),
        ("prepared 5 packages in 5.18s", ALL, ALL),
        ("installed 5 packages in 466ms", ALL, ALL),
    ]


def test_long_package_lists_are_shortened() -> None:
    reports = Reports()
    progress = InstallProgress(reports, threading.Event())
    for name in "abcde":
        progress.logged(f"Downloading {name} (1.0KiB)")
    assert reports.heard[-1] == ("fetching a, b, c and 2 more", 0, 5 * 1024)


class LineRecorder(UvListener):
    def __init__(self, cancelled: threading.Event | None = None) -> None:
        super().__init__(cancelled)
        self.lines: list[str] = []

    def logged(self, line: str) -> None:
        self.lines.append(line)


def replace_uv(monkeypatch: pytest.MonkeyPatch, folder: Path, script: str) -> None:
    """Replace uv by a program with this script."""
    program = folder / "uv"
    program.write_text(f"#!{sys.executable}\n{script}", encoding="utf-8")
    program.chmod(0o755)
    monkeypatch.setattr("uv.find_uv_bin", lambda: str(program))


@pytest.mark.skipif(sys.platform == "win32", reason="a script is no program there")
def test_every_line_of_uv_is_reported_and_kept_for_messages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replace_uv(monkeypatch, tmp_path, "import sys; print('one\\ntwo', file=sys.stderr); sys.exit(3)")
    heard = LineRecorder()
    done = run_uv(["pip"], listener=heard)
    assert (done.returncode, done.stderr, heard.lines) == (3, "one\ntwo\n", ["one", "two"])
    assert run_uv(["pip"]).stderr == done.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="a script is no program there")
def test_package_builds_do_not_inherit_secrets_of_epbuild(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replace_uv(monkeypatch, tmp_path, "import os, sys; print(dict(os.environ), file=sys.stderr)")
    monkeypatch.setenv("EPBUILD_SIGNING_KEY", "tulip")
    monkeypatch.setenv("EPBUILD_REMOTE_AUTHORIZATION", "Bearer tulip")
    assert "tulip" not in run_uv(["pip"]).stderr


SLOW_UV = """
import os, sys, time
with open(LOG, "a") as log:
    print("begin", file=log, flush=True)
    if sys.argv[1] == "venv":
        os.makedirs(sys.argv[-1], exist_ok=True)
    time.sleep(0.7)
    print("end", file=log)
"""
SEVERAL = """
import threading
from concurrent.futures import ThreadPoolExecutor
from epbuild.core.installer import run_uv
barrier = threading.Barrier(4)
def run(number):
    barrier.wait()
    return run_uv(["--version"]).returncode
with ThreadPoolExecutor(4) as pool:
    print(sum(pool.map(run, range(4))))
"""


def test_several_toolchains_can_be_created_at_once() -> None:
    for _ in range(3):
        done = subprocess.run([sys.executable, "-c", SEVERAL], capture_output=True, text=True, encoding="utf-8", check=False)
        assert (done.stdout, done.stderr) == ("0\n", "")


KILLED = """
import sys
from pathlib import Path
from epbuild.toolchain.provision import Requirements, provision
import uv
uv.find_uv_bin = lambda: sys.argv[1]
provision(Requirements(("six",)), Path(sys.argv[2]), name="tools", where=None)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="a script is no program there")
def test_an_environment_is_created_again_only_after_uv_of_a_killed_build_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "log"
    replace_uv(monkeypatch, tmp_path, SLOW_UV.replace("LOG", repr(str(log))))
    build = subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path / "uv"), str(tmp_path / "home")])
    while not log.exists() or not log.read_text():
        assert build.poll() is None
        time.sleep(0.02)
    build.kill()
    build.wait()
    provision(Requirements(("six",)), tmp_path / "home", name="tools", where=None)
    assert log.read_text().split() == ["begin", "end"] * 3  # the killed `uv venv`, then `uv venv` and `uv pip install`


@pytest.mark.skipif(sys.platform == "win32", reason="a script is no program there")
def test_uv_ends_when_cancelled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replace_uv(monkeypatch, tmp_path, "import time; time.sleep(600)")
    cancelled = threading.Event()
    threading.Timer(0.3, cancelled.set).start()
    begin = time.monotonic()
    assert run_uv(["pip"], listener=LineRecorder(cancelled)).returncode != 0
    assert time.monotonic() - begin < 60
