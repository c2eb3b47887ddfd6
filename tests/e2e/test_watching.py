"""`epbuild run --watch` as a process: errors, builds, Ctrl-C, and the files for CI of each build."""

from __future__ import annotations

import json
import queue
import signal
import subprocess
import sys
import threading
import xml.etree.ElementTree as ET
from collections.abc import Iterator

import pytest

from tests.support.projects import Project

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="a console is needed to send Ctrl-C")

MOST_SECONDS = 240


class Watching:
    """A running `--watch` process, and the lines of both its streams."""

    def __init__(self, project: Project, *arguments: str) -> None:
        command, environment = project.command("run", "--watch", *arguments)
        self.process = subprocess.Popen(
            command, cwd=project.folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self.lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.put(line)

    def until(self, words: str) -> list[str]:
        """Read lines up to one with these words, and return them."""
        found: list[str] = []
        while not found or words not in found[-1]:
            found.append(self.lines.get(timeout=MOST_SECONDS))
        return found

    def interrupt(self) -> int:
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(MOST_SECONDS)


@pytest.fixture
def started() -> Iterator[list[Watching]]:
    watching: list[Watching] = []
    yield watching
    for one in watching:
        one.process.kill()
        one.process.wait()


def test_watch_shows_a_mistake_and_builds_the_correction(quickstart: Project, started: list[Watching]) -> None:
    quickstart.edit("share_weights: true", "share_weight: true")
    watching = Watching(quickstart, "--junit", "ci/junit.xml", "--sarif", "ci/epbuild.sarif")
    started.append(watching)
    assert any("share_weight" in line for line in watching.until("Watching "))
    [result] = json.loads((quickstart.folder / "ci/epbuild.sarif").read_text(encoding="utf-8"))["runs"][0]["results"]
    assert (result["level"], result["locations"][0]["physicalLocation"]["region"]["startLine"] > 1) == ("error", True)
    quickstart.edit("share_weight: true", "share_weights: true")
    lines = watching.until("Watching ")
    assert lines[0] == "Changed: epbuild.yaml\n"
    assert (quickstart.folder / "dist/quickstart/decoder/snapdragon-SM8750/prefill_qnn.bin").exists()
    root = ET.parse(quickstart.folder / "ci/junit.xml").getroot()
    assert (root.get("tests"), root.get("failures"), root.get("errors")) == ("12", "0", "0")
    assert len(root) == 4, "a suite for each group and target"
    assert watching.interrupt() == 0


def test_watch_emits_one_event_stream_and_the_last_exit_code(quickstart: Project, started: list[Watching]) -> None:
    watching = Watching(quickstart, "--json")
    started.append(watching)
    events = [json.loads(line) for line in watching.until('"watching"')]
    assert events[-2]["event"] == "run_finished"
    assert events[-1]["files"] > 10
    quickstart.edit("name: quickstart", "nam: quickstart")
    watching.until('"watching"')
    assert watching.interrupt() == 2
