"""Builds of results only, and of outputs only."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from epbuild.commands.plan import survey
from epbuild.commands.run import run
from epbuild.engine.events import EventList, RunFinished, RunStarted, StepFailed
from epbuild.session.events import ModelCovered
from epbuild.session.request import RemoteChoice, Request
from tests.session.shared_machines import (
    ALL_COMPILES,
    Machines,
    origins,
    outputs,
    shared_by,
    used,
    warnings,
)
from tests.support.fake_builds import CLASSIFIER, COMPILES, EMIT_CLASSIFIER, EMIT_DECODER, SHARE, STEPS, Workshop
from tests.support.remote_caches import Place

RESULTS = {*COMPILES, SHARE, CLASSIFIER}


@pytest.fixture
def workshop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workshop:
    return Workshop(tmp_path / "checkout", tmp_path / "cache", monkeypatch)


def build(workshop: Workshop, request: Request) -> RunFinished:
    workshop.compiled.clear()
    workshop.events = EventList()
    run(request, workshop.events)
    [finished] = [event for event in workshop.events if isinstance(event, RunFinished)]
    return finished


def results_of(workshop: Workshop, *selection: str) -> RunFinished:
    return build(workshop, replace(workshop.request, selection=selection, emits=False))


def outputs_of(workshop: Workshop, *, keep_going: bool = False) -> RunFinished:
    return build(workshop, replace(workshop.request, compiles=False, keep_going=keep_going))


def test_a_build_of_results_emits_no_output(workshop: Workshop) -> None:
    assert results_of(workshop).exit_code == 0
    assert workshop.compiled == ALL_COMPILES
    assert set(origins(workshop)) == RESULTS
    assert not (workshop.folder / "dist").exists()
    assert workshop.states() == {**dict.fromkeys(STEPS, "current"), EMIT_DECODER: "new", EMIT_CLASSIFIER: "new"}
    results_of(workshop)
    assert (workshop.compiled, {outcome for outcome, _ in origins(workshop).values()}) == ([], {"current"})


def test_selecting_an_output_builds_its_results(workshop: Workshop) -> None:
    assert results_of(workshop, EMIT_CLASSIFIER).exit_code == 0
    assert (workshop.compiled, set(origins(workshop))) == (["classifier"], {CLASSIFIER})


def test_building_results_does_not_change_outputs(workshop: Workshop) -> None:
    workshop.build()
    made = outputs(workshop)
    workshop.write_recipe(("quality: 3", "quality: 2"), ('path: "dist/${group}"', 'path: "elsewhere/${group}"'))
    assert results_of(workshop).exit_code == 0
    assert (workshop.compiled, outputs(workshop)) == (["prefill+decode"], made)
    workshop.build()
    assert (workshop.compiled, workshop.output().exists()) == ([], False)  # now the recipe no longer asks for them


def test_lost_results_of_a_current_recipe_are_compiled_again(workshop: Workshop) -> None:
    workshop.build()
    workshop.lose_blobs()
    workshop.build()
    assert workshop.compiled == []
    results_of(workshop)
    assert sorted(workshop.compiled) == sorted(ALL_COMPILES)  # in whatever order, since it was measured
    workshop.build()
    assert (workshop.compiled, {outcome for outcome, _ in origins(workshop).values()}) == ([], {"current"})


def test_results_of_other_machines_are_not_downloaded(place: Place, machines: Machines) -> None:
    shared_by(machines)
    reader = machines("reader")
    for _ in range(2):
        assert results_of(reader).exit_code == 0
        assert (reader.compiled, warnings(reader), reader.blobs()) == ([], [], [])
        assert origins(reader) == dict.fromkeys(RESULTS, ("restored", "remote"))
        [started] = [event for event in reader.events if isinstance(event, RunStarted)]
        assert (started.todo, used(reader).found) == (0, 2)


def test_results_are_built_on_one_machine_and_emitted_on_another(place: Place, machines: Machines) -> None:
    maker = machines("maker")
    maker.remote = RemoteChoice("write")
    assert results_of(maker).exit_code == 0
    assert (maker.compiled, used(maker).published) == (ALL_COMPILES, 2)
    publisher = machines("publisher")
    assert outputs_of(publisher).exit_code == 0
    assert publisher.compiled == []
    assert publisher.states() == dict.fromkeys(STEPS, "current")
    other = machines("other")
    other.remote = None
    other.build()
    assert outputs(publisher) == outputs(other)


def test_without_compiling_a_missing_result_is_named_and_not_emitted(workshop: Workshop) -> None:
    workshop.build(CLASSIFIER)
    assert outputs_of(workshop).exit_code == 1
    assert (workshop.compiled, workshop.failures) == ([], ["EPB406"])
    [failed] = [event for event in workshop.events if isinstance(event, StepFailed)]
    assert failed.step == SHARE
    [problem] = failed.problems
    assert problem.hint == f"Build it with `epbuild run --no-emit --remote-cache write {SHARE}`."
    assert origins(workshop)[EMIT_CLASSIFIER] == ("skipped", None)
    assert not (workshop.folder / "dist").exists()
    assert workshop.states()[SHARE] == "new"  # this is no failure of the step
    workshop.build()
    assert workshop.compiled == ["prefill+decode"]


def test_without_compiling_every_missing_result_is_named(workshop: Workshop) -> None:
    assert outputs_of(workshop).exit_code == 1
    failed = [event.step for event in workshop.events if isinstance(event, StepFailed)]
    assert sorted(failed) == sorted([SHARE, CLASSIFIER])
    assert not [event for event in workshop.events if isinstance(event, ModelCovered)]  # their coverage is unknown


def test_keep_going_emits_existing_results_despite_missing_results(workshop: Workshop) -> None:
    workshop.build(CLASSIFIER)
    assert outputs_of(workshop, keep_going=True).exit_code == 1
    assert workshop.failures == ["EPB406"]
    assert origins(workshop)[EMIT_CLASSIFIER] == ("emitted", None)
    assert (workshop.output("classifier").is_dir(), workshop.output().exists()) == (True, False)


def test_without_compiling_a_result_with_lost_blobs_fails(place: Place, machines: Machines) -> None:
    shared_by(machines)
    for name in place.names("cas"):
        place.write("cas", name, None)
    reader = machines("reader")
    assert outputs_of(reader).exit_code == 1
    assert (reader.compiled, set(reader.failures)) == ([], {"EPB406"})
    assert not (reader.folder / "dist").exists()


def test_without_emitting_or_compiling_a_build_checks_that_results_exist(place: Place, machines: Machines) -> None:
    shared_by(machines)
    reader = machines("reader")
    assert build(reader, replace(reader.request, emits=False, compiles=False)).exit_code == 0
    (reader.folder / "classifier.onnx").write_bytes((reader.folder / "prefill.onnx").read_bytes())
    assert build(reader, replace(reader.request, emits=False, compiles=False)).exit_code == 1
    assert [event.step for event in reader.events if isinstance(event, StepFailed)] == [CLASSIFIER]
    assert reader.blobs() == []


def test_results_lost_from_the_store_are_emitted_from_the_remote_cache(place: Place, machines: Machines) -> None:
    made = shared_by(machines)
    reader = machines("reader")
    reader.build()
    reader.lose_blobs()
    for group in made:
        for path in reader.output(group).iterdir():
            path.unlink()
    found = survey(reader.request)
    assert {status.step.id for status in found.steps() if status.remote} == RESULTS
    assert outputs_of(reader).exit_code == 0
    assert (reader.compiled, outputs(reader)) == ([], made)


def test_a_build_of_results_writes_no_snapshot(workshop: Workshop) -> None:
    workshop.build()
    results_of(workshop)
    for path in workshop.output().iterdir():
        path.unlink()
    results_of(workshop)
    assert workshop.states()[EMIT_DECODER] == "restorable"
    workshop.build()
    assert origins(workshop)[EMIT_DECODER] == ("emitted", None)
