"""Short forms in a recipe: the plan equals that of the recipe without them."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.support.plan_recipes import key_documents, problems_of
from tests.support.projects import LONG_QUICKSTART, RECIPES


def test_the_short_and_long_quickstart_have_equal_steps_keys_and_outputs(tmp_path: Path) -> None:
    shutil.copytree(RECIPES / "models", tmp_path / "models", ignore=shutil.ignore_patterns("*.py"))
    shutil.copyfile(RECIPES / "quickstart.yaml", tmp_path / "short.yaml")
    (tmp_path / "long.yaml").write_text(LONG_QUICKSTART, encoding="utf-8")
    short, long = key_documents(tmp_path / "short.yaml"), key_documents(tmp_path / "long.yaml")
    assert len(short) == 8
    assert short == long


def test_an_unknown_short_name_is_one_problem_with_the_nearest_name(tmp_path: Path) -> None:
    text = "epbuild: 1\nname: a\nmodels: [a.onnx]\ntargets: {phone: {ep: qn, soc: SM8750}}\n"
    [problem] = problems_of(tmp_path, text)
    assert (problem.code, problem.message, problem.hint) == ("EPB210", "unknown EP 'qn'", "Did you mean 'qnn'?")
