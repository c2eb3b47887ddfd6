"""Plans of the recipes in `recipes/`, one for each feature of the language."""

from __future__ import annotations

import pytest

from epbuild.plan.planner import make_plan
from epbuild.plan.steps import Plan
from epbuild.recipe.load import load
from tests.support.projects import RECIPES

STEPS = {
    "minimal": ["compile:classifier/phone/classifier", "emit:classifier/phone/directory"],
    "cpu": ["compile:classifier/snapdragon/classifier", "emit:classifier/snapdragon/directory"],
    "openvino": ["compile:classifier/intel/classifier", "emit:classifier/intel/directory"],
    "vars": ["compile:model/snapdragon/model", "emit:model/snapdragon/directory"],
    "merge": [
        "compile:vision/snapdragon/normalize",
        "compile:vision/snapdragon/classifier",
        "merge:vision/snapdragon",
        "emit:vision/snapdragon/directory",
    ],
    "include": [
        f"{step}:classifier/{target}/{what}"
        for target in ("intel-cpu", "snapdragon-SC8380XP", "snapdragon-SM8750")
        for step, what in (("compile", "classifier"), ("emit", "directory"))
    ],
}


def plan_of(name: str) -> Plan:
    return make_plan(load(RECIPES / f"{name}.yaml"))


@pytest.mark.parametrize("name", STEPS)
def test_each_feature_recipe_has_the_expected_steps(name: str) -> None:
    assert [step.id for step in plan_of(name).steps] == STEPS[name]


def test_the_cpu_may_run_nodes_only_in_the_recipe_that_names_it() -> None:
    eps = {
        name: [ep.entry.ep for action in plan_of(name).session_groups.values() for ep in action.target.eps]
        for name in ("cpu", "minimal")
    }
    assert eps == {"cpu": ["QNNExecutionProvider", "CPUExecutionProvider"], "minimal": ["QNNExecutionProvider"]}


def test_the_cache_recipe_names_a_remote_cache() -> None:
    cache = load(RECIPES / "cache.yaml").cache
    assert cache is not None
    assert cache.remote is not None
    assert "shared-cache" in str(cache.remote)


def test_every_recipe_has_a_short_description() -> None:
    texts = {path.name: path.read_text(encoding="utf-8") for path in RECIPES.glob("*.yaml")}
    assert [name for name, text in texts.items() if "\ndescription: " not in text] == ["minimal.yaml"]
    assert [name for name, text in texts.items() if max(map(len, text.splitlines())) > 128] == []
