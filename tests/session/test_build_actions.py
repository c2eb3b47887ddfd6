"""Single actions: looked up in the store, run, judged and recorded. The worker and the toolchain are fakes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from epbuild.core.errors import BuildError, Cancelled, VerifyError
from epbuild.engine.events import EventList, StepFailed, StepFinished
from epbuild.session.build import BuildExecutor
from epbuild.session.events import ModelCovered
from epbuild.session.execution import ActionRunner, MissingResultError
from epbuild.session.session import Session, open_session
from epbuild.toolchain.process import Ending
from tests.support.fake_builds import CLASSIFIER, COMPILES, EMIT_CLASSIFIER, EMIT_DECODER, SHARE, Workshop

STRICT = ("    expect: {fallback_nodes: any}\n", "    expect: {fallback_nodes: 0}\n")


@pytest.fixture
def workshop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workshop:
    return Workshop(tmp_path / "checkout", tmp_path / "cache", monkeypatch)


@contextmanager
def open_actions(workshop: Workshop, runner: ActionRunner | None = None) -> Iterator[tuple[BuildExecutor, EventList, Session]]:
    """Yield the actions of a build that has not begun."""
    events = EventList()
    with open_session(workshop.request, events, builds=True) as session:
        found = session.survey()
        actions = BuildExecutor(
            found, session.provisioning, session.surveyor, events, session.cancelled, runner=runner or ActionRunner()
        )
        actions.expect(1)
        actions.adopt_current()
        yield actions, events, session


def outcomes(events: EventList) -> dict[str, str]:
    return {event.step: event.outcome for event in events if isinstance(event, StepFinished)}


def break_worker(workshop: Workshop) -> list[str]:
    """Make every compile fail, and return a list that gets an item for each."""
    tried: list[str] = []

    def fail(command: object, folder: Path, log: Path, **options: Any) -> Ending:
        member = json.loads((folder / "request.json").read_text(encoding="utf-8"))["members"][0]["name"]
        tried.append(member)
        log.write_text("no\n", encoding="utf-8")
        said = {"event": "failed", "kind": "error", "type": "Fail", "message": "Operator Foo is not supported"}
        return Ending("exited", 1, ({"event": "member_started", "member": member}, said), ())

    workshop.run_worker = fail
    return tried


def test_an_action_without_a_result_is_run_recorded_and_reported(workshop: Workshop) -> None:
    with open_actions(workshop) as (actions, events, session):
        actions.execute(SHARE)
        made = actions.made[SHARE]
        assert session.surveyor.result(made.action, made.key) == made.result
        recorded = session.surveyor.memory.previous(SHARE)
        assert recorded is not None
        assert recorded.action_key == made.key
    assert workshop.compiled == ["prefill+decode"]
    assert outcomes(events) == dict.fromkeys([*COMPILES, SHARE], "built")


def test_a_result_in_the_store_is_restored_without_a_run(workshop: Workshop, tmp_path: Path, monkeypatch: Any) -> None:
    workshop.build()
    other = workshop.checkout(tmp_path / "other", monkeypatch)
    with open_actions(other) as (actions, events, _):
        assert set(actions.made) == {SHARE, CLASSIFIER}
        actions.execute(EMIT_CLASSIFIER)
    assert other.compiled == []
    assert outcomes(events)[CLASSIFIER] == "restored"
    assert outcomes(events)[EMIT_CLASSIFIER] == "emitted"


def test_a_result_stored_meanwhile_by_another_build_is_restored(
    workshop: Workshop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = workshop.checkout(tmp_path / "other", monkeypatch)
    with open_actions(workshop) as (actions, events, _):
        other.build()
        actions.execute(CLASSIFIER)
    assert workshop.compiled == []
    assert outcomes(events) == {CLASSIFIER: "restored"}


def test_a_result_below_expectations_is_stored_and_rejected_without_another_run(workshop: Workshop) -> None:
    workshop.write_recipe(STRICT)
    for _ in range(2):
        with open_actions(workshop) as (actions, _, _), pytest.raises(VerifyError):
            actions.execute(CLASSIFIER)
        assert CLASSIFIER not in actions.made
    assert workshop.compiled == ["classifier"]
    workshop.write_recipe()
    with open_actions(workshop) as (actions, _, _):
        assert CLASSIFIER in actions.made


def test_a_recorded_failure_is_not_retried(workshop: Workshop) -> None:
    tried = break_worker(workshop)
    with open_actions(workshop) as (actions, _, _), pytest.raises(BuildError):
        actions.execute(CLASSIFIER)
    with open_actions(workshop) as (actions, events, _):
        with pytest.raises(BuildError) as again:
            actions.execute(CLASSIFIER)
        assert not actions.fail(CLASSIFIER, again.value)
    assert tried == ["classifier"]
    assert [event.step for event in events if isinstance(event, StepFailed)] == [CLASSIFIER]


def test_a_recorded_failure_is_retried_on_request(workshop: Workshop) -> None:
    tried = break_worker(workshop)
    for _ in range(2):
        with open_actions(workshop, ActionRunner(retry=True)) as (actions, _, _), pytest.raises(BuildError):
            actions.execute(CLASSIFIER)
    assert tried == ["classifier"] * 2
    workshop.run_worker = workshop.worker
    with open_actions(workshop, ActionRunner(retry=True)) as (actions, _, session):
        actions.execute(CLASSIFIER)
        assert session.surveyor.failures.of(CLASSIFIER, actions.made[CLASSIFIER].key) is None


def test_an_allowed_failure_skips_only_dependent_actions(workshop: Workshop) -> None:
    workshop.write_recipe(("    models: [classifier]\n", "    models: [classifier]\n    allow_failure: true\n"))
    break_worker(workshop)
    with open_actions(workshop) as (actions, events, _):
        with pytest.raises(BuildError) as failure:
            actions.execute(CLASSIFIER)
        assert actions.fail(CLASSIFIER, failure.value)
        actions.skip(EMIT_CLASSIFIER)
    assert outcomes(events) == {EMIT_CLASSIFIER: "skipped"}
    assert [event.allowed for event in events if isinstance(event, StepFailed)] == [True]


def test_no_action_starts_after_a_build_is_cancelled(workshop: Workshop) -> None:
    with open_actions(workshop) as (actions, events, _):
        actions.cancelled.set()
        with pytest.raises(Cancelled):
            actions.execute(SHARE)
    assert workshop.compiled == []
    assert outcomes(events) == {}


def test_an_emit_step_rebuilds_a_result_lost_from_the_store(workshop: Workshop) -> None:
    with open_actions(workshop) as (actions, events, _):
        actions.execute(SHARE)
        workshop.lose_blobs()
        actions.execute(EMIT_DECODER)
    assert workshop.compiled == ["prefill+decode"] * 2
    assert outcomes(events)[EMIT_DECODER] == "emitted"
    assert workshop.contents()


def test_without_compiling_missing_results_fail_and_others_are_skipped(workshop: Workshop) -> None:
    with open_actions(workshop, ActionRunner(compiles=False)) as (actions, events, _):
        actions.give_up({CLASSIFIER})
        with pytest.raises(MissingResultError, match="neither in the store nor in a remote cache"):
            actions.execute(SHARE)
    assert [event.step for event in events if isinstance(event, StepFailed)] == [CLASSIFIER]
    assert set(outcomes(events)) == {*COMPILES, SHARE, EMIT_DECODER, EMIT_CLASSIFIER}
    assert set(outcomes(events).values()) == {"skipped"}


def test_an_action_of_another_machine_needs_no_memory_here(workshop: Workshop) -> None:
    class Others:
        def runs(self, action: object) -> bool:
            return True

    with open_actions(workshop, ActionRunner(elsewhere=Others())) as (actions, _, _):  # type: ignore[arg-type]
        assert actions.memory(SHARE) == actions.memory(EMIT_DECODER) == 0
    with open_actions(workshop) as (actions, _, _):
        assert actions.memory(SHARE) > 0 == actions.memory(EMIT_DECODER)
        assert [actions.cost(ident).measured for ident in (EMIT_DECODER, SHARE)] == [True, False]


def test_totals_report_the_coverage_of_new_models_or_of_every_model(workshop: Workshop) -> None:
    workshop.build()
    for every_model in (False, True):
        with open_actions(workshop) as (actions, events, _):
            ended = actions.finished(1.0, every_model=every_model)
        assert ended.exit_code == 0
        covered = {event.model for event in events if isinstance(event, ModelCovered)}
        assert covered == ({"prefill", "decode", "classifier"} if every_model else set())


def test_an_input_that_changes_during_a_run_leaves_no_result(workshop: Workshop) -> None:
    def change(command: object, folder: Path, log: Path, **options: Any) -> Ending:
        ending = workshop.worker(command, folder, log, **options)
        (workshop.folder / "classifier.onnx").write_bytes(b"another")
        return ending

    workshop.run_worker = change
    with open_actions(workshop) as (actions, _, session):
        key = session.survey().actions[CLASSIFIER].key
        with pytest.raises(BuildError) as failure:
            actions.execute(CLASSIFIER)
        assert [problem.code for problem in failure.value.problems] == ["EPB415"]
        assert key is not None
        assert session.surveyor.records.get(key) is None


def test_a_toolchain_that_changes_before_a_run_stops_it(workshop: Workshop) -> None:
    with open_actions(workshop) as (actions, _, session):
        [(name, environment)] = session.toolchains.environments.items()
        other = replace(environment.fingerprint, files={"onnxruntime_qnn/libQnnHtp.so": "cd" * 32})
        session.provisioning.current = lambda action: replace(environment, fingerprint=other)  # type: ignore[method-assign]
        with pytest.raises(BuildError, match=f"toolchain '{name}' changed before the model was compiled"):
            actions.execute(CLASSIFIER)
    assert workshop.compiled == []
