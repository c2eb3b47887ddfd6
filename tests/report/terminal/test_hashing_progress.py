"""Progress of hashing that takes longer than a second: bytes and time left, from the first second on."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest

from epbuild import api
from epbuild.commands.clean import clean
from epbuild.commands.plan import explain
from epbuild.engine.events import EventList
from epbuild.report.listeners import WaitingRow
from epbuild.report.terminal.progress import make_reporter
from epbuild.session.events import Hashed, Hashing, HashingEvents
from tests.report.events import Terminal
from tests.support.fake_builds import Workshop
from tests.support.moments import at_each_call

GB = 1_000_000_000
HALF = Hashing(GB, 2 * GB, 10.0, "decoder.onnx")


class Clock:
    """Clock that advances when a test tells it to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR", "GITHUB_ACTIONS", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "80")


def test_events_start_after_one_second_and_repeat_every_second() -> None:
    events, clock = EventList(), Clock()
    with HashingEvents(events, clock).counting(1000, "decoder.onnx") as count:
        for _ in range(10):
            clock.now += 0.5
            count(100)
    assert events == [
        Hashing(200, 1000, 4.0, "decoder.onnx"),
        Hashing(400, 1000, 3.0, "decoder.onnx"),
        Hashing(600, 1000, 2.0, "decoder.onnx"),
        Hashing(800, 1000, 1.0, "decoder.onnx"),
        Hashed(1000, 5.0),
    ]


def test_hashing_under_one_second_emits_no_event() -> None:
    events, clock = EventList(), Clock()
    with HashingEvents(events, clock).counting(1000, "decoder.onnx") as count:
        clock.now += 0.9
        count(1000)
    assert events == []


def test_hashing_a_file_again_never_exceeds_the_total() -> None:
    events, clock = EventList(), Clock()
    with HashingEvents(events, clock).counting(1000, "decoder.onnx") as count:
        for size in (900, 900, 900):
            clock.now += 2
            count(size)
    assert events == [Hashing(900, 1000, 2 * 100 / 900, "decoder.onnx"), Hashed(1000, 6.0)]


def test_failed_hashing_emits_an_end_event() -> None:
    events, clock = EventList(), Clock()
    with pytest.raises(OSError, match="gone"), HashingEvents(events, clock).counting(1000, "decoder.onnx") as count:  # noqa: PT012
        clock.now += 2
        count(500)
        raise OSError("gone")
    assert events == [Hashing(500, 1000, 2.0, "decoder.onnx"), Hashed(500, 2.0)]


def test_one_long_piece_emits_an_end_event() -> None:
    events, clock = EventList(), Clock()
    with HashingEvents(events, clock).counting(1000, "decoder.onnx") as count:
        clock.now += 5
        count(1000)
    assert events == [Hashed(1000, 5.0)]


def test_stderr_shows_a_row_on_a_terminal_or_a_line_every_30_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", out := io.StringIO())
    monkeypatch.setattr(sys, "stderr", screen := Terminal())
    with WaitingRow() as waiting:
        waiting.report(HALF)
        waiting.report(Hashed(2 * GB, 20.0))
        ended = screen.getvalue()
        waiting.report(HALF)
    assert "hashing decoder.onnx: 1.0 GB of 2.0 GB, about 10 s left" in ended
    assert screen.getvalue().count("hashing") > ended.count("hashing")

    monkeypatch.setattr(sys, "stderr", log := io.StringIO())
    clock = Clock()
    with WaitingRow(clock) as waiting:
        for _ in range(35):
            waiting.report(HALF)
            clock.now += 1
        waiting.report(Hashed(2 * GB, 20.0))
    assert log.getvalue() == "files: hashing decoder.onnx: 1.0 GB of 2.0 GB, about 10 s left\n" * 2
    assert out.getvalue() == "", "the answer alone goes there"


def test_a_build_shows_a_hashing_row_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", screen := Terminal())
    with make_reporter(json=False) as listener:
        listener.report(HALF)
    assert "hashing decoder.onnx: 1.0 GB of 2.0 GB, about 10 s left" in screen.getvalue()


def test_a_build_emits_hashing_events_as_json(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", out := io.StringIO())
    with make_reporter(json=True) as listener:
        listener.report(HALF)
    written = json.loads(out.getvalue())
    assert (written["event"], written["done"], written["total"], written["seconds_left"]) == ("hashing", GB, 2 * GB, 10.0)


def test_commands_that_hash_models_count_their_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    workshop = Workshop(tmp_path / "checkout", tmp_path / "cache", monkeypatch)
    models = sum(path.stat().st_size for path in workshop.folder.glob("*.onnx"))
    totals: list[int] = []
    with at_each_call(HashingEvents.counting, lambda values: totals.append(values["total"])):
        for command in (api.plan, lambda request: explain(request, ["*"]), api.run):
            command(workshop.request)
            assert models in totals, totals
            totals.clear()
        next(workshop.folder.glob("dist/*/*.bin")).touch()
        list(clean(workshop.request))
        assert any(totals)


def test_verify_counts_the_bytes_that_its_manifest_lists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    workshop = Workshop(tmp_path / "checkout", tmp_path / "cache", monkeypatch)
    api.run(workshop.request)
    place = workshop.folder / "dist" / "classifier"
    listed = json.loads((place / "manifest.json").read_text(encoding="utf-8"))["files"]
    totals: list[int] = []
    with at_each_call(HashingEvents.counting, lambda values: totals.append(values["total"])):
        assert {finding.outcome for finding in api.verify(place) if finding.check == "digests"} == {"passed"}
    assert set(totals) == {sum(file["size"] for file in listed)}
