"""A recipe with short forms has the plan of the recipe that writes them out."""

from __future__ import annotations

import shutil
from pathlib import Path

from epbuild.plan.planner import make_plan
from epbuild.plan.preparing import Preparation, preparation_document
from epbuild.plan.request import compile_document
from epbuild.plan.steps import Emission, SessionGroup
from epbuild.recipe.load import load
from tests.support.plan_recipes import TOOLCHAIN, problems_of
from tests.support.projects import LONG_QUICKSTART, RECIPES


def documents(file: Path) -> dict[str, object]:
    """Return the key document of each compile and preparation of a recipe, and the place of each output, by step.

    Without its files, which a remote model may lack, an action has no key document.
    """
    found: dict[str, object] = {}
    for ident, action in make_plan(load(file)).actions.items():
        digests = {path: path.name for path in action.files}
        if isinstance(action, SessionGroup):
            is_known = all(member.has_files for member in action.members)
            found[ident] = compile_document(action, digests, TOOLCHAIN) if is_known else None
        elif isinstance(action, Preparation):
            found[ident] = preparation_document(action, digests, TOOLCHAIN) if action.source is not None else None
        elif isinstance(action, Emission):
            found[ident] = action.path.relative_to(file.parent).as_posix()
    return found


def test_the_short_quickstart_has_the_steps_keys_and_outputs_of_the_long_one(tmp_path: Path) -> None:
    shutil.copytree(RECIPES / "models", tmp_path / "models", ignore=shutil.ignore_patterns("*.py"))
    shutil.copyfile(RECIPES / "quickstart.yaml", tmp_path / "short.yaml")
    (tmp_path / "long.yaml").write_text(LONG_QUICKSTART, encoding="utf-8")
    short, long = documents(tmp_path / "short.yaml"), documents(tmp_path / "long.yaml")
    assert len(short) == 8
    assert short == long


def test_an_unknown_short_name_is_one_problem_with_the_nearest_one(tmp_path: Path) -> None:
    text = "epbuild: 1\nname: a\nmodels: [a.onnx]\ntargets: {phone: {ep: qn, soc: SM8750}}\n"
    [problem] = problems_of(tmp_path, text)
    assert (problem.code, problem.message, problem.hint) == ("EPB210", "unknown EP 'qn'", "Did you mean 'qnn'?")
