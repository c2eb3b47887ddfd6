"""Session: it opens everything once, writes only in builds, and ends with orphans removed and a snapshot."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from epbuild.commands.run import run
from epbuild.core.errors import PlanError, RecipeError
from epbuild.engine.events import EventList, RunFinished, RunStarted, StepFinished
from epbuild.session.request import RemoteChoice, Request
from epbuild.session.session import open_session
from epbuild.session.snapshot import ActionEnd, collect_ends, find_last_outputs, read_last, read_survey
from tests.support.fake_builds import CLASSIFIER, EMIT_CLASSIFIER, EMIT_DECODER, SHARE, STEPS, Workshop, source_model

SETTLED_SECONDS = 0.12  # a little more than file systems with fine timestamps require


@pytest.fixture
def workshop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workshop:
    return Workshop(tmp_path / "checkout", tmp_path / "cache", monkeypatch)


def built(workshop: Workshop, request: Request | None = None) -> tuple[int, EventList]:
    events = EventList()
    with open_session(request or workshop.request, events, builds=True) as session:
        found = session.survey()
        actions = session.build(found)
        return session.finish(found, actions)[0], events


def files(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if path.is_file()}


def test_a_survey_writes_nothing_and_provisions_nothing(workshop: Workshop) -> None:
    before, events = files(workshop.folder) | files(workshop.cache), EventList()
    with open_session(workshop.request, events) as session:
        found = session.survey()
    assert list(events) == []
    assert list(found.actions) == list(found.plan.actions)
    assert len(found.todo) == 4
    assert files(workshop.folder) | files(workshop.cache) == before
    assert workshop.compiled == []


def test_a_survey_does_not_create_the_clock_of_a_workspace(workshop: Workshop) -> None:
    """Check this because a survey by another user could leave a file that blocks the snapshots of the owner's builds."""
    built(workshop)
    clock = workshop.folder / ".epbuild" / "clock"
    clock.unlink()
    with open_session(workshop.request) as session:
        session.survey()
    assert not clock.exists()


def test_a_build_ends_with_outputs_and_a_snapshot_that_answers_the_next_request(workshop: Workshop) -> None:
    code, events = built(workshop)
    assert code == 0
    assert {event.step for event in events if isinstance(event, StepFinished)} == set(STEPS)
    assert [type(event) for event in events if isinstance(event, RunStarted | RunFinished)] == [RunStarted, RunFinished]
    with open_session(workshop.request) as session:
        assert session.survey().todo == ()


def test_orphans_are_removed_only_if_the_whole_build_succeeds(workshop: Workshop) -> None:
    built(workshop)
    changes = [('path: "dist/${group}"', 'path: "other/${group}"')]
    workshop.write_recipe(*changes, ("expect: {fallback_nodes: any}", "expect: {fallback_nodes: 0}"))
    assert built(workshop)[0] != 0
    assert workshop.output("classifier").exists()
    workshop.write_recipe(*changes)
    assert built(workshop)[0] == 0
    assert not workshop.output("classifier").exists()


def test_a_build_of_selected_steps_keeps_orphans(workshop: Workshop) -> None:
    built(workshop)
    workshop.write_recipe(('path: "dist/${group}"', 'path: "other/${group}"'))
    with open_session(replace(workshop.request, selection=(EMIT_DECODER,))) as session:
        assert session.survey().orphans == ()
    with open_session(workshop.request) as session:
        assert len(session.survey().orphans) == 2


def test_a_cancelled_build_is_an_interrupt_and_keeps_finished_results(workshop: Workshop) -> None:
    cancelled, events = threading.Event(), EventList()

    class CancelsAfterOne(EventList):
        def report(self, event: object, /) -> None:
            events.report(event)  # type: ignore[arg-type]
            if isinstance(event, StepFinished):
                cancelled.set()

    with pytest.raises(KeyboardInterrupt):
        run(workshop.request, CancelsAfterOne(), cancelled)
    assert not [event for event in events if isinstance(event, RunFinished)]
    first = [event.step for event in events if isinstance(event, StepFinished)]
    assert first
    workshop.build()
    again = {event.step for event in workshop.events if isinstance(event, StepFinished) and event.outcome == "built"}
    assert again.isdisjoint(first)


def test_a_missing_lock_refuses_a_locked_session_before_anything_is_written(workshop: Workshop) -> None:
    for builds in (False, True):
        with pytest.raises(PlanError) as failure, open_session(replace(workshop.request, locked=True), builds=builds):
            pass
        assert [problem.code for problem in failure.value.problems] == ["EPB241"]
    assert not (workshop.folder / ".epbuild").exists()


def test_a_broken_recipe_refuses_a_session_before_anything_is_written(workshop: Workshop) -> None:
    (workshop.folder / "epbuild.yaml").write_text("epbuild: 1\nmodels: 7\n", encoding="utf-8")
    with pytest.raises(RecipeError), open_session(workshop.request, builds=True):
        pass
    assert not (workshop.folder / ".epbuild").exists()


def test_files_that_windows_keeps_are_removed_by_the_next_run(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    unlink = os.unlink

    def refuse(path: Any, **options: Any) -> None:
        if os.fspath(path).endswith("prefill_qnn.bin"):
            raise PermissionError(13, "Access is denied")
        unlink(path, **options)

    (workshop.folder / "fingerprint.json").write_text("{}", encoding="utf-8")
    workshop.build()
    (workshop.folder / "prefill.onnx").write_bytes(source_model(7.0))
    time.sleep(SETTLED_SECONDS)
    with monkeypatch.context() as patched:
        patched.setattr(os, "unlink", refuse)
        assert workshop.build().exit_code == 0
    assert len(list((workshop.folder / "dist").glob(".decoder.epbuild-*"))) == 1
    time.sleep(SETTLED_SECONDS)
    assert read_last(workshop.request) is None
    assert workshop.build().current == len(STEPS)
    assert list((workshop.folder / "dist").glob(".decoder.epbuild-*")) == []
    time.sleep(SETTLED_SECONDS)
    assert read_last(workshop.request) is not None


def test_a_snapshot_answers_only_requests_without_additional_work(workshop: Workshop) -> None:
    workshop.build()
    more: list[dict[str, Any]] = [
        {"rebuild_and_compare": True},
        {"every_model": True},
        {"emits": False},
        {"push_only": True},
        {"locked": True},
        {"remote": RemoteChoice("write")},
        {"selection": (EMIT_DECODER,)},
        {"settings": ("vars.quality=2",)},
    ]
    assert [read_last(replace(workshop.request, **changes)) for changes in more] == [None] * len(more)


def test_the_survey_of_a_snapshot_has_the_states_of_all_steps(workshop: Workshop) -> None:
    (workshop.folder / "fingerprint.json").write_text("{}", encoding="utf-8")
    time.sleep(SETTLED_SECONDS)
    workshop.build()
    time.sleep(SETTLED_SECONDS)
    last = read_last(workshop.request)
    assert last is not None
    found = read_survey(last)
    assert found.up_to_date
    assert [(status.step.id, status.state) for status in found.steps()] == [(step, "current") for step in STEPS]


def test_results_without_an_output_are_looked_up_by_every_run(workshop: Workshop) -> None:
    with open_session(workshop.request, builds=True) as session:
        found = session.survey()
        actions = session.build(found)
        outputs = find_last_outputs(found.plan, session.surveyor)
        ends = collect_ends(found, actions.made, actions.outcomes, outputs, session.surveyor)
        none_emitted = {ident: "skipped" if ident.startswith("emit") else "built" for ident in actions.outcomes}
        partly = collect_ends(found, actions.made, none_emitted, outputs, session.surveyor)  # type: ignore[arg-type]
    assert all(end.is_current for end in ends.values())
    assert ends[SHARE] == ActionEnd(actions.made[SHARE].key, is_current=True)
    assert [partly[ident].is_current for ident in (CLASSIFIER, EMIT_CLASSIFIER)] == [True, False]
