"""Command-line options that select a job's part of the work and its runner."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer._click.exceptions import UsageError

from epbuild.cli.job_options import parse_labels, parse_shard
from tests.support.commands import RECIPE, epbuild, write_model

CI_SYSTEMS = {
    "GitLab": {"CI_NODE_INDEX": "2", "CI_NODE_TOTAL": "5"},
    "Buildkite": {"BUILDKITE_PARALLEL_JOB": "1", "BUILDKITE_PARALLEL_JOB_COUNT": "5"},
    "CircleCI": {"CIRCLE_NODE_INDEX": "1", "CIRCLE_NODE_TOTAL": "5"},
    "Semaphore": {"SEMAPHORE_JOB_INDEX": "2", "SEMAPHORE_JOB_COUNT": "5"},
    "Bitbucket": {"BITBUCKET_PARALLEL_STEP": "1", "BITBUCKET_PARALLEL_STEP_COUNT": "5"},
    "Azure": {"SYSTEM_JOBPOSITIONINPHASE": "2", "SYSTEM_TOTALJOBSINPHASE": "5"},
}


@pytest.mark.parametrize("system", CI_SYSTEMS)
def test_shard_auto_reads_the_job_number_of_every_ci_system(system: str) -> None:
    assert str(parse_shard("auto", CI_SYSTEMS[system])) == "2/5"
    assert str(parse_shard("3/4", CI_SYSTEMS[system])) == "3/4"


def test_a_single_gitlab_job_is_shard_1_of_1() -> None:
    assert str(parse_shard("auto", {"CI_NODE_TOTAL": "1"})) == "1/1"


@pytest.mark.parametrize(
    ("text", "environment"),
    [
        ("auto", {}),
        ("auto", {"CI": "true", "GITHUB_ACTIONS": "true"}),
        ("auto", {"CI_NODE_INDEX": "2"}),
        ("auto", {"CI_NODE_INDEX": "", "CI_NODE_TOTAL": "5"}),
        ("auto", {"CI_NODE_INDEX": "two", "CI_NODE_TOTAL": "5"}),
        ("auto", {"CIRCLE_NODE_INDEX": "5", "CIRCLE_NODE_TOTAL": "5"}),
        ("6/5", {}),
        ("first", {}),
    ],
)
def test_invalid_shards_and_missing_job_numbers_are_refused(text: str, environment: dict[str, str]) -> None:
    with pytest.raises(UsageError, match="shard"):
        parse_shard(text, environment)


def test_a_runner_can_have_several_labels() -> None:
    assert parse_labels(["windows-arm64=self-hosted,windows,npu", "linux-x86_64=big"]) == {
        "windows-arm64": ("self-hosted", "windows", "npu"),
        "linux-x86_64": "big",
    }


@pytest.mark.parametrize("text", ["big", "=big", "linux-x86_64", "linux-x86_64=", "linux-x86_64=a,,b", "amiga=big"])
def test_a_malformed_runner_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="PLATFORM=LABEL"):
        parse_labels([text])


@pytest.mark.slow
def test_jobs_are_planned_without_a_toolchain_and_an_empty_shard_succeeds(tmp_path: Path) -> None:
    (tmp_path / "epbuild.yaml").write_text(RECIPE, encoding="utf-8")
    write_model(tmp_path / "relu.onnx")
    own = {"EPBUILD_TOOLCHAIN_DIR": str(tmp_path / "toolchains")}
    done = epbuild(tmp_path, "plan", "--matrix", "4", "--runner", "linux-x86_64=big", **own)
    assert (done.returncode, done.stderr, done.stdout.count("\n")) == (0, "", 1)
    [job] = json.loads(done.stdout)["include"]
    assert job["steps"] == "compile:main/phone/relu"
    assert epbuild(tmp_path, "plan", "emit:*", "--matrix", "4", **own).stdout != '{"include": []}\n'
    empty = epbuild(tmp_path, "run", "--shard", "2/2", **own)
    assert (empty.returncode, empty.stderr) == (0, "")
    assert "Nothing to do" in empty.stdout
    assert epbuild(tmp_path, "run", "--shard", "2/1", **own).returncode == 2
    assert epbuild(tmp_path, "plan", "--matrix", "0", **own).returncode == 2
    assert not (tmp_path / "toolchains").exists()
