"""Workflows: each runs the same commands as contributors do, and refers to nothing that is missing."""

from __future__ import annotations

import re
import shlex
import tomllib
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
def test_workflows_run_only_existing_commands(workflow: Path) -> None:
    for command in commands(workflow):
        program, *arguments = shlex.split(command)
        if program == "python":
            assert arguments[0] == "bootstrap.py" or arguments[:2] in (["-m", "pip"], ["-m", "pytest"])
        elif program != "gh":  # installed on GitHub's machines
            assert (ROOT / program).is_file()


def test_ci_runs_the_gate_and_nightly_runs_exhaustive_tests() -> None:
    found = {workflow.stem: commands(workflow) for workflow in WORKFLOWS}
    assert ".ci/run" in found["ci"]
    assert any("-m exhaustive" in command for command in found["nightly"])


def test_the_gate_runs_the_readmes_command_the_remaining_tests_and_wine() -> None:
    gate = (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()
    assert gate[-3:] == ['"$python" bootstrap.py pytest', '"$python" bootstrap.py pytest -m gate', "wait $!"]
    wine = '"$python" bootstrap.py python -m tools.wine --if-possible diff gate '
    assert any(command.startswith(wine) and command.endswith(" &") for command in gate), "`wait` waits for it"
    nightly = commands(ROOT / ".github" / "workflows" / "nightly.yml")
    assert any(command.endswith("python -m tools.wine") for command in nightly), "fails where wine cannot run"


def test_the_gate_runs_on_each_supported_python() -> None:
    with (ROOT / "pyproject.toml").open("rb") as file:
        classifiers = tomllib.load(file)["project"]["classifiers"]
    named = [found[1] for line in classifiers if (found := re.fullmatch(r"Programming Language :: Python :: (3\.\d+)", line))]
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8"))
    assert workflow["jobs"]["gate"]["strategy"]["matrix"]["python"] == named


@pytest.mark.parametrize(
    "path", [*WORKFLOWS, ROOT / "action.yml", *(ROOT / "docs" / "ci").glob("*.yml")], ids=lambda path: path.name
)
def test_actions_are_pinned_to_commits(path: Path) -> None:
    for action, version in re.findall(r"uses: *([\w./-]+)@(\S+)", path.read_text(encoding="utf-8")):
        assert action == "epbuild/epbuild" or re.fullmatch(r"[0-9a-f]{40}", version), action
