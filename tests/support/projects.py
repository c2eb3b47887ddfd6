"""Project of a user that the real command builds with the real EPs: a recipe in a folder, and a store."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from filelock import FileLock

from epbuild.cache.location import find_toolchain_directory
from epbuild.survey.snapshot import list_snapshots
from tests.support import warm_start
from tests.support.commands import CHANGE_OUTPUT

RECIPES = Path(__file__).parents[2] / "recipes"
COMMAND_SECONDS = 2700 if sys.platform == "win32" else 540
"""Time limit of a command. Under wine, the quickstart builds in more than 7 minutes."""
_RUNTIMES = ("onnxruntime==", "onnxruntime-openvino==")
"""Requirements that pin a version of ONNX Runtime."""
LONG_QUICKSTART = """\
# yaml-language-server: $schema=../docs/reference/recipe.schema.json
epbuild: 1
name: quickstart
description: >-
  The prefill and decode graphs of one small decoder, sharing one context binary per Snapdragon SoC,
  and a small image classifier beside them.

toolchains:
  qnn:
    packages: [onnxruntime==1.31.1, onnxruntime-qnn==2.7.0]

models:
  prefill: models/tiny-llm/prefill.onnx
  decode: models/tiny-llm/decode.onnx
  classifier: models/classifier/classifier.onnx

targets:
  snapdragon:
    matrix: {soc: [SC8380XP, SM8750]}    # one target per row: snapdragon-SC8380XP, snapdragon-SM8750
    toolchain: qnn
    ep: QNNExecutionProvider
    provider_options:
      backend_type: htp
      soc_model: ${matrix.soc}

groups:
  decoder:
    models: [prefill, decode]            # order is meaning: the first names the binary, the last writes it
    targets: [snapdragon-*]
    share_weights: true
    expect: {ep_context_nodes: 1, fallback_nodes: 0}
  classifier:
    models: [classifier]
    targets: [snapdragon-*]
    expect: {ep_context_nodes: 1, fallback_nodes: 0}

outputs:
  - layout: directory
    path: dist/${recipe.name}/${group}/${target}
"""
"""The recipe `quickstart.yaml` with its defaults and short forms written out, for tests that edit it. It has the same plan and keys."""


@dataclass
class Project:
    """A folder with a recipe, in which `epbuild` runs as a user runs it."""

    folder: Path
    cache: Path
    environment: dict[str, str] = field(default_factory=dict)
    cold: bool = False
    """True if each command starts a new Python instead of a fork with finished imports."""

    @property
    def recipe(self) -> Path:
        return self.folder / "epbuild.yaml"

    def command(self, *arguments: str) -> tuple[list[str], dict[str, str]]:
        environment = {
            **{name: value for name, value in os.environ.items() if name not in CHANGE_OUTPUT},
            "EPBUILD_CACHE_DIR": str(self.cache),
            "EPBUILD_TOOLCHAIN_DIR": str(find_toolchain_directory()),
            **self.environment,
        }
        return [sys.executable, "-m", "epbuild", *arguments], environment

    def epbuild(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a command that ends by itself. Use `command` to start one that does not."""
        return warm_start.run(arguments, self.folder, self.command()[1], timeout=COMMAND_SECONDS, cold=self.cold)

    def run_script(self, script: str, *arguments: str, timeout: float) -> subprocess.CompletedProcess[str]:
        """Run the text of a Python script in the folder, with the environment of `epbuild`."""
        return subprocess.run(
            [sys.executable, "-c", script, *arguments],
            cwd=self.folder,
            env=self.command()[1],
            capture_output=True,
            text=True,
            encoding="utf-8",
            timeout=timeout,
            check=False,
        )

    def build(self, *arguments: str) -> list[dict[str, Any]]:
        """Run a build that has to succeed, and return its events."""
        done = self.epbuild("run", *arguments, "--json")
        assert done.returncode == 0, done.stdout + done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]

    def files(self, below: str = "dist") -> dict[str, bytes]:
        """Return every file below a folder, by its relative POSIX path."""
        root = self.folder / below
        return {path.relative_to(root).as_posix(): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}

    def snapshots(self) -> list[Path]:
        """Return the snapshots of earlier runs."""
        return [Path(place) for place in list_snapshots(str(self.recipe), str(self.cache))]

    def edit(self, old: str, new: str) -> None:
        text = self.recipe.read_text(encoding="utf-8")
        assert old in text
        self.recipe.write_text(text.replace(old, new), encoding="utf-8")


def compiled(events: list[dict[str, Any]]) -> set[str]:
    """Return the compile and share steps that were built, not restored."""
    return {event["step"] for event in events if event["event"] == "step_finished" and event["outcome"] == "built"}


def failures_of(output: str) -> list[str]:
    """Return the errors of failed steps in the output of `run --json`, as a build without `--keep-going` shows them."""
    events = [json.loads(line) for line in output.splitlines()]
    return [
        f"{event['step']}: error: {' '.join(filter(None, (problem['message'].rstrip('.') + '.', problem['hint'])))} [{problem['code']}]"
        for event in events
        if event["event"] == "step_failed"
        for problem in event["problems"]
    ]


def emitted(events: list[dict[str, Any]]) -> set[str]:
    """Return the emit steps that wrote an output."""
    return {event["step"] for event in events if event["event"] == "step_finished" and event["outcome"] == "emitted"}


def toolchain_python(name: str) -> Path:
    """Return the interpreter of a provisioned toolchain that holds the package `name`.

    The quickstart's toolchain comes first, then the one with the fewest other packages. Toolchains without a fixed
    version of ONNX Runtime are skipped, as edits of a recipe may create one with the newest version.
    """
    lists = {marker: json.loads(marker.read_text(encoding="utf-8")) for marker in find_toolchain_directory().glob("*/complete")}
    holding = [
        marker
        for marker, packages in lists.items()
        if any(package.startswith(name) for package in packages) and any(package.startswith(_RUNTIMES) for package in packages)
    ]
    assert holding, f"no toolchain with {name}"
    marker = min(holding, key=lambda one: (any(package not in LONG_QUICKSTART for package in lists[one]), len(lists[one])))
    return marker.parent / "env" / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def copy_of_quickstart(folder: Path, cache: Path, store: Path | None = None, *, recipe: str = LONG_QUICKSTART) -> Project:
    """Return a project with the quickstart's models, with an empty store or a copy of one."""
    shutil.copytree(RECIPES / "models", folder / "models")
    (folder / "epbuild.yaml").write_text(recipe, encoding="utf-8")
    if store is not None:
        shutil.copytree(store, cache)
    return Project(folder, cache)


def built_once(folder: Path, build: Callable[[Path], object]) -> Path:
    """Return the store that `build` leaves in a folder shared by all processes of a test run. The first builds, others wait."""
    folder.mkdir(exist_ok=True)
    with FileLock(folder.with_suffix(".lock")):
        done = folder / "done"
        if not done.exists():
            build(folder)
            done.touch()
    return folder / "cache"
