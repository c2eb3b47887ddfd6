"""Summary after a build: changes of sizes, savings by sharing, and times, in 80 columns."""

from __future__ import annotations

import io
import json
import re
import sys
from collections.abc import Sequence

import pytest

from epbuild.engine.events import Event, RunFinished, StepFailed, StepFinished, StepOutput
from epbuild.publish.sizes import ChangedFile, OutputCompared, SharingSaved
from epbuild.report.terminal.progress import make_reporter
from epbuild.session.events import OutputRemoved, ToolchainReady
from tests.report.events import COMPILE, EVENTS, FAILURE, Terminal

BUILT = RunFinished(0, 20.0, 1, 0, 0, 0, 0)
NEW = OutputCompared("emit:a/t/directory", "dist/a", None, 1_500_000, (ChangedFile("a.bin", None, 1_500_000),))
GREW = OutputCompared(
    "emit:b/t/directory",
    "dist/b",
    1_000_000,
    1_250_000,
    (
        ChangedFile("b.bin", 900_000, 1_100_000),
        ChangedFile("b.onnx", 100_000, 100_000),
        ChangedFile("gone.bin", 50_000, None),
        ChangedFile("here.bin", None, 100_000),
    ),
)
SHRANK = OutputCompared("emit:c/t/directory", "dist/c", 4000, 1000, (ChangedFile("c.bin", 4000, 1000),))
ALIKE = OutputCompared("emit:d/t/directory", "dist/d", 2000, 2000, (ChangedFile("d.bin", 2000, 2000),))
SAME = OutputCompared("emit:e/t/directory", "dist/e", 3000, 3000, ())


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR", "GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")


def told(
    monkeypatch: pytest.MonkeyPatch, *events: Event, ended: RunFinished = BUILT, stream: io.StringIO | None = None
) -> list[str]:
    """Return the lines between those of the events and the last one."""
    stream = stream or io.StringIO()
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", stream)
        with make_reporter(json=False) as listener:
            for event in events:
                listener.report(event)
            before = len(stream.getvalue())
            listener.report(ended)
    *lines, _ = stream.getvalue()[before:].splitlines()
    assert stream.isatty() or all(len(line) <= 80 or " " not in line.strip() for line in lines)
    return lines


def times(*seconds: float) -> list[StepFinished]:
    return [StepFinished(f"compile:g/t{number}/m", "built", took) for number, took in enumerate(seconds)]


def test_size_changes_are_a_table_with_the_biggest_change_first(monkeypatch: pytest.MonkeyPatch) -> None:
    assert told(monkeypatch, SHRANK, ALIKE, SAME, GREW, NEW) == [
        "",
        "Size                                      before      after      change",
        "dist/b                                    1.0 MB     1.2 MB   +250.0 kB   +25.0%",
        "  b.bin                                 900.0 kB     1.1 MB   +200.0 kB   +22.2%",
        "  here.bin                                     -   100.0 kB         new",
        "  gone.bin                               50.0 kB          -     removed",
        "dist/c",
        "  c.bin                                   4.0 kB     1.0 kB     -3.0 kB   -75.0%",
        "dist/a                                         -     1.5 MB         new",
        "total                                     1.0 MB     2.8 MB     +1.7 MB  +173.1%",
        "2 other files with different content of the same size.",
        "",
    ]


@pytest.mark.parametrize(
    ("outputs", "line"),
    [
        ([NEW], "Size: 1.5 MB in 1 new output."),
        ([SAME, ALIKE], "Size: 5.0 kB in 2 outputs, unchanged; 1 file with different content."),
        ([SAME], "Size: 3.0 kB in 1 output, unchanged."),
    ],
)
def test_a_build_without_size_changes_has_a_one_line_summary(
    monkeypatch: pytest.MonkeyPatch, outputs: Sequence[OutputCompared], line: str
) -> None:
    assert told(monkeypatch, *outputs) == ["", line, ""]


def test_removed_outputs_are_counted_and_moved_outputs_only_once(monkeypatch: pytest.MonkeyPatch) -> None:
    removed = OutputRemoved("emit:f/t/directory", "dist/f", 2, size=7000)
    assert told(monkeypatch, SAME, removed)[2:-1] == [
        "dist/f                                    7.0 kB          -     removed",
        "total                                    10.0 kB     3.0 kB     -7.0 kB   -70.0%",
    ]
    moved = OutputRemoved(SAME.step, "dist/old", 2, size=3000)
    assert told(monkeypatch, SAME, moved) == ["", "Size: 3.0 kB in 1 output, unchanged.", ""]


def test_the_summary_of_a_large_build_fits_a_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    files = tuple(ChangedFile(f"{number}.bin", 1000, 1000 + number) for number in range(1, 40))
    zoo = [OutputCompared(f"emit:{n}/t/directory", f"dist/{n}", 10**6, 10**6 + n, files) for n in range(1, 200)]
    new = [OutputCompared(f"emit:new{n}/t/directory", f"dist/new{n}", None, 500, ()) for n in range(3)]
    lines = told(monkeypatch, *zoo, *new, *times(*range(200)))
    assert len(lines) < 60
    squeezed = [" ".join(line.split()) for line in lines]
    assert squeezed[2] == "dist/199 1.0 MB 1.0 MB +199 bytes +0.0%", "the biggest change comes first"
    assert squeezed[3:7] == [
        "39.bin 1.0 kB 1.0 kB +39 bytes +3.9%",
        "38.bin 1.0 kB 1.0 kB +38 bytes +3.8%",
        "37.bin 1.0 kB 1.0 kB +37 bytes +3.7%",
        "36 other files 36.0 kB 36.7 kB +666 bytes +1.9%",
    ]
    assert "193 other outputs 193.0 MB 193.0 MB +18.7 kB +0.0%" in squeezed
    assert "3 new outputs - 1.5 kB new" in squeezed


def test_archives_and_images_are_listed_without_inner_file_names(monkeypatch: pytest.MonkeyPatch) -> None:
    archive = OutputCompared("emit:g/t/zip", "dist/g.zip", 2000, 3000, (ChangedFile("g.zip", 2000, 3000),))
    blobs = (ChangedFile(f"blobs/sha256/{'a' * 64}", 2000, None), ChangedFile(f"blobs/sha256/{'b' * 64}", None, 2500))
    image = OutputCompared("emit:g/t/oci", "dist/image", 2000, 2500, blobs)
    assert told(monkeypatch, archive, image)[2:-2] == [
        "dist/g.zip                                2.0 kB     3.0 kB     +1.0 kB   +50.0%",
        "dist/image                                2.0 kB     2.5 kB  +500 bytes   +25.0%",
    ]


def test_an_image_with_one_named_file_still_shows_its_total(monkeypatch: pytest.MonkeyPatch) -> None:
    files = (ChangedFile("blobs/sha256/" + "a" * 64, 2000, None), ChangedFile("index.json", 400, 405))
    image = OutputCompared("emit:g/t/oci", "dist/image", 3000, 1005, files)
    assert told(monkeypatch, image)[2:-1] == [
        "dist/image                                3.0 kB     1.0 kB     -2.0 kB   -66.5%",
        "  index.json                           400 bytes  405 bytes    +5 bytes    +1.2%",
    ]


def test_long_paths_have_their_own_line_and_escapes_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    files = (ChangedFile("x" * 90, 1, 2000), ChangedFile("a\x1b[2J.bin", 1000, 2000))
    lines = told(
        monkeypatch, OutputCompared("emit:g/t/directory", "dist/some/where/far/below/the/recipe/there", 1001, 4000, files)
    )
    assert lines[2:6] == [
        "dist/some/where/far/below/the/recipe/there",
        "                                          1.0 kB     4.0 kB     +3.0 kB  +299.6%",
        "  " + "x" * 90,
        lines[5],
    ]
    assert lines[5].split() == ["1", "byte", "2.0", "kB", "+2.0", "kB", "2,000x"]
    assert "  a\\x1b[2J.bin" in lines[6]


def test_sharing_is_a_sentence_that_claims_only_measured_savings(monkeypatch: pytest.MonkeyPatch) -> None:
    [_, *lines, _] = told(monkeypatch, SharingSaved("share:g/t", 1_335_296, 749_568, measured=True, made=749_568))
    assert lines == ["Sharing saves 585.7 kB of 1.3 MB (43.9%) in share:g/t (measured, each model", "  alone)."]
    [_, *lines, _] = told(
        monkeypatch,
        SharingSaved("share:g/t", 100, 50, measured=False, made=70),
        SharingSaved("share:h/t", 1000, 500, measured=False, made=730),
    )
    assert lines == [
        "Sharing: 800 bytes in 2 groups, whose models have 50.0% of their source weights",
        "  in common.",
    ]
    [_, *lines, _] = told(monkeypatch, SharingSaved("share:g/t", 100, 100, measured=False, made=90))
    assert lines == ["Sharing: 90 bytes in share:g/t, whose models have 0.0% of their source weights", "  in common."]


def test_groups_without_measured_savings_are_a_table_of_sizes_and_common_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    assert told(
        monkeypatch,
        SharingSaved("share:g/t", 100, 50, measured=False, made=70),
        SharingSaved("share:h/t", 100, 100, measured=False, made=80),
    ) == [
        "",
        "Sharing (not measured)                                             size   common",
        "share:h/t                                                      80 bytes     0.0%",
        "share:g/t                                                      70 bytes    50.0%",
        "total                                                         150 bytes    25.0%",
        "",
    ]


def test_groups_with_different_savings_are_a_table_sorted_by_saving(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [
        SharingSaved("share:good/t", 2000, 1000, measured=True, made=1000),
        SharingSaved("share:worse/t", 1000, 1100, measured=True, made=1100),
        SharingSaved("share:fair/t", 1000, 750, measured=True, made=750),
    ]
    assert told(monkeypatch, *found) == [
        "",
        "Sharing (measured, each model alone)    unshared     shared       saved",
        "share:worse/t                             1.0 kB     1.1 kB  -100 bytes   -10.0%",
        "share:fair/t                              1.0 kB  750 bytes   250 bytes    25.0%",
        "share:good/t                              2.0 kB     1.0 kB      1.0 kB    50.0%",
        "total                                     4.0 kB     2.9 kB      1.1 kB    28.8%",
        "",
    ]


def test_measured_and_estimated_savings_are_never_summed(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = told(
        monkeypatch,
        SharingSaved("share:g/t", 100, 60, measured=True, made=60),
        SharingSaved("share:h/t", 100, 50, measured=False, made=50),
    )
    assert [re.findall(r"\d+\.\d%", line) for line in lines if line.startswith("Sharing")] == [["40.0%"], ["50.0%"]]


def test_time_is_listed_longest_first_with_compiles_outside_share_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[Event] = [
        StepFinished("compile:g/t/prefill", "built", 30.0),
        StepFinished("compile:g/t/decode", "built", 20.0),
        StepFinished("share:g/t", "built", 60.0),
        StepFinished("compile:h/t/m", "current", 99.0),
        StepFinished("emit:g/t/directory", "emitted", 0.01),
        ToolchainReady("qnn", "1.31.1", 40.0),
    ]
    assert told(monkeypatch, *events) == [
        "",
        "Time: 100.0 s of work in 20.0 s",
        "toolchain qnn                                                    40.0 s      40%",
        "compile:g/t/prefill                                              30.0 s      30%",
        "compile:g/t/decode                                               20.0 s      20%",
        "share:g/t, without its compiles                                  10.0 s      10%",
        "emit:g/t/directory                                                0.0 s       0%",
        "",
    ]


@pytest.mark.parametrize(("seconds", "rows"), [([9.0] * 30, 10), ([0.9] * 30, 4), ([0.9, 0.8], 2)])
def test_the_time_table_has_at_most_ten_lines(monkeypatch: pytest.MonkeyPatch, seconds: list[float], rows: int) -> None:
    _, heading, *lines, _ = told(monkeypatch, *times(*seconds))
    assert heading.startswith(f"Time: {sum(seconds):.1f} s of work")
    assert len(lines) == rows
    assert sum(float(line.split(" s ")[0].split()[-1]) for line in lines) == pytest.approx(sum(seconds))


def test_no_time_table_is_shown_for_a_single_step(monkeypatch: pytest.MonkeyPatch) -> None:
    assert told(monkeypatch, *times(9.0), StepFinished("emit:g/t/directory", "emitted", 0.02)) == []


def test_no_summary_is_printed_without_built_steps_or_after_a_failure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    events: list[Event] = [GREW, *times(3.0, 4.0), SharingSaved("share:g/t", 2, 1, measured=False, made=1)]
    assert told(monkeypatch, *events, ended=RunFinished(0, 0.1, 0, 0, 5, 0, 0)) == []
    assert told(monkeypatch, *events, StepFailed(COMPILE, (FAILURE,)), ended=RunFinished(1, 0.1, 3, 0, 0, 1, 0)) == []


def test_a_terminal_shows_the_same_summary_as_a_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    stream = Terminal()
    told(monkeypatch, StepOutput(COMPILE, "graph 3 of 7"), GREW, *times(3.0, 4.0), stream=stream)
    below = stream.getvalue().rpartition("\x1b[?25h")[2]
    log = "\n".join(told(monkeypatch, GREW, *times(3.0, 4.0)))
    assert log in below
    assert below.endswith("\n\n1 built (20.00 s)\n")


def test_json_has_the_old_and_new_size_of_each_file(capsys: pytest.CaptureFixture[str]) -> None:
    with make_reporter(json=True) as listener:
        for event in EVENTS:
            listener.report(event)
    documents = {document["event"]: document for document in map(json.loads, capsys.readouterr().out.splitlines())}
    compared, saved = ({**documents[name], "time": 0} for name in ("output_compared", "sharing_saved"))
    assert compared == {
        "event": "output_compared",
        "format": 1,
        "time": 0,
        "step": "emit:decoder/snapdragon-SC8380XP/directory",
        "directory": "dist/new",
        "before": 100,
        "after": 130,
        "files": [{"path": "a.bin", "before": 100, "after": 120}, {"path": "b.bin", "before": None, "after": 10}],
    }
    assert (saved["step"], saved["unshared"], saved["shared"], saved["measured"]) == (
        "share:decoder/snapdragon-SC8380XP",
        200,
        120,
        True,
    )
