"""The real command with the real EPs: each test has a workspace and a store of its own, and all share the provisioned toolchains."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from epbuild.cache.location import toolchain_directory

RECIPES = Path(__file__).parents[2] / "recipes"
_HERE = (sys.platform, platform.machine().lower())
_CHANGE_OUTPUT = {"NO_COLOR", "FORCE_COLOR", "GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY"}
_SUPPORTED = {("linux", "x86_64"), ("win32", "amd64")}


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options of the tests in this folder; pytest knows them where the folder, or a file of it, is named."""
    parser.addoption(
        "--kills-seed",
        metavar="SEED[,SECONDS]",
        help="Draw the moments of kills from this seed, and from builds of this length, as a failure printed them; "
        "'random' draws a seed. Default: a fixed seed.",
    )
    parser.addoption(
        "--any-order-seconds", type=float, help="How long projects are edited and built in any order (60; nightly: 600)."
    )
    parser.addoption("--any-order-seed", type=int, help="The seed that this begins with, as a failure printed it (0).")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Without the EPs' wheels there is nothing to test; say so instead of failing."""
    folder = Path(__file__).parent
    for item in items:
        if folder in item.path.parents:
            item.add_marker(pytest.mark.slow)
            if _HERE not in _SUPPORTED:
                item.add_marker(pytest.mark.skip(reason=f"onnxruntime-qnn compiles on Linux x86-64 and Windows, not on {_HERE}"))


@dataclass
class Project:
    """A folder with a recipe, and `epbuild` run on it as a user runs it."""

    folder: Path
    cache: Path
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def recipe(self) -> Path:
        return self.folder / "epbuild.yaml"

    def command(self, *arguments: str) -> tuple[list[str], dict[str, str]]:
        environment = {
            **{name: value for name, value in os.environ.items() if name not in _CHANGE_OUTPUT},
            "EPBUILD_CACHE_DIR": str(self.cache),
            "EPBUILD_TOOLCHAIN_DIR": str(toolchain_directory()),
            **self.environment,
        }
        return [sys.executable, "-m", "epbuild", *arguments], environment

    def epbuild(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command, environment = self.command(*arguments)
        return subprocess.run(
            command, cwd=self.folder, env=environment, capture_output=True, text=True, encoding="utf-8", timeout=540, check=False
        )

    def build(self, *arguments: str) -> list[dict[str, Any]]:
        """A build that has to succeed; its events."""
        done = self.epbuild("run", *arguments, "--json")
        assert done.returncode == 0, done.stdout + done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]

    def files(self, below: str = "dist") -> dict[str, bytes]:
        """Every file below a folder, by its POSIX path there."""
        root = self.folder / below
        return {path.relative_to(root).as_posix(): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}

    def edit(self, old: str, new: str) -> None:
        text = self.recipe.read_text(encoding="utf-8")
        assert old in text
        self.recipe.write_text(text.replace(old, new), encoding="utf-8")


def compiled(events: list[dict[str, Any]]) -> set[str]:
    """The compile and share steps that were really done, not restored."""
    return {event["step"] for event in events if event["event"] == "step_finished" and event["outcome"] == "built"}


def emitted(events: list[dict[str, Any]]) -> set[str]:
    """The emit steps that were done."""
    return {event["step"] for event in events if event["event"] == "step_finished" and event["outcome"] == "emitted"}


def toolchain_python(name: str) -> Path:
    """The interpreter of a provisioned toolchain that holds the package `name`."""
    for marker in toolchain_directory().glob("*/complete"):
        if any(package.startswith(name) for package in json.loads(marker.read_text(encoding="utf-8"))):
            return marker.parent / "env" / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    raise AssertionError(f"no toolchain with {name}")


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """An empty folder with a store of its own."""
    folder = tmp_path / "project"
    folder.mkdir()
    return Project(folder, tmp_path / "cache")


@pytest.fixture
def quickstart(tmp_path: Path) -> Project:
    """The checked-in quickstart, not built yet."""
    return copy_of_quickstart(tmp_path / "quickstart", tmp_path / "cache")


def copy_of_quickstart(folder: Path, cache: Path) -> Project:
    shutil.copytree(RECIPES / "models", folder / "models")
    shutil.copy(RECIPES / "quickstart.yaml", folder / "epbuild.yaml")
    return Project(folder, cache)
