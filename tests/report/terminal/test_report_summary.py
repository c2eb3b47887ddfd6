"""`epbuild report` on a terminal: the end of a build at any later time, and changes since another report."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from epbuild.commands.reporting.changes import (
    ComparedFile,
    ComparedModel,
    FileChange,
    ModelChange,
    OutputChange,
    ReportedAgainst,
    SourceChange,
    VersionChange,
)
from epbuild.commands.reporting.report import report
from epbuild.commands.reporting.values import Report
from epbuild.report.terminal.changes import ChangeReport
from epbuild.report.terminal.coverage import CoverageList
from epbuild.report.terminal.report import format_report
from tests.report.events import Terminal
from tests.support.fake_builds import Workshop
from tests.support.sample_reports import Document, large_report, zoo_report

A, B = (ComparedFile(size, "ab" * 32) for size in (2_000_000, 1_500_000))
AGAINST = ReportedAgainst(
    path="old.html",
    kind="report",
    recipe="zoo",
    made_at="2026-11-22T16:03:11",  # without a time zone, for any machine
    epbuild="1.0",
    build_seconds=10.0,
    models=(
        ModelChange(
            "enc",
            "enc",
            "phone",
            ComparedModel("partial", 3, 36, 35_200_000, 6.0, {"cosine": 0.9}),
            ComparedModel("whole", 1, 0, 30_100_000, 9.0, {"cosine": 0.99}),
        ),
        ModelChange("yolo", "yolo", "phone", None, ComparedModel("whole", 1, 0, 1, 1.0, None)),
        ModelChange("vad", "vad", "phone", ComparedModel("failed", None, None, None, None, None), None),
        ModelChange("same", "same", "phone", *(ComparedModel("whole", 1, 0, 1, took, None) for took in (1.0, 1.1))),
    ),
    outputs=(
        OutputChange("dist/enc", ("enc",), ("phone",), 2_000_000, 1_500_000, (FileChange("enc_qnn.bin", A, B),)),
        OutputChange("dist/new", ("new",), ("phone",), None, 1_000_000, (FileChange("new_qnn.bin", None, B),)),
    ),
    versions=(VersionChange("qnn", "onnxruntime-qnn", "2.6.0", "2.7.0"),),
    sources=(SourceChange("enc", "a", "b", data=False),),
)


@pytest.mark.parametrize("width", [80, 120, 200])
def test_lines_fill_the_terminal_and_break_only_between_words(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    found = replace(msgspec.convert(zoo_report(), Report), against=AGAINST)
    words = set(" ".join(format_report(found)).split())
    monkeypatch.setattr(sys, "stdout", Terminal())
    for name, value in (("COLUMNS", str(width)), ("TERM", "xterm"), ("NO_COLOR", "1")):
        monkeypatch.setenv(name, value)
    lines = list(format_report(found))
    assert all(len(line) <= width or " " not in line.strip() for line in lines)
    sentences = [line for line in lines if ". " in line]
    assert max(map(len, sentences)) > min(width, 120) - 20
    assert not [word for line in sentences for word in line.split() if word not in words]


@pytest.fixture
def workshop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workshop:
    return Workshop(tmp_path / "checkout", tmp_path / "cache", monkeypatch)


def lines(found: Report) -> list[str]:
    return [*format_report(found)]


def test_a_recipe_that_was_never_built_is_reported_as_such(workshop: Workshop) -> None:
    text = "\n".join(lines(report(workshop.request)))
    assert text.startswith("small: 6 steps: 6 new\nThis recipe has not been built here")
    assert "Coverage: 3 models for 2 targets: 3 not built" in text
    assert "Outputs: 0 in place, 0 bytes; 2 out of date or missing" in text


def test_a_report_has_the_tables_from_the_end_of_the_build(workshop: Workshop) -> None:
    """Check that a later report prints the same lines of coverage and sharing."""
    ended = workshop.build()
    covered, changed = CoverageList(), ChangeReport()
    for event in workshop.events:
        covered.report(event)
        changed.report(event)
    found = lines(report(workshop.request))
    table = [line for line in covered.format_lines() if line]
    assert len(table) > 3
    assert [line for line in found if line in table] == table
    [saving] = [line for line in changed.format_lines(ended) if line.startswith("Sharing")]
    assert saving in found
    assert found[0] == "small: 6 steps: 6 current"
    assert any(line.startswith("Last build: ") and line.endswith(": 6 built") for line in found)


def test_changes_are_described_except_small_time_differences() -> None:
    found = lines(replace(msgspec.convert(zoo_report(), Report), against=AGAINST))
    since = found[found.index("Since old.html of 2026-11-22 16:03:11:") :]
    assert since == [
        "Since old.html of 2026-11-22 16:03:11:",
        "enc/enc for phone: partial -> whole; 36 -> 0 fallback nodes; 3 -> 1 EPContext",
        "  nodes; 35.2 MB -> 30.1 MB; 6.0 s -> 9.0 s; cosine 0.9 -> 0.99",
        "yolo/yolo for phone: new (whole)",
        "vad/vad for phone: removed (failed)",
        "toolchain qnn: onnxruntime-qnn 2.6.0 -> 2.7.0",
        "source of enc: changed",
        "Size                                      before      after      change",
        "dist/new                                       -     1.0 MB         new",
        "dist/enc                                  2.0 MB     1.5 MB   -500.0 kB   -25.0%",
        "total                                     2.0 MB     2.5 MB   +500.0 kB   +25.0%",
        "1 file with different content, in 1 output.",
    ]


def test_a_report_without_changes_says_so() -> None:
    same = replace(AGAINST, models=AGAINST.models[3:], outputs=(), versions=(), sources=())
    assert lines(replace(msgspec.convert(zoo_report(), Report), against=same))[-1] == "nothing has changed"


@pytest.mark.parametrize("sample", [zoo_report, large_report])
def test_the_report_summary_is_short_and_fits_a_terminal(sample: Callable[[], Document]) -> None:
    found = lines(msgspec.convert(sample(), Report))
    assert len(found) < 220
    assert [line for line in found if len(line) > 80 and " " in line.strip()] == []
