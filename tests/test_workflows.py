"""The workflows of the forge: each runs what a contributor runs, and nothing that is not there."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[1]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def commands(workflow: Path) -> list[str]:
    jobs: dict[str, Any] = yaml.safe_load(workflow.read_text(encoding="utf-8"))["jobs"]
    return [step["run"].partition(" > ")[0] for job in jobs.values() for step in job["steps"] if "run" in step]


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_runs_what_is_there(workflow: Path) -> None:
    for command in commands(workflow):
        program, *arguments = shlex.split(command)
        if program == "python":
            assert arguments[0] == "bootstrap.py" or arguments[:2] in (["-m", "pip"], ["-m", "pytest"])
        elif program != "gh":  # what the forge's machines have
            assert (ROOT / program).is_file()


def test_every_change_passes_the_gate_and_every_night_tries_all() -> None:
    found = {workflow.stem: commands(workflow) for workflow in WORKFLOWS}
    assert ".ci/run" in found["ci"]
    assert any("-m exhaustive" in command for command in found["nightly"])


def test_the_gate_runs_the_readmes_command_and_then_the_tests_that_it_leaves_out() -> None:
    gate = (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()
    assert gate[-2:] == ['"$python" bootstrap.py pytest', '"$python" bootstrap.py pytest -m gate']
