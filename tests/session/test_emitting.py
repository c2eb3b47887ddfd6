"""Outputs of one build: emitted, kept, restored, pushed and removed. Results come from a fake."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from epbuild.commands.clean import clean
from epbuild.core.errors import EnvironmentFailure, StoreError
from epbuild.engine.events import EventList, StepFinished, StepOutput, Warned
from epbuild.engine.leases import Leases
from epbuild.engine.ledger import Ledger
from epbuild.engine.loop import IdleActions
from epbuild.plan.made import Made
from epbuild.session.emitting import Emitter, remove_orphans
from epbuild.session.events import OutputRemoved
from epbuild.session.session import Session, open_session
from epbuild.survey.status import Survey
from tests.core.fake_windows import keep_file, make_sharing_violation
from tests.support.fake_builds import EMIT_CLASSIFIER, EMIT_DECODER, Workshop, source_model


class Results:
    """Results of an earlier build, and a count of the rebuilt ones."""

    def __init__(self, made: Mapping[str, Made], events: EventList) -> None:
        self.cancelled = threading.Event()
        self.leases = Leases(events, self.cancelled, IdleActions())
        self.made = made
        self.rebuilt: list[str] = []
        self.blobs: dict[Path, bytes] = {}

    def keep(self, workshop: Workshop) -> None:
        self.blobs = {path: path.read_bytes() for path in workshop.blobs()}

    def remake(self, ident: str) -> None:
        self.rebuilt.append(ident)
        for path, content in self.blobs.items():
            path.write_bytes(content)


class Emitting:
    def __init__(self, session: Session, found: Survey, events: EventList) -> None:
        self.session, self.found, self.events = session, found, events
        made = {ident: status.made for ident, status in found.actions.items() if status.made is not None}
        self.results = Results(made, events)
        ledger = Ledger({ident: [ident] for ident in found.plan.emissions}, events)
        ledger.expect({}, 1)
        self.emitter = Emitter(found, session.surveyor, self.results, events, ledger)

    def emit(self, ident: str) -> None:
        self.emitter.emit(self.found.plan.emissions[ident])

    def ends(self) -> dict[str, str]:
        return {event.step: event.outcome for event in self.events if isinstance(event, StepFinished)}


@pytest.fixture
def built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workshop:
    workshop = Workshop(tmp_path / "checkout", tmp_path / "cache", monkeypatch)
    workshop.build()
    return workshop


@contextmanager
def emitting(workshop: Workshop) -> Iterator[Emitting]:
    events = EventList()
    with open_session(workshop.request, events, builds=True) as session:
        yield Emitting(session, session.survey(), events)


def moved(workshop: Workshop) -> None:
    workshop.write_recipe(('path: "dist/${group}"', 'path: "other/${group}"'))


def test_a_missing_output_is_emitted_and_recorded(built: Workshop) -> None:
    before = built.contents()
    (built.output() / "manifest.json").unlink()
    with emitting(built) as it:
        it.emit(EMIT_DECODER)
        output = it.session.surveyor.outputs.last(it.found.plan.emissions[EMIT_DECODER].path)
        assert output is not None
        assert set(output.files) == set(before)
    assert it.ends() == {EMIT_DECODER: "emitted"}
    assert built.contents() == before
    assert it.results.rebuilt == []


def test_an_output_emitted_meanwhile_by_another_build_is_current(built: Workshop) -> None:
    (built.output() / "manifest.json").unlink()
    with emitting(built) as it:
        built.build()
        before = (built.output() / "manifest.json").stat().st_mtime_ns
        it.emit(EMIT_DECODER)
    assert it.ends() == {EMIT_DECODER: "current"}
    assert (built.output() / "manifest.json").stat().st_mtime_ns == before


def test_a_changed_file_is_kept_with_a_warning(built: Workshop) -> None:
    (built.output() / "prefill_ctx.onnx").write_bytes(b"mine")
    with emitting(built) as it:
        it.emit(EMIT_DECODER)
    assert it.ends() == {EMIT_DECODER: "emitted"}
    assert b"mine" in built.contents().values()
    assert [event for event in it.events if isinstance(event, Warned)]


def test_results_lost_from_the_store_are_rebuilt_once(built: Workshop) -> None:
    (built.output("classifier") / "manifest.json").unlink()
    with emitting(built) as it:
        it.results.keep(built)
        built.lose_blobs()
        it.emit(EMIT_CLASSIFIER)
    assert it.results.rebuilt == list(it.found.plan.emissions[EMIT_CLASSIFIER].needs)
    assert it.ends() == {EMIT_CLASSIFIER: "emitted"}
    assert ["rebuilding it" in event.text for event in it.events if isinstance(event, StepOutput)] == [True]


def test_results_that_stay_lost_fail_the_emit_step_and_keep_the_output(built: Workshop) -> None:
    (built.output("classifier") / "manifest.json").unlink()
    before = built.contents("classifier")
    with emitting(built) as it:
        built.lose_blobs()
        with pytest.raises(StoreError):
            it.emit(EMIT_CLASSIFIER)
    assert it.results.rebuilt == list(it.found.plan.emissions[EMIT_CLASSIFIER].needs)
    assert it.ends() == {}
    assert built.contents("classifier") == before


def test_an_archive_in_use_on_windows_keeps_its_statement(built: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    built.write_recipe(('path: "dist/${group}"', 'path: "dist/${group}.zip", archive: zip, provenance: true'))
    built.build()
    before = {path.name: path.read_bytes() for path in (built.folder / "dist").iterdir()}
    (built.folder / "classifier.onnx").write_bytes(source_model(7.0))

    def refusing(change: Callable[..., None]) -> Callable[..., None]:
        def checked(*places: Any, **options: Any) -> None:
            if os.fspath(places[-1]) == str(built.folder / "dist" / "classifier.zip"):
                raise make_sharing_violation(str(places[-1]))
            change(*places, **options)

        return checked

    with monkeypatch.context() as windows:
        for name in ("replace", "unlink"):
            windows.setattr(os, name, refusing(getattr(os, name)))
        assert built.build().exit_code == 3
        [failure] = built.problems
        assert (failure.code, failure.hint) == ("EPB424", "Close the program that uses it, and run the command again.")
        assert "classifier.zip is used by another program" in failure.message
        with pytest.raises(EnvironmentFailure, match=r"cannot remove the output classifier\.zip"):
            list(clean(replace(built.request, selection=("emit:classifier/*",)), force=True))
    assert {path.name: path.read_bytes() for path in (built.folder / "dist").iterdir()} == before


def test_current_outputs_are_adopted_without_being_written(built: Workshop) -> None:
    before = {path: path.stat().st_mtime_ns for path in built.folder.glob("dist/*/*")}
    with emitting(built) as it:
        it.emitter.adopt_current()
    assert {path: path.stat().st_mtime_ns for path in built.folder.glob("dist/*/*")} == before
    assert it.ends() == {}


def test_orphans_are_removed_without_the_users_files(built: Workshop) -> None:
    mine = built.output() / "notes.txt"
    mine.write_bytes(b"mine")
    moved(built)
    with emitting(built) as it:
        assert {orphan.directory.name for orphan in it.found.orphans} == {"decoder", "classifier"}
        remove_orphans(it.found, it.session.surveyor, it.events, threading.Event())
    assert [path for path in (built.folder / "dist").rglob("*") if path.is_file()] == [mine]
    removed = {event.step: event for event in it.events if isinstance(event, OutputRemoved)}
    assert set(removed) == {EMIT_DECODER, EMIT_CLASSIFIER}
    assert [Path(name).name for name in removed[EMIT_DECODER].foreign] == ["notes.txt"]


def test_orphans_are_removed_once(built: Workshop) -> None:
    moved(built)
    with emitting(built) as it:
        for _ in range(2):
            remove_orphans(it.found, it.session.surveyor, it.events, threading.Event())
    assert len([event for event in it.events if isinstance(event, OutputRemoved)]) == 2


def test_orphans_in_use_on_windows_are_removed_by_the_next_run(built: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    moved(built)
    with monkeypatch.context() as patched:
        keep_file(patched, "prefill_qnn.bin")
        assert built.build().exit_code == 0
    assert [path.name for path in built.folder.rglob("dist/**/prefill_qnn.bin")] == ["prefill_qnn.bin"]
    assert built.build().exit_code == 0
    assert not list((built.folder / "dist").rglob("prefill_qnn.bin"))
