"""Large models are hashed while they are planned with, and what comes of that is what would have been found anyway."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from plan_recipes import RECIPE, write_models

from epbuild.core.digest import LARGE_BYTES

pytestmark = pytest.mark.skipif(not hasattr(os, "fork") or (os.cpu_count() or 1) < 2, reason="needs forks, and two processors")

SETTLED_SECONDS = 2.2

# A program of its own: a test runner has threads, and then nothing is forked off.
HASH = """
import json, os, sys
from pathlib import Path
from epbuild.cache.workspace import Workspace
from epbuild.recipe.load import load
from epbuild.survey.hashed_ahead import HashedAhead

recipe = load(Path(sys.argv[1]))
with HashedAhead() as ahead, Workspace.open(Path(".epbuild").absolute()) as workspace:
    ahead.begin(recipe)
    begun = ahead._process is not None
    if "give up" not in sys.argv:
        ahead.remember(workspace.files)
    names = sorted(str(path) for path in Path("models").iterdir())
    found = {name: workspace.files.get(str(Path(name).absolute())) for name in names}
try:
    os.waitpid(-1, os.WNOHANG)
except ChildProcessError:
    print(json.dumps([begun, {name: entry[1] if entry else None for name, entry in found.items()}]))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A recipe with a model whose external data is large."""
    write_models(tmp_path)
    (tmp_path / "models" / "decode.bin").write_bytes(bytes(LARGE_BYTES))
    (tmp_path / "epbuild.yaml").write_text(RECIPE, encoding="utf-8")
    return tmp_path


def hashed(folder: Path, *arguments: str) -> tuple[bool, dict[str, str | None]]:
    command = [sys.executable, "-c", HASH, "epbuild.yaml", *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    begun, found = json.loads(done.stdout)  # nothing, where a process is left
    return begun, found


def contents(folder: Path) -> dict[str, str | None]:
    return {f"models/{path.name}": hashlib.sha256(path.read_bytes()).hexdigest() for path in (folder / "models").iterdir()}


def test_all_files_of_the_models_are_known_then(folder: Path) -> None:
    time.sleep(SETTLED_SECONDS)
    assert hashed(folder) == (True, contents(folder))


def test_what_was_written_just_now_is_not_trusted(folder: Path) -> None:
    time.sleep(SETTLED_SECONDS)
    (folder / "models" / "prefill.onnx").touch()
    assert hashed(folder) == (True, {**contents(folder), "models/prefill.onnx": None})


def test_a_model_that_is_none_keeps_no_other_from_being_hashed(folder: Path) -> None:
    (folder / "models" / "prefill.onnx").write_bytes(b"no model")
    (folder / "models" / "classifier.onnx").unlink()
    time.sleep(SETTLED_SECONDS)
    assert hashed(folder) == (True, {**contents(folder), "models/prefill.onnx": None})


def test_small_models_are_not_worth_another_process(folder: Path) -> None:
    (folder / "models" / "decode.bin").write_bytes(bytes(16))
    assert hashed(folder)[0] is False


def test_a_plan_that_fails_leaves_no_process(folder: Path) -> None:
    assert hashed(folder, "give up") == (True, dict.fromkeys(contents(folder)))
