"""Examples of docs/guides/python-api.md: their output, and their types against the installed package."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.projects import Project

pytestmark = pytest.mark.gate

PAGE = (Path(__file__).parents[2] / "docs/guides/python-api.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```python\n(.*?)```\n\n```text\n(.*?)```", PAGE, re.DOTALL)


def test_every_example_has_its_output_on_the_page() -> None:
    assert len(EXAMPLES) == PAGE.count("```python") == 5


def test_the_examples_print_what_the_page_shows(quickstart: Project) -> None:
    for script, expected in EXAMPLES:
        done = subprocess.run(
            [sys.executable, "-c", script],
            cwd=quickstart.folder,
            env=quickstart.command()[1],
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert (done.stdout, done.stderr) == (expected, ""), script


@pytest.mark.exhaustive
def test_the_examples_are_typed(tmp_path: Path) -> None:
    for number, (script, _) in enumerate(EXAMPLES):
        (tmp_path / f"example_{number}.py").write_text(script, encoding="utf-8")
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", os.devnull, str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout
    assert "no issues found in 5 source files" in done.stdout
