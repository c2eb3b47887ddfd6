"""Plan of `verify`: one step for each group and target, between the compiles and the emissions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from epbuild.plan.steps import Step
from epbuild.plan.verification import Verification
from tests.support.plan_recipes import RECIPE, edited, plan_of, problems_of, write_models
from tests.support.recipe_texts import MARK, codes_and_places, places

SHARED = "share:decoder/phone"
VERIFY = "verify:decoder/phone"
EMIT = "emit:decoder/phone/directory"
SETTINGS = "    share_weights: true\n"


@pytest.fixture
def workshop(tmp_path: Path) -> Path:
    write_models(tmp_path)
    np.savez(tmp_path / "models" / "a.npz", x=np.zeros(4, np.float32))
    (tmp_path / "models" / "a.txt").write_text("no arrays", encoding="utf-8")
    return tmp_path


def checking(verify: str, *changes: tuple[str, str]) -> str:
    """Return the recipe with `verify` in the group `decoder`."""
    return edited(RECIPE, (SETTINGS, f"{SETTINGS}    verify: {verify}\n"), *changes)


def verification(folder: Path, text: str) -> Verification:
    action = plan_of(folder, text).actions[VERIFY]
    assert isinstance(action, Verification)
    return action


def test_verification_is_a_step_between_compile_and_emit(workshop: Path) -> None:
    plan = plan_of(workshop, checking("true"))
    steps = [step for step in plan.steps if "decoder" in step.id]
    assert steps[-2:] == [Step(VERIFY, "verify", (SHARED,), VERIFY), Step(EMIT, "emit", (SHARED, VERIFY), EMIT)]
    assert plan.emissions[EMIT].needs == (SHARED, VERIFY)
    assert not any(step.kind == "verify" for step in plan_of(workshop).steps)


def test_a_merged_model_is_verified_through_its_members(workshop: Path) -> None:
    plan = plan_of(workshop, checking("true\n    merge: {name: llm}"))
    needs = {step.id: step.needs for step in plan.steps}
    assert needs[EMIT] == ("merge:decoder/phone", VERIFY)
    assert needs[VERIFY] == (SHARED,)


def test_selecting_verification_selects_its_dependencies(workshop: Path) -> None:
    plan = plan_of(workshop, checking("true"), ["verify:*"])
    assert [step.id for step in plan.steps] == ["compile:decoder/phone/prefill", "compile:decoder/phone/decode", SHARED, VERIFY]


def test_a_models_verification_applies_to_every_target_unless_overridden(workshop: Path) -> None:
    own = (
        "  prefill: models/prefill.onnx",
        "  prefill: {path: models/prefill.onnx, verify: {data: models/*.npz, metrics: {top1: 1}}}",
    )
    plan = plan_of(workshop, edited(RECIPE, own))
    assert [step.id for step in plan.steps if step.kind == "verify"] == [VERIFY, "verify:vision/cpu"]
    (checked,) = verification(workshop, edited(RECIPE, own)).members
    assert (checked.name, list(checked.inputs), checked.user_thresholds.top1) == ("prefill", ["models/a.npz"], 1)
    first, second = verification(workshop, checking("{metrics: {cosine: 0.5}}", own)).members
    assert (list(first.inputs), first.user_thresholds.cosine, first.user_thresholds.top1) == (["models/a.npz"], 0.5, None)
    assert (second.made is not None, second.user_thresholds.cosine) == (True, 0.5)
    without = checking("false", own)
    assert [step.id for step in plan_of(workshop, without).steps if step.kind == "verify"] == ["verify:vision/cpu"]


def test_a_real_device_for_one_model_is_required_for_its_whole_group(workshop: Path) -> None:
    own = ("  prefill: models/prefill.onnx", "  prefill: {path: models/prefill.onnx, verify: {device: real}}")
    assert not verification(workshop, checking("true")).is_on_real_device
    assert verification(workshop, checking("{device: real}")).is_on_real_device
    assert verification(workshop, checking("{metrics: {cosine: 0.5}}", own)).is_on_real_device


def test_an_output_without_verification_does_not_wait_for_another_targets(workshop: Path) -> None:
    plan = plan_of(workshop, checking("true"))
    assert plan.emissions["emit:vision/cpu/directory"].parts[0].verification is None


@pytest.mark.parametrize(
    ("verify", "code", "words"),
    [
        (f"{{data: {MARK}models/none*.npz}}", "EPB290", "no input file matches 'models/none*.npz'"),
        (f"{{data: {MARK}/**/*.npz}}", "EPB273", "'/**/*.npz' would search all of"),
        (f"{{data: [models/a.npz, {MARK}models/a.txt]}}", "EPB290", "the input file 'a.txt' is not a .npz file"),
        (f"{{data: {{ranges: {{{MARK}ids: [0, 9]}}}}}}", "EPB291", "the model 'prefill' has no input 'ids', only x"),
    ],
)
def test_missing_input_files_are_reported_at_their_position(workshop: Path, verify: str, code: str, words: str) -> None:
    text, marked = places(checking(verify))
    problems = problems_of(workshop, text)
    assert codes_and_places(problems)[0] == (code, *marked[0])
    assert words in problems[0].message
