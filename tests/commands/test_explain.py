"""`epbuild explain`: the exact cause, traced back to its origin, and always in agreement with `plan`."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from epbuild.commands.plan import Explanation, explain
from epbuild.core.errors import PlanError
from tests.support.fake_builds import CLASSIFIER, COMPILES, EMIT_DECODER, SHARE, STEPS, Workshop, source_model

QUALITY = "option htp_graph_finalization_optimization_mode of QNNExecutionProvider changed: 3 -> 1"


@pytest.fixture
def workshop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workshop:
    return Workshop(tmp_path / "checkout", tmp_path / "cache", monkeypatch)


@pytest.fixture
def built(workshop: Workshop) -> Workshop:
    assert workshop.build().exit_code == 0
    return workshop


def explained_step(workshop: Workshop, step: str) -> Explanation:
    """Return the explanation of one step. Fail if it disagrees with the plan."""
    [found] = explain(workshop.request, [step])
    [planned] = [status for status in workshop.survey().steps() if status.step.id == step]
    assert (found.state, found.reasons, found.key) == (planned.state, planned.reasons, planned.key)
    return found


def changes_of(explanation: Explanation) -> list[str]:
    return [str(change) for change in explanation.changes]


def test_step_that_was_never_built_is_new_and_has_no_changes(workshop: Workshop) -> None:
    found = explained_step(workshop, SHARE)
    assert (found.state, found.previous_key, found.built, found.changes) == ("new", None, None, ())
    assert found.key is not None


def test_similar_result_of_another_checkout_is_not_compared(
    built: Workshop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = built.checkout(tmp_path / "other", monkeypatch)
    other.write_recipe(("quality: 3", "quality: 1"))
    found = explained_step(other, SHARE)
    assert (found.state, found.changes, found.reasons) == ("new", (), ())


def test_current_step_has_a_key_and_a_build_time_but_no_changes(workshop: Workshop) -> None:
    begin = time.time()
    workshop.build()
    end = time.time()
    found = explained_step(workshop, SHARE)
    assert (found.state, found.changes, found.causes) == ("current", (), ())
    assert found.key == found.previous_key
    assert found.built is not None
    assert begin <= found.built <= end


def test_touched_but_unchanged_file_leaves_its_steps_current(built: Workshop) -> None:
    for path in (built.folder / "prefill.onnx", built.output() / "prefill_qnn.bin"):
        os.utime(path, ns=(1, 1))
    assert {found.state for found in explain(built.request, ["*"])} == {"current"}


def test_every_step_of_a_sharing_group_names_the_changed_member(built: Workshop) -> None:
    before = explained_step(built, SHARE)
    (built.folder / "decode.onnx").write_bytes(source_model(7.0))
    for step in (*COMPILES, SHARE):
        found = explained_step(built, step)
        assert found.previous_key == before.key != found.key
        [change] = found.changes
        assert change.what == "model decode"
        assert change.place == ("members", "decode", "graph")
        assert len(change.old) == len(change.new) == 64


def test_waiting_output_is_explained_by_the_unfinished_step(built: Workshop) -> None:
    built.write_recipe(("quality: 3", "quality: 1"))
    found = explained_step(built, EMIT_DECODER)
    assert found.reasons == (f"needs {SHARE}",)
    [cause] = found.causes
    assert (cause.step.id, cause.state) == (SHARE, "out of date")
    assert changes_of(cause) == [QUALITY]


def test_output_of_a_finished_compile_is_explained_by_the_compile(built: Workshop) -> None:
    built.write_recipe(("quality: 3", "quality: 1"))
    assert built.build(SHARE).exit_code == 0
    found = explained_step(built, EMIT_DECODER)
    assert found.state == "out of date"
    [cause] = found.causes
    assert (cause.step.id, cause.state, cause.reasons) == (SHARE, "current", ())
    assert changes_of(cause) == [QUALITY]


def test_reverted_change_is_explained_and_needs_no_compile(built: Workshop) -> None:
    built.write_recipe(("quality: 3", "quality: 1"))
    built.build()
    built.write_recipe()
    [cause] = explained_step(built, EMIT_DECODER).causes
    assert (cause.step.id, cause.state) == (SHARE, "restorable")
    assert changes_of(cause) == [QUALITY.replace("3 -> 1", "1 -> 3")]


def test_damaged_output_files_are_named_without_a_further_cause(built: Workshop) -> None:
    (built.output() / "prefill_qnn.bin").unlink()
    (built.output() / "decode_ctx.onnx").write_bytes(b"short")
    found = explained_step(built, EMIT_DECODER)
    assert found.state == "restorable"
    [size] = [reason for reason in found.reasons if reason.startswith("decode_ctx.onnx has 5 bytes instead of ")]
    kept = "decode_ctx.onnx was changed after epbuild wrote it, and will be kept"
    assert sorted(found.reasons) == sorted([size, "prefill_qnn.bin is missing", kept])
    assert found.causes == ()


def test_unrestorable_damage_is_explained_by_the_lost_result(built: Workshop) -> None:
    (built.output() / "prefill_qnn.bin").unlink()
    built.lose_blobs()
    [cause] = explained_step(built, EMIT_DECODER).causes
    assert (cause.step.id, cause.reasons) == (SHARE, ("its result is no longer in the store",))


def test_step_with_lost_blobs_is_current_while_its_outputs_exist(built: Workshop) -> None:
    built.lose_blobs()
    assert explained_step(built, SHARE).state == "current", "its outputs are in place, so `run` would not build it"


def test_step_without_its_toolchain_is_explained_without_a_key(built: Workshop) -> None:
    built.toolchain_is_there = False
    found = explained_step(built, CLASSIFIER)
    assert found.reasons == ("the toolchain 'qnn' is not provisioned yet",)
    assert (found.key, found.changes) == (None, ())
    assert found.previous_key is not None


def test_stricter_expectation_is_explained_with_an_unchanged_key(built: Workshop) -> None:
    built.write_recipe(("fallback_nodes: 1", "fallback_nodes: 0"))
    found = explained_step(built, SHARE)
    assert found.key == found.previous_key
    assert found.changes == ()
    assert all("The recipe expects at most 0" in reason for reason in found.reasons)
    assert len(found.reasons) == 2


def test_glob_explains_each_matching_step_once_in_plan_order(built: Workshop) -> None:
    assert [found.step.id for found in explain(built.request, ["*"])] == STEPS
    assert [found.step.id for found in explain(built.request, [SHARE, "share:*", COMPILES[0]])] == [COMPILES[0], SHARE]


def test_glob_without_a_match_suggests_the_nearest_steps(built: Workshop) -> None:
    with pytest.raises(PlanError) as refused:
        explain(built.request, [SHARE, "compile:decoder/npu/decoded"])
    [problem] = refused.value.problems
    assert problem.code == "EPB240"
    assert problem.hint is not None
    assert problem.hint.startswith(f"Did you mean '{COMPILES[1]}'")


def test_explain_writes_nothing(workshop: Workshop) -> None:
    before = sorted(workshop.folder.rglob("*"))
    explain(workshop.request, ["*"])
    assert sorted(workshop.folder.rglob("*")) == before
    assert not workshop.cache.exists()
