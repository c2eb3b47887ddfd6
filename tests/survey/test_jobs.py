"""Jobs for runners: only the missing results, on machines that can build them, by earlier durations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from epbuild.cache.state import Measurement
from epbuild.cache.workspace import Workspace
from epbuild.commands.workload import build_matrix
from epbuild.plan.steps import Action, SessionGroup
from epbuild.survey.jobs import Runners, find_missing_actions, pack_jobs
from tests.support.actions_to_pack import Work, works
from tests.support.fake_builds import CLASSIFIER, SHARE, Workshop


@pytest.fixture
def workshop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workshop:
    return Workshop(tmp_path / "checkout", tmp_path / "cache", monkeypatch)


def steps(workshop: Workshop, most: int = 5) -> list[tuple[str, ...]]:
    return [job.steps for job in build_matrix(workshop.request, most, {}).jobs]


def test_jobs_have_exactly_the_missing_actions(workshop: Workshop) -> None:
    assert sorted(steps(workshop)) == [(CLASSIFIER,), (SHARE,)]
    assert len(steps(workshop, 1)) == 1
    workshop.build(SHARE)
    assert steps(workshop) == [(CLASSIFIER,)]
    workshop.build()
    assert steps(workshop) == []


def test_failed_action_is_missing_despite_its_remembered_failure(workshop: Workshop) -> None:
    workshop.write_recipe(("fallback_nodes: any", "fallback_nodes: 0"))
    assert workshop.build().exit_code == 1
    assert (CLASSIFIER,) in steps(workshop)


def test_longest_job_comes_first_by_measured_seconds(workshop: Workshop) -> None:
    workshop.build()
    for slow, quick in ((SHARE, CLASSIFIER), (CLASSIFIER, SHARE)):
        with Workspace.open(workshop.folder / ".epbuild") as workspace:
            workspace.record_measurement(slow, Measurement(90.0, None))
            workspace.record_measurement(quick, Measurement(30.0, None))
        for record in (workshop.cache / "actions").rglob("*.json"):
            record.unlink()
        (workshop.folder / "prefill.onnx").write_bytes((workshop.folder / "decode.onnx").read_bytes())
        (workshop.folder / "classifier.onnx").write_bytes((workshop.folder / "decode.onnx").read_bytes())
        found = build_matrix(workshop.request, 5, {}).jobs
        assert [(job.steps, job.seconds) for job in found] == [((slow,), 90.0), ((quick,), 30.0)]


def test_cost_of_a_restored_result_is_known_from_its_origin(workshop: Workshop) -> None:
    """Check that a job which only restored results knows the seconds that they took on other machines."""
    workshop.build()
    with Workspace.open(workshop.folder / ".epbuild") as workspace:
        memory = workshop.memory(workspace)
        known = memory.step(CLASSIFIER)
        assert known is not None
        measured = {**known.result["measured"], "seconds": 44.0}
        memory.record_steps([replace(known, result={**known.result, "measured": measured})])
        workspace._database.write("DELETE FROM measurements", [()])
    (workshop.folder / "classifier.onnx").write_bytes((workshop.folder / "decode.onnx").read_bytes())
    [job] = build_matrix(workshop.request, 5, {}).jobs
    assert (job.steps, job.seconds) == ((CLASSIFIER,), 44.0)


def test_unmeasured_cost_is_estimated_from_similar_actions(workshop: Workshop) -> None:
    workshop.build(SHARE)
    with Workspace.open(workshop.folder / ".epbuild") as workspace:
        workspace.record_measurement(SHARE, Measurement(500.0, None))
    [job] = build_matrix(workshop.request, 5, {}).jobs
    assert job.seconds == pytest.approx(500.0, rel=0.01)  # the same EP, and as small a model


@pytest.mark.parametrize(
    ("named", "locked", "expected"),
    [
        ((), {}, "linux"),
        (("windows-arm64",), {}, "arm"),
        (("windows-arm64", "linux-x86_64"), {}, "linux"),
        ((), {"qnn": ("windows-arm64",)}, "linux"),
        (("linux-x86_64",), {"qnn": ("windows-arm64",)}, "linux"),
    ],
)
def test_job_runs_on_a_platform_of_its_toolchain(
    workshop: Workshop, named: Sequence[str], locked: dict[str, Sequence[str]], expected: str
) -> None:
    if named:
        workshop.write_recipe(("[onnxruntime-qnn==2.7.0]", f"[onnxruntime-qnn==2.7.0], platforms: [{', '.join(named)}]"))
    missing = find_missing_actions(workshop.survey())
    runners = Runners({"linux-x86_64": "linux", "windows-arm64": "arm"}, locked, here="linux-x86_64")
    jobs, warnings = pack_jobs(missing, dict.fromkeys(missing, 1.0), runners, 1)
    assert [job.runner for job in jobs] == [expected]
    assert warnings == ()


PLATFORMS = ("linux-x86_64", "windows-x86_64", "windows-arm64")


class TwoPlatformRunners(Runners):
    """Runners that offer each action two platforms, by the number in its id."""

    def platforms(self, action: Action) -> Sequence[str]:
        number = int(action.id[1:])
        return [PLATFORMS[number % 3], PLATFORMS[number % 2]]


@given(actions=works(), most=st.integers(1, 4), costs=st.lists(st.floats(0, 100), min_size=12, max_size=12))
def test_each_missing_action_is_in_one_job_or_waits(actions: dict[str, Work], most: int, costs: list[float]) -> None:
    seconds = dict(zip(actions, costs, strict=False))
    runners = TwoPlatformRunners(dict.fromkeys(PLATFORMS, "any") | {"linux-x86_64": "linux"}, {})
    jobs, warnings = pack_jobs(actions, seconds, runners, most)
    made: list[str] = []
    for job in jobs:
        assert job.steps
        made += with_needs(actions, job.steps)
    assert len(made) == len(set(made)), "nothing is made twice"
    left = set(actions) - set(made)
    assert bool(left) == bool(warnings)
    assert all(left.isdisjoint(actions[ident].needs) for ident in made)
    assert all(not left.isdisjoint(actions[ident].needs) or any(need in made for need in actions[ident].needs) for ident in left)
    assert max(Counter(job.runner for job in jobs).values(), default=0) <= most
    assert [job.seconds for job in jobs] == sorted((job.seconds for job in jobs), reverse=True)


def with_needs(actions: Mapping[str, Work], steps: Iterable[str]) -> set[str]:
    return {ident for step in steps for ident in (step, *with_needs(actions, actions[step].needs))}


class SplitRunners(Runners):
    """Runners that take SHARE on Linux and every other action on Windows."""

    def platforms(self, action: Action) -> Sequence[str]:
        return ["linux-x86_64"] if action.id == SHARE else ["windows-arm64"]


def test_each_runner_class_has_its_own_jobs(workshop: Workshop) -> None:
    missing = find_missing_actions(workshop.survey())
    jobs, _ = pack_jobs(missing, {SHARE: 1.0, CLASSIFIER: 2.0}, SplitRunners({}, {}), 1)
    assert [(job.runner, job.steps) for job in jobs] == [("windows-arm64", (CLASSIFIER,)), ("linux-x86_64", (SHARE,))]


def test_action_that_needs_a_result_of_another_platform_waits(workshop: Workshop) -> None:
    missing = dict(find_missing_actions(workshop.survey()))
    group = missing[CLASSIFIER]
    assert isinstance(group, SessionGroup)
    missing[CLASSIFIER] = replace(group, members=tuple(replace(member, prepared=SHARE) for member in group.members))
    jobs, [warning] = pack_jobs(missing, dict.fromkeys(missing, 1.0), SplitRunners({}, {}), 1)
    assert [job.steps for job in jobs] == [(SHARE,)]
    assert warning.code == "EPB279"
    assert CLASSIFIER in warning.message
