"""Distributions of epbuild: a wheel and a source archive, built twice, inspected, and installed in isolation."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest
from packaging.metadata import Metadata
from readme_renderer.markdown import render

from epbuild import __version__

pytestmark = pytest.mark.gate

ROOT = Path(__file__).parents[1]
UV = [sys.executable, "-m", "uv"]
FILES = "https://github.com/epbuild/epbuild/blob/main/"
IMAGES = "https://raw.githubusercontent.com/epbuild/epbuild/main/"


def done(command: list[str], folder: Path, **environment: str) -> str:
    """Run a command, and return its output. Fail if the command fails."""
    run = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=300,
        check=False,
    )
    assert run.returncode == 0, f"{command}: {run.stdout}{run.stderr}"
    return run.stdout


@dataclass(frozen=True)
class Built:
    wheel: Path
    source: Path


def build(folder: Path) -> Built:
    done([*UV, "build", "--quiet", "--out-dir", str(folder), str(ROOT)], folder.parent, SOURCE_DATE_EPOCH="1600000000")
    [wheel], [source] = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return Built(wheel, source)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    return build(tmp_path_factory.mktemp("built") / "dist")


@pytest.fixture(scope="module")
def metadata(built: Built) -> Metadata:
    with zipfile.ZipFile(built.wheel) as wheel:
        return Metadata.from_email(wheel.read(f"epbuild-{__version__}.dist-info/METADATA"), validate=True)


def in_repository() -> set[str]:
    """Return every file of the checkout that is not ignored."""
    if not (ROOT / ".git").exists():
        pytest.skip("this is no checkout")
    listed = done(["git", "ls-files", "--cached", "--others", "--exclude-standard"], ROOT).splitlines()
    return {name for name in listed if (ROOT / name).is_file()}


def test_two_builds_of_the_distributions_are_identical(built: Built, tmp_path: Path) -> None:
    again = build(tmp_path / "again")
    assert again.wheel.read_bytes() == built.wheel.read_bytes()
    assert again.source.read_bytes() == built.source.read_bytes()


def test_the_source_archive_contains_exactly_the_repository(built: Built) -> None:
    with tarfile.open(built.source) as archive:
        names = {member.name.partition("/")[2] for member in archive.getmembers()}
    assert names == in_repository() | {"PKG-INFO"}


def test_the_wheel_contains_exactly_the_package_and_its_schemas(built: Built) -> None:
    with zipfile.ZipFile(built.wheel) as wheel:
        names = {name for name in wheel.namelist() if ".dist-info/" not in name}
    files = in_repository()
    package = {name for name in files if name.startswith("epbuild/")}
    assert names == package | {f"epbuild/_{name}" for name in files if name.startswith("schemas/")}
    assert "epbuild/py.typed" in names


def test_the_package_metadata_is_complete(metadata: Metadata) -> None:
    assert metadata.version is not None
    assert str(metadata.version) == __version__
    assert metadata.license_expression == "Apache-2.0 AND BSD-3-Clause AND ISC AND MIT"
    assert metadata.project_urls is not None
    assert {"Documentation", "Source", "Issues", "Changelog"} <= metadata.project_urls.keys()
    assert metadata.description is not None
    page = render(metadata.description)
    assert page is not None
    assert page.count("<pre") == metadata.description.count("\n```") // 2, "a block of code that is none on the index's page"


def test_every_link_in_the_package_description_has_a_target(metadata: Metadata) -> None:
    assert metadata.description is not None
    text = re.sub(r"```.*?```", "", metadata.description, flags=re.DOTALL)
    targets = set(re.findall(r"\]\(([^)]+)\)", text))
    assert len(targets) > 20
    for target in targets:
        assert target.startswith("https://"), target
        for place in (FILES, IMAGES):
            if target.startswith(place):
                assert (ROOT / target.removeprefix(place).partition("#")[0]).exists(), target


@pytest.mark.parametrize("kind", ["wheel", "source"])
def test_an_isolated_installation_writes_and_plans_a_recipe(built: Built, tmp_path: Path, kind: str) -> None:
    """Run in an environment that has only epbuild's own dependencies, and in a folder outside the checkout."""
    environment, folder = tmp_path / "environment", tmp_path / "elsewhere"
    (folder / "models").mkdir(parents=True)
    shutil.copy(ROOT / "recipes/models/classifier/classifier.onnx", folder / "models")
    done([*UV, "venv", "--quiet", "--python", sys.executable, str(environment)], tmp_path)
    constraints = str(ROOT / "constraints.txt")
    done([*UV, "pip", "install", "--quiet", "--python", str(environment), "-c", constraints, str(getattr(built, kind))], tmp_path)
    programs = environment / ("Scripts" if os.name == "nt" else "bin")
    own = {
        "EPBUILD_CACHE_DIR": str(tmp_path / "cache"),
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": "",
        "PYTHONUTF8": "1",
    }
    command = str(programs / "epbuild")
    assert done([command, "--version"], folder, **own).strip() == f"epbuild {__version__}"
    assert "Wrote models/epbuild.yaml" in done([command, "init", "models", "--ep", "qnn", "--soc", "SM8750"], folder, **own)
    assert "valid" in done([command, "validate", "models/epbuild.yaml"], folder, **own)
    assert "compile:" in done([command, "plan", "models/epbuild.yaml"], folder, **own)


def test_the_wheel_runs_without_an_installation(built: Built, tmp_path: Path) -> None:
    uvx = [*UV, "tool", "run", "--from", str(built.wheel), "--constraints", str(ROOT / "constraints.txt")]
    assert done([*uvx, "epbuild", "--version"], tmp_path, PYTHONPATH="").strip() == f"epbuild {__version__}"
