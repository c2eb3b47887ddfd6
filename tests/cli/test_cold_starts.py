"""Every command in a new Python process: same output and exit code as in the forks of other tests."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.support import warm_start
from tests.support.commands import RECIPE, environment, write_model
from tests.support.gate import mark_rest_exhaustive

pytestmark = pytest.mark.gate

COMMANDS = {
    "--version": 0,
    "init --help": 0,
    "add target SM8650": 0,
    "import nowhere.json": 2,
    "validate": 0,
    "plan --json": 0,
    "run --check": 1,
    "run nowhere.yaml": 2,
    "coverage nowhere.yaml": 2,
    "measure": 2,
    "report": 0,
    "explain *": 0,
    "graph --format mermaid": 0,
    "devices nowhere.yaml": 1,
    "inspect relu.onnx": 0,
    "verify dist": 2,
    "diff relu.onnx nowhere": 2,
    "relink relu.onnx": 2,
    "merge relu.onnx": 2,
    "wrap nowhere.bin": 2,
    "bisect compile:nothing": 2,
    "decrypt nowhere -o plain --key-variable KEY": 2,
    "lock --check": 1,
    "log compile:main/phone/relu": 1,
    "schema recipe": 0,
    "clean --dry-run": 0,
    "gc --dry-run": 0,
    "cache": 0,
    "nonsense": 2,
}
SAMPLE = ("--version", "plan --json", "run --check", "run nowhere.yaml", "explain *", "nonsense")
"""Commands that start cold in the gate. At night, all tests have cold starts."""


def timeless(text: str) -> str:
    """Replace durations in a text."""
    return re.sub(r"\d+\.\d+ s\b", "SECONDS", text)


@pytest.mark.parametrize("line", mark_rest_exhaustive(COMMANDS, SAMPLE))
def test_cold_and_forked_processes_have_equal_output_and_exit_codes(line: str, tmp_path: Path) -> None:
    write_model(tmp_path / "relu.onnx")

    def run(*, cold: bool) -> subprocess.CompletedProcess[str]:
        (tmp_path / "epbuild.yaml").write_text(RECIPE, encoding="utf-8")  # again, because `add` changes it
        return warm_start.run(line.split(), tmp_path, environment(tmp_path), timeout=120, cold=cold)

    cold, warm = run(cold=True), run(cold=False)
    seen = [(done.returncode, timeless(done.stdout), timeless(done.stderr)) for done in (cold, warm)]
    assert seen[0] == seen[1]
    assert cold.returncode == COMMANDS[line], cold.stderr


@pytest.mark.skipif("sys.platform == 'win32'", reason="has no forks")
def test_a_fork_is_killed_at_its_timeout(tmp_path: Path) -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        warm_start.run(["schema", "recipe"], tmp_path, environment(tmp_path), timeout=0)
