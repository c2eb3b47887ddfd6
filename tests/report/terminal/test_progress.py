"""Progress of a build in a log and on a terminal: ended steps, reasons of failures, and problems on their stream."""

from __future__ import annotations

import io
import re
import subprocess
import sys
import threading
from collections.abc import Iterable

import pytest

from epbuild.engine.events import Completion, Event, RunFinished, RunStarted, StepFailed, StepFinished, StepOutput, StepStarted
from epbuild.report.terminal.event_lines import format_summary
from epbuild.report.terminal.progress import LiveRows, PlainLines, make_reporter
from epbuild.session.events import ComparisonStarted, Fetched, Fetching
from tests.report.events import ADDRESS, ANOTHER, COMPILE, EMIT, EVENTS, FAILURE, SHARE, Terminal

COLOR = re.compile(r"\x1b\[(?:\d+;)*(?:3\d|4\d|9\d|10\d)(?:;\d+)*m")
CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR", "GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "80")


def reported(
    monkeypatch: pytest.MonkeyPatch, stdout: io.StringIO, stderr: io.StringIO, events: Iterable[Event] = EVENTS
) -> tuple[str, str]:
    """Return the texts on standard output and standard error after these events."""
    monkeypatch.setattr(sys, "stdout", stdout)
    monkeypatch.setattr(sys, "stderr", stderr)
    with make_reporter(json=False) as listener:
        for event in events:
            listener.report(event)
    assert (sys.stdout, sys.stderr) == (stdout, stderr)
    return stdout.getvalue(), stderr.getvalue()


def test_a_terminal_gets_live_rows_and_everything_else_plain_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", Terminal())
    assert isinstance(make_reporter(json=False), LiveRows)
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    assert isinstance(make_reporter(json=False), PlainLines)


def test_a_log_has_a_line_for_each_end_and_no_control_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    out, error = reported(monkeypatch, io.StringIO(), io.StringIO())
    assert out.splitlines() == [
        "fetched           model x",
        "ready     12.3 s  toolchain qnn  onnxruntime 1.31.1",
        "3 of 4 steps to do, about 90 s",
        f"[1/3] built      7.2 s  {COMPILE}  268.7 MB  1 EPContext node",
        f"[2/3] failed            {COMPILE}",
        "removed           dist/old  3 files that the recipe no longer defines",
        "kept              dist/old/mine.bin  changed after epbuild wrote it",
        "kept              dist/old/notes.txt  not written by epbuild",
        "2 session groups to rebuild and compare",
        f"[1/2] same       2.5 s  {SHARE}  3 files  752.2 kB",
        f"[2/2] differs    1.2 s  {COMPILE}  1 of 2 files differ",
        "  x_qnn.bin: 246,216 bytes; 6 differ, the first at byte 233,880",
        "    timestamp in member metadata, 6 times: 2026-11-22 00:11:01 UTC -> 2026-11-22 00:11:05 UTC",
        "  both versions were kept in .epbuild/rebuilt/x",
        "rebuilt: 1 identical, 1 different (2.75 s)",
        "locked     2.5 s  toolchain qnn  10 packages for linux-x86_64, windows-arm64",
        "remote cache: 46 of 50 found, 2 written, 1.2 GB in 14 s",
        "...       files  hashing decoder.onnx.data: 1.2 GB of 3.2 GB, about 8 s left",
        "hashed    12.3 s  files  3.2 GB",
        "The build writes about 12.9 GB to the file system of /home/user/.cache/epbuild, where 75.1 GB are free.",
        "Watching 3 files; press Ctrl-C to stop.",
        "Changed: model.onnx",
        "1 built, 1 current, 1 failed (20.00 s)",
    ]
    assert error.splitlines() == [
        "epbuild.yaml:12:5: warning: the model 'x' shares nothing. [EPB233]",
        f"{COMPILE}: error: {FAILURE.text} [EPB401]",
        f"{COMPILE}: error: {ANOTHER.text} [EPB650]",
    ]


def test_a_terminal_shows_the_same_lines_as_a_log(monkeypatch: pytest.MonkeyPatch) -> None:
    out, _ = reported(monkeypatch, Terminal(), io.StringIO())
    text = CONTROL.sub("", out)
    for line in (
        "fetched           model x",
        "ready     12.3 s  toolchain qnn  onnxruntime 1.31.1",
        f"[1/3] built      7.2 s  {COMPILE}  268.7 MB  1 EPContext node",
        f"[2/3] failed            {COMPILE}",
        "1 built, 1 current, 1 failed (20.00 s)",
    ):
        assert line in text
    assert EMIT not in text


def test_the_terminal_is_restored_after_a_build(monkeypatch: pytest.MonkeyPatch) -> None:
    out, _ = reported(monkeypatch, Terminal(), io.StringIO())
    assert out.count("\x1b[?25l") == out.count("\x1b[?25h") == 1
    assert out.rindex("\x1b[?25h") < out.index("1 built")


def test_the_terminal_is_restored_after_an_interrupt(monkeypatch: pytest.MonkeyPatch) -> None:
    stdout = Terminal()
    monkeypatch.setattr(sys, "stdout", stdout)

    def interrupted() -> None:
        with LiveRows() as listener:
            listener.report(StepStarted(COMPILE, "compiling"))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert stdout.getvalue().count("\x1b[?25h") == 1
    assert sys.stdout is stdout


@pytest.mark.parametrize("stdout", [io.StringIO, Terminal])
def test_redirected_errors_are_complete_even_with_live_rows(monkeypatch: pytest.MonkeyPatch, stdout: type[io.StringIO]) -> None:
    out, error = reported(monkeypatch, stdout(), io.StringIO())
    assert f"{COMPILE}: error: {FAILURE.text} [EPB401]\n" in error
    assert "EPB401" not in out


def test_errors_are_shown_once_if_both_streams_are_one_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    out, error = reported(monkeypatch, Terminal(), Terminal())
    assert (out + error).count("[EPB401]") == 1


def test_a_terminal_shows_finished_steps_and_time_left_below_its_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shown = Terminal()
    monkeypatch.setattr(sys, "stdout", shown)
    seen = []
    with LiveRows() as listener:
        for event in (
            RunStarted("r", 9, 7, 125.0),
            StepStarted(COMPILE, "compiling"),
            StepFinished(COMPILE, "built", 1.0, progress=Completion(1, 7, 60.4)),
            StepFinished(EMIT, "current", 0.0),
            StepStarted(SHARE, "storing"),
            StepFailed(SHARE, (), Completion(2, 7, None)),
            StepStarted(EMIT, "emitting"),
            ComparisonStarted(3, 20.0),
            StepStarted(SHARE, "compiling again"),
        ):
            before = len(shown.getvalue())
            listener.report(event)
            if listener._rows is not None:
                listener._rows._display.refresh()
            seen.append(CONTROL.sub("", shown.getvalue()[before:]).replace("\r", "\n"))
    assert "0 of 7 steps done, about 2 min left " in seen[1]
    assert "1 of 7 steps done, about 60 s left " in seen[2]
    assert "1 of 7 steps done" in seen[4], "what was not to do is not counted"
    assert "2 of 7 steps done" in seen[5]
    assert "left" not in seen[6].splitlines()[-1], "nothing is promised that nobody knows"
    assert "0 of 3 comparisons done, about 20 s left " in seen[8]
    assert "steps done" not in seen[8]


def test_a_dumb_terminal_gets_plain_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setattr(sys, "stdout", Terminal())
    assert isinstance(make_reporter(json=False), PlainLines)


@pytest.mark.parametrize("kind", [io.StringIO, Terminal])
def test_output_of_an_ep_other_than_progress_is_not_shown(monkeypatch: pytest.MonkeyPatch, kind: type[io.StringIO]) -> None:
    stdout = Watched() if kind is io.StringIO else kind()
    monkeypatch.setattr(sys, "stdout", stdout)
    with PlainLines(0.01) if kind is io.StringIO else LiveRows() as listener:
        listener.report(StepStarted(COMPILE, "compiling"))
        listener.report(StepOutput(COMPILE, "Unable to get producer node", status=False))
        assert not isinstance(stdout, Watched) or stdout.alive.wait(10)
    assert "compiling" in stdout.getvalue()
    assert "producer" not in stdout.getvalue()


def test_a_log_is_colored_only_if_colors_are_forced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    out, error = reported(monkeypatch, io.StringIO(), io.StringIO())
    assert f"[1/3] \x1b[32mbuilt\x1b[0m      7.2 s  {COMPILE}" in out
    assert COLOR.search(error)
    monkeypatch.setenv("NO_COLOR", "1")
    out, error = reported(monkeypatch, io.StringIO(), io.StringIO())
    assert "\x1b" not in out + error


def test_output_of_an_ep_is_not_interpreted_as_markup(monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[Event] = [
        StepStarted(COMPILE, "compiling"),
        StepOutput(COMPILE, "[red]x[/red] [/]"),
        RunFinished(0, 1.0, 1, 0, 0, 0, 0),
    ]
    out, _ = reported(monkeypatch, Terminal(), io.StringIO(), events)
    assert "[red]x[/red] [/]" in CONTROL.sub("", out)


def test_colors_are_used_on_terminals_unless_no_color_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    out, error = reported(monkeypatch, Terminal(), Terminal())
    assert COLOR.search(out)
    monkeypatch.setenv("NO_COLOR", "1")
    out, error = reported(monkeypatch, Terminal(), Terminal())
    assert not COLOR.search(out + error)


class Watched(io.StringIO):
    """Stream that records the time of each write. It can be a pipe without a reader."""

    def __init__(self, *, broken: bool = False) -> None:
        super().__init__()
        self.alive = threading.Event()
        self.broken = broken

    def write(self, text: str) -> int:
        if text.startswith("..."):
            self.alive.set()
            if self.broken:
                raise BrokenPipeError
        return super().write(text)


def test_a_log_shows_progress_of_long_steps_with_the_eps_last_output(monkeypatch: pytest.MonkeyPatch) -> None:
    stdout = Watched()
    monkeypatch.setattr(sys, "stdout", stdout)
    with PlainLines(0.01) as listener:
        listener.report(StepStarted(COMPILE, "compiling"))
        listener.report(StepOutput(COMPILE, "graph 3 of 7"))
        assert stdout.alive.wait(10)
        listener.report(StepFinished(COMPILE, "built", 1.0))
        ended = len(stdout.getvalue())
    beats = [line for line in stdout.getvalue().splitlines() if line.startswith("...")]
    assert all(re.fullmatch(rf"\.\.\. +{re.escape(COMPILE)}  \d+ s: graph 3 of 7", line) for line in beats[-1:])
    assert "..." not in stdout.getvalue()[ended:]


@pytest.mark.parametrize(("total", "words"), [(1_600_000, "fetching 400.0 kB of 1.6 MB"), (None, "fetching 400.0 kB")])
def test_a_log_shows_the_progress_of_a_fetch(monkeypatch: pytest.MonkeyPatch, total: int | None, words: str) -> None:
    stdout = Watched()
    monkeypatch.setattr(sys, "stdout", stdout)
    with PlainLines(0.01) as listener:
        listener.report(Fetching("x", ADDRESS, 400_000, total))
        assert stdout.alive.wait(10)
        listener.report(Fetched("x"))
        ended = len(stdout.getvalue())
    first = next(line for line in stdout.getvalue().splitlines() if line.startswith("..."))
    assert re.fullmatch(rf"\.\.\. +x  \d+ s: {re.escape(words)}", first)
    assert "..." not in stdout.getvalue()[ended:]


def test_a_terminal_shows_the_progress_of_a_fetch(monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[Event] = [Fetching("x", ADDRESS, 400_000, 1_600_000), Fetched("x")]
    out, _ = reported(monkeypatch, Terminal(), io.StringIO(), [*events, RunFinished(0, 1.0, 1, 0, 0, 0, 0)])
    text = CONTROL.sub("", out)
    assert re.search(r"x +fetching 400\.0 kB of 1\.6 MB", text)
    assert text.index("fetching 400.0 kB") < text.index("fetched           model x")


def test_a_closed_pipe_causes_no_traceback_between_events(monkeypatch: pytest.MonkeyPatch) -> None:
    raised: list[object] = []
    monkeypatch.setattr(threading, "excepthook", raised.append)
    stdout = Watched(broken=True)
    monkeypatch.setattr(sys, "stdout", stdout)
    with PlainLines(0.01) as listener:
        listener.report(StepStarted(COMPILE, "compiling"))
        assert stdout.alive.wait(10)
    assert raised == []


@pytest.mark.parametrize(
    ("counts", "text"),
    [
        ({}, "Nothing to do: 0 steps are current (0.05 s)"),
        ({"current": 1}, "Nothing to do: 1 step is current (0.05 s)"),
        ({"current": 12}, "Nothing to do: 12 steps are current (0.05 s)"),
        ({"built": 3, "current": 9}, "3 built, 9 current (0.05 s)"),
        ({"restored": 2}, "2 restored (0.05 s)"),
        ({"built": 1, "failed": 1, "skipped": 4, "exit_code": 1}, "1 built, 1 failed, 4 skipped (0.05 s)"),
        ({"current": 2, "failed": 1, "exit_code": 3}, "2 current, 1 failed (0.05 s)"),
    ],
)
def test_the_last_line_counts_the_outcomes_of_all_steps(counts: dict[str, int], text: str) -> None:
    nothing = {"exit_code": 0, "built": 0, "restored": 0, "current": 0, "failed": 0, "skipped": 0}
    assert format_summary(RunFinished(seconds=0.0512, **{**nothing, **counts})) == text


def test_a_build_with_nothing_to_do_does_not_import_rich() -> None:
    code = f"""if True:
        import io, sys
        from epbuild.engine.events import RunFinished, RunStarted, StepFinished
        from epbuild.report.terminal.progress import LiveRows, PlainLines
        for listener in (LiveRows(), PlainLines()):
            with listener:
                listener.report(RunStarted("r", 1, 0))
                listener.report(StepFinished({EMIT!r}, "current", 0.0))
                listener.report(RunFinished(0, 0.1, 0, 0, 1, 0, 0))
        sys.exit("rich was imported" if "rich" in sys.modules else 0)
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("Nothing to do: 1 step is current") == 2


def test_a_step_with_several_failures_shows_every_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[Event] = [RunStarted("r", 1, 1), StepFailed(COMPILE, (FAILURE, FAILURE))]
    assert reported(monkeypatch, io.StringIO(), io.StringIO(), events)[1].count("[EPB401]") == 2
