"""Work split over machines that do not communicate: every step is done once, with even loads."""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epbuild.plan.packing import Bundle, make_bundles, pack, select_ids
from epbuild.plan.selection import select_steps
from epbuild.plan.shards import Shard, select_shard
from epbuild.plan.steps import Plan, Step
from tests.support.actions_to_pack import Work, works
from tests.support.plan_recipes import RECIPE, edited, write_models
from tests.support.plan_recipes import plan_of as recipe_plan


def plan_of(actions: Mapping[str, Work]) -> Plan:
    steps = []
    for action in actions.values():
        first = Step(action.steps[0], "compile", action.needs, action.id)
        steps += [first, Step(action.id, "share", (first.id,), action.id)]
    return Plan(tuple(steps), actions)


@given(actions=works(), total=st.integers(1, 9), seed=st.randoms(use_true_random=False))
def test_every_step_is_in_exactly_one_shard_in_any_order_of_actions(
    actions: dict[str, Work], total: int, seed: random.Random
) -> None:
    plan = plan_of(actions)
    seen: list[str] = []
    for number in range(1, total + 1):
        own = select_shard(plan, Shard(number, total))
        shuffled = list(actions.values())
        seed.shuffle(shuffled)
        assert set(own) == set(select_shard(plan_of({work.id: work for work in shuffled}), Shard(number, total)))
        if own:
            selected, unmatched = select_steps(plan.steps, own)
            assert not unmatched
            seen += [step.id for step in selected]
    assert sorted(seen) == sorted(step.id for step in plan.steps)


@given(actions=works(), most=st.integers(1, 9), costs=st.lists(st.floats(0, 1000), min_size=12, max_size=12))
def test_jobs_are_balanced_by_longest_first_packing(actions: dict[str, Work], most: int, costs: list[float]) -> None:
    cost = dict(zip(actions, costs, strict=False))
    found = make_bundles(actions, cost)
    assert [bundle.cost for bundle in found] == sorted((bundle.cost for bundle in found), reverse=True)
    assert sorted(ident for bundle in found for ident in bundle.actions) == sorted(actions)
    jobs = pack(found, most)
    assert len(jobs) == min(most, len(found))
    if not jobs:
        return
    loads = [sum(bundle.cost for bundle in job) for job in jobs]
    longest = found[0].cost  # Graham's bound: the job that ends last had the least work when it got its last step
    assert max(loads) <= (sum(loads) - longest) / most + longest + 1e-6


def test_bundles_without_cost_are_spread_evenly() -> None:
    assert [len(job) for job in pack([Bundle((f"a{number}",), 0.0) for number in range(4)], 2)] == [2, 2]


@pytest.mark.parametrize(("steps", "most"), [(200, 8), (1_000, 20), (10_000, 20)])
@pytest.mark.parametrize("missing", [1.0, 0.3, 0.05])
def test_jobs_of_missing_steps_are_balanced_unlike_shards_of_all_steps(steps: int, most: int, missing: float) -> None:
    """Compare the splits with an ideal split, for steps of which some take fifty times as long as others."""
    chance = random.Random(1)
    every = [Bundle((f"s{number}",), chance.lognormvariate(3, 1)) for number in range(steps)]
    left = {bundle for bundle in every if chance.random() < missing}
    ideal = max(sum(bundle.cost for bundle in left) / most, *(bundle.cost for bundle in left))
    jobs = [sum(bundle.cost for bundle in job) for job in pack(left, most)]
    assert max(jobs) <= ideal * 1.01
    costs = {bundle.actions: bundle.cost for bundle in left}
    parts = pack([Bundle(bundle.actions, 1.0) for bundle in every], most)
    assert max(jobs) <= max(sum(costs.get(bundle.actions, 0.0) for bundle in part) for part in parts) <= ideal * 2.2


@pytest.mark.parametrize("change", ["order", "shared result"])
def test_actions_that_share_a_dependency_stay_in_one_job(change: str) -> None:
    actions = {work.id: work for work in [Work("prepare"), Work("x", ("prepare",)), Work("y", ("prepare",)), Work("z")]}
    if change == "order":
        actions = dict(sorted(actions.items()))
    [together, alone] = pack(make_bundles(actions, dict.fromkeys(actions, 1.0)), 5)
    assert set(select_ids(actions, together)) == {"x", "y"}
    assert select_ids(actions, alone) == ("z",)
    del actions["prepare"]  # it is in the cache, so nothing ties them together
    assert len(pack(make_bundles(actions, dict.fromkeys(actions, 1.0)), 5)) == 3


PREPARED = [
    (
        "  prefill: models/prefill.onnx",
        "  prefill: {path: models/prefill.onnx, prepare: [{run: [tool, '${in}', '${out}'], toolchain: qnn}]}",
    ),
    ("    targets: [cpu]", "    targets: [cpu]\n  other:\n    models: [classifier]\n    targets: [phone, cpu]"),
]


@pytest.mark.parametrize("total", range(1, 6))
def test_shards_cover_every_step_of_a_recipe_except_emit_steps(total: int, tmp_path: Path) -> None:
    write_models(tmp_path)
    plan = recipe_plan(tmp_path, edited(RECIPE, *PREPARED))
    parts = [select_shard(plan, Shard(number, total)) for number in range(1, total + 1)]
    made = [step.id for part in parts if part for step in select_steps(plan.steps, part)[0]]
    assert sorted(made) == sorted(step.id for step in plan.steps if step.kind != "emit")
    [one] = [part for part in parts if "share:decoder/phone" in part]
    assert "compile:vision/cpu/prefill" in one, "both are made of one prepared model"


@pytest.mark.parametrize("text", ["", "1", "0/2", "3/2", "1/0", "-1/2", "a/b", "1/2/3", "²/3", " 1/2"])
def test_malformed_shards_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"i/n|between"):
        Shard.parse(text)


def test_a_shard_keeps_its_text() -> None:
    assert str(Shard.parse("2/5")) == "2/5"
