"""What a plan costs: nothing that compiles or publishes is imported for it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from plan_recipes import RECIPE, write_models

SCRIPT = """
import sys
from epbuild.__main__ import main
try:
    main()
except SystemExit as end:
    assert end.code in (0, None), end.code
rooms = [name for name in sys.modules if name.startswith(("epbuild.compile", "epbuild.publish"))]
print("rooms:", *sorted(rooms))
"""


@pytest.mark.slow
def test_a_plan_imports_neither_the_compiler_nor_the_publisher(tmp_path: Path) -> None:
    write_models(tmp_path)
    recipe = tmp_path / "epbuild.yaml"
    recipe.write_text(RECIPE, encoding="utf-8")
    done = subprocess.run([sys.executable, "-c", SCRIPT, "plan", str(recipe)], capture_output=True, text=True, check=False)
    assert done.stdout.splitlines()[-1:] == ["rooms:"], done.stdout + done.stderr
