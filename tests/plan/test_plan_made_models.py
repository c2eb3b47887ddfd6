"""Models that are made of other models: their steps, their groups, and their sources."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from epbuild.actions.types import get_action_type
from epbuild.plan.preparing import Preparation
from epbuild.plan.steps import Action
from epbuild.plan.verification import Verification
from epbuild.recipe.load import load
from epbuild.recipe.model import Recipe
from epbuild.session.lock_fit import list_remote_models
from tests.support.plan_recipes import RECIPE, edited, plan_of, problems_of, write_models

MODELS = """\
models:
  llm:
    path: models/prefill.onnx
    prepare: [{run: [python, fold.py, "${in}", "${out}"], files: [fold.py], toolchain: tools}]
  first: {from: llm, prepare: [{cut: {outputs: [z]}}]}
  second: {from: llm, prepare: [{cut: {inputs: [z]}}, {opset: 21}]}
  last: {from: second, prepare: [{opset: 22}]}
"""
FROM_FILE = """\
models:
  llm: {path: models/prefill.onnx, input_shapes: {x: [1]}}
  first: {from: llm, prepare: [{opset: 21}]}
"""
MADE = """\
models:
  llm:
    make: {run: [python, fold.py, --layers, 4, "${out}"], files: [fold.py], toolchain: tools}
    prepare: [{cut: {outputs: [z]}}]
  first: {from: llm, prepare: [{opset: 21}]}
  second: {make: {run: [python, fold.py, "${out}", "${model}"], files: [fold.py], toolchain: tools}, verify: true}
"""
GROUPS = RECIPE[RECIPE.index("groups:") : RECIPE.index("outputs:")]
LLM, FIRST = "prepare:llm/1-run", "prepare:first/1-cut"


def recipe(models: str, groups: str = "") -> str:
    start, end = RECIPE.index("models:"), RECIPE.index("targets:")
    text = edited(RECIPE[:start] + models + RECIPE[end:], (GROUPS, groups))
    return edited(text, ("toolchains:\n", "toolchains:\n  tools: {packages: [onnx]}\n"))


@pytest.fixture
def workshop(tmp_path: Path) -> Path:
    write_models(tmp_path)
    (tmp_path / "fold.py").touch()
    return tmp_path


def needs(workshop: Path, text: str) -> dict[str, tuple[str, ...]]:
    return {step.id: step.needs for step in plan_of(workshop, text).steps if step.kind == "prepare"}


def test_children_continue_the_preparations_of_their_parent(workshop: Path) -> None:
    assert needs(workshop, recipe(MODELS)) == {
        LLM: (),
        FIRST: (LLM,),
        "prepare:second/1-cut": (LLM,),
        "prepare:second/2-opset": ("prepare:second/1-cut",),
        "prepare:last/1-opset": ("prepare:second/2-opset",),
    }


def test_a_command_that_makes_a_model_is_its_first_step(workshop: Path) -> None:
    text = recipe(MADE)
    assert needs(workshop, text) == {
        "prepare:llm/make": (),
        "prepare:llm/1-cut": ("prepare:llm/make",),
        "prepare:first/1-opset": ("prepare:llm/1-cut",),
        "prepare:second/make": (),
    }
    plan = plan_of(workshop, text)
    make = plan.of(Preparation)["prepare:second/make"]
    assert make.command == ("python", "files/fold.py", "out/second.onnx", "second")
    assert make.files == (workshop / "fold.py",)
    assert plan.sources() == []
    assert plan.of(Verification)["verify:second/phone"].needs == ("prepare:second/make", "compile:second/phone/second")


def test_the_size_of_an_unmade_model_is_estimated_from_its_files(workshop: Path) -> None:
    (workshop / "fold.py").write_bytes(bytes(1000))
    plan = plan_of(workshop, recipe(MADE))
    actions: list[Action] = [*plan.of(Preparation).values(), *plan.session_groups.values()]
    assert {get_action_type(action).size(action) for action in actions} == {1000}
    (workshop / "fold.py").write_bytes(b"")
    plan = plan_of(workshop, recipe(MODELS))
    size = (workshop / "models/prefill.onnx").stat().st_size
    assert {get_action_type(action).size(action) for action in plan.of(Preparation).values()} == {size}


@pytest.mark.parametrize(
    ("run", "said"),
    [
        ("[python, fold.py]", "the command of 'prepare:llm/make' does not use ${out}, the model to write"),
        (
            '[python, "${in}", "${out}"]',
            "the command of 'prepare:llm/make' uses ${in}, but there is no model to read before 'make'",
        ),
        ('[python, decode.py, "${out}"]', "refers to 'decode.py', which the command cannot read"),
    ],
)
def test_a_wrong_command_of_make_is_refused_at_its_place(workshop: Path, run: str, said: str) -> None:
    (workshop / "decode.py").touch()
    text = recipe(edited(MADE, ('[python, fold.py, --layers, 4, "${out}"]', run)))
    [problem] = problems_of(workshop, text)
    assert said in problem.message
    assert str(problem.where).startswith(f"{workshop / 'epbuild.yaml'}:11:")


def test_a_parent_has_no_group_unless_a_group_lists_it(workshop: Path) -> None:
    assert [*load_text(workshop, recipe(MODELS)).groups] == ["first", "last"]
    listed = recipe(MODELS, "groups: {llm: {}}\n")
    assert [*load_text(workshop, listed).groups] == ["llm", "first", "last"]


def load_text(folder: Path, text: str) -> Recipe:
    (folder / "epbuild.yaml").write_text(text, encoding="utf-8")
    return load(folder / "epbuild.yaml")


def test_a_child_of_an_unprepared_file_reads_the_file_with_its_shapes(workshop: Path) -> None:
    plan = plan_of(workshop, recipe(FROM_FILE))
    [child] = plan.of(Preparation).values()
    assert child.files == (workshop / "models/prefill.onnx",)
    assert [*child.input_shapes] == ["x"]
    assert [model.name for model, _ in plan.sources()] == ["llm"]


def test_only_one_preparation_reads_the_file(workshop: Path) -> None:
    plan = plan_of(workshop, recipe(MODELS))
    assert [ident for ident, action in plan.actions.items() if action.source_models] == [LLM]


def test_a_remote_parent_is_locked_under_its_own_name(workshop: Path) -> None:
    models = edited(MODELS, ("models/prefill.onnx", f"https://models.example/llm.onnx\n    sha256: {'0' * 64}"))
    assert [*list_remote_models(load_text(workshop, recipe(models)))] == ["llm"]


def test_a_long_chain_of_models_can_be_planned(workshop: Path) -> None:
    count = sys.getrecursionlimit() + 10
    chain = "".join(f"  m{number}: {{from: m{number - 1}, prepare: [{{opset: 21}}]}}\n" for number in range(1, count))
    text = recipe(f"models:\n{chain}  m0: models/prefill.onnx\n")
    assert len(needs(workshop, text)) == count - 1
