"""`run --watch`: the changes that start another build, and the delay."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from epbuild.cli.run import build_and_watch
from epbuild.commands.watch import SourceWatch
from epbuild.core.errors import EpbuildError
from epbuild.engine.events import Event, EventList, RunFinished
from epbuild.report.json.events import JsonLines
from epbuild.report.listeners import Listener
from epbuild.report.terminal.progress import PlainLines
from epbuild.session.events import FilesChanged, Watching
from tests.support.fake_builds import Workshop, source_model


@pytest.fixture
def workshop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workshop:
    return Workshop(tmp_path / "checkout", tmp_path / "cache", monkeypatch)


class EventRecorder(Listener):
    """Recorder of the events of all builds."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.ended: list[object] = []

    def __exit__(self, *ended: object) -> None:
        self.ended.append(ended[0])

    def report(self, event: Event, /) -> None:
        self.events.append(event)


class Pauses:
    """Stand-in for sleeping that runs the next callback, and raises KeyboardInterrupt at the end."""

    def __init__(self, *steps: Callable[[], object]) -> None:
        self.steps = list(steps)
        self.asked: list[float] = []

    def __call__(self, seconds: float) -> None:
        self.asked.append(seconds)
        if not self.steps:
            raise KeyboardInterrupt
        self.steps.pop(0)()


def nothing() -> None:
    pass


def watched(workshop: Workshop, *steps: Callable[[], object], **changes: object) -> tuple[int, EventRecorder, EventList]:
    kept, notes = EventRecorder(), EventList()
    watch = SourceWatch(replace(workshop.request, **changes), Pauses(*steps))
    return build_and_watch(watch, lambda: kept, notes), kept, notes


def changes(kept: EventRecorder) -> list[list[str]]:
    return [[Path(name).name for name in event.files] for event in kept.events if isinstance(event, FilesChanged)]


def ends(kept: EventRecorder) -> list[tuple[int, int]]:
    """Return the exit code and the number of built steps of each build."""
    return [(event.exit_code, event.built) for event in kept.events if isinstance(event, RunFinished)]


def test_change_of_a_model_or_the_recipe_builds_outdated_steps(workshop: Workshop) -> None:
    model = workshop.folder / "classifier.onnx"
    code, kept, notes = watched(
        workshop,
        nothing,
        lambda: model.write_bytes(source_model(7.0)),
        nothing,  # it settles
        lambda: workshop.write_recipe(("quality: 3", "quality: 1")),
        nothing,
    )
    assert code == 0
    assert ends(kept) == [(0, 6), (0, 2), (0, 4)]
    assert changes(kept) == [["classifier.onnx"], ["epbuild.yaml"]]
    assert [type(note) for note in notes] == [Watching] * 3


def test_touched_or_reverted_file_causes_no_work(workshop: Workshop) -> None:
    model = workshop.folder / "classifier.onnx"
    before, seen = model.read_bytes(), model.stat()

    def undo() -> None:
        model.write_bytes(before)
        os.utime(model, ns=(seen.st_atime_ns, seen.st_mtime_ns))

    _, kept, _ = watched(workshop, lambda: model.write_bytes(source_model(7.0)), undo, nothing, lambda: os.utime(model), nothing)
    assert [built for _, built in ends(kept)] in ([6], [6, 0])  # without a snapshot, only a build can tell


def test_build_waits_until_a_file_stops_growing(workshop: Workshop) -> None:
    model = workshop.folder / "classifier.onnx"
    whole = source_model(7.0)
    parts = [lambda size=size: model.write_bytes(whole[:size]) for size in range(10, len(whole), 40)]
    _, kept, _ = watched(workshop, *parts, lambda: model.write_bytes(whole), nothing)
    assert ends(kept) == [(0, 6), (0, 2)]


def test_watch_continues_after_a_recipe_error(workshop: Workshop, capsys: pytest.CaptureFixture[str]) -> None:
    workshop.write_recipe(("plain: {toolchain: qnn", "plain: {toolchian: qnn"))
    code, kept, notes = watched(workshop, nothing, workshop.write_recipe, nothing)
    assert (code, ends(kept)) == (0, [(0, 6)])
    assert "toolchian" in capsys.readouterr().err
    assert [issubclass(kind, EpbuildError) for kind in kept.ended if isinstance(kind, type)] == [True]
    assert len(notes) == 2


def test_watch_exits_with_the_code_of_the_last_build(workshop: Workshop) -> None:
    assert watched(workshop, lambda: workshop.write_recipe(("plain: {toolchain: qnn", "plain: {toolchian: qnn")), nothing)[0] == 2
    workshop.write_recipe(("fallback_nodes: any", "fallback_nodes: 0"))
    assert watched(workshop)[0] == 1


def test_watch_waits_for_a_missing_model(workshop: Workshop, capsys: pytest.CaptureFixture[str]) -> None:
    model = workshop.folder / "classifier.onnx"
    content = model.read_bytes()
    model.unlink()
    code, kept, _ = watched(workshop, nothing, nothing, lambda: model.write_bytes(content), nothing)
    assert (code, ends(kept)) == (0, [(0, 6)])
    assert "[EPB201]" in capsys.readouterr().err


def test_watch_handles_a_model_that_disappears_and_returns(workshop: Workshop, capsys: pytest.CaptureFixture[str]) -> None:
    model = workshop.folder / "classifier.onnx"
    code, kept, _ = watched(workshop, model.unlink, nothing, lambda: model.write_bytes(source_model(7.0)), nothing)
    assert (code, ends(kept)) == (0, [(0, 6), (0, 2)])


def test_failed_build_is_retried_when_its_source_changes(workshop: Workshop) -> None:
    workshop.write_recipe(("fallback_nodes: any", "fallback_nodes: 0"))
    code, kept, _ = watched(workshop, nothing, workshop.write_recipe, nothing)
    assert [code for code, _ in ends(kept)] == [1, 0]
    assert code == 0


def test_removed_output_is_restored(workshop: Workshop) -> None:
    _, kept, _ = watched(workshop, (workshop.output() / "decode_ctx.onnx").unlink, nothing)
    assert (workshop.output() / "decode_ctx.onnx").exists()
    assert changes(kept) == [["decode_ctx.onnx"]]


def test_sources_are_watched_for_selected_steps_and_without_outputs(workshop: Workshop) -> None:
    model = workshop.folder / "classifier.onnx"
    _, kept, _ = watched(workshop, lambda: model.write_bytes(source_model(7.0)), nothing, emits=False)
    assert ends(kept)[1] == (0, 1)
    _, kept, _ = watched(workshop, lambda: model.write_bytes(source_model(8.0)), nothing, selection=("emit:classifier/*",))
    assert ends(kept)[-1] == (0, 2)


PATTERN = """\
epbuild: 1
name: small
models: models/*.onnx
targets: {npu: {ep: qnn}}
groups: {all: {models: ["*"], expect: {fallback_nodes: any}}}
"""


@pytest.mark.parametrize("emits", [True, False])
def test_missing_model_of_a_pattern_is_awaited_and_noticed(
    workshop: Workshop, emits: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    (workshop.folder / "epbuild.yaml").write_text(PATTERN, encoding="utf-8")
    models = workshop.folder / "models"

    def write(name: str) -> None:
        models.mkdir(exist_ok=True)
        (models / name).write_bytes(source_model(7.0 + len(name)))

    # A new folder, a file in it, and a file that disappears again. After each, the watch waits until it settles.
    does = (lambda: write("a.onnx"), lambda: write("bcd.onnx"), (models / "bcd.onnx").unlink)
    _, kept, notes = watched(workshop, *(step for change in does for step in (nothing, change, nothing)), nothing, emits=emits)
    assert ends(kept)[:2] == [(0, 1 + emits)] * 2
    assert ends(kept)[2:] in (
        [(0, int(emits))],
        [(0, int(emits)), (0, 0)],
    )  # without a snapshot, only a build can tell that it is over
    assert "no file matches 'models/*.onnx'" in capsys.readouterr().err
    assert len(notes) == len(ends(kept)) + 1


def test_ctrl_c_during_a_build_ends_the_watch(workshop: Workshop) -> None:
    class Interrupts(Listener):
        def report(self, event: Event, /) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build_and_watch(SourceWatch(workshop.request, Pauses()), Interrupts, EventList())


def test_slow_poll_delays_the_next_poll(workshop: Workshop) -> None:
    pauses = Pauses(nothing)
    watch = SourceWatch(workshop.request, pauses)
    watch.begin()
    with pytest.raises(KeyboardInterrupt):
        watch.wait()
    assert all(seconds >= 0.5 for seconds in pauses.asked)


def test_watch_events_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    for listener in (PlainLines(), JsonLines()):
        listener.report(FilesChanged(("a.onnx", "b.onnx", "c", "d", "e")))
        listener.report(Watching(12))
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["Changed: a.onnx, b.onnx, c, and 2 more", "Watching 12 files; press Ctrl-C to stop."]
    assert [json.loads(line)["event"] for line in lines[2:]] == ["files_changed", "watching"]
