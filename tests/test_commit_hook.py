"""pre-commit hook for other repositories: pre-commit installs epbuild, and refuses to commit an invalid recipe."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from importlib.metadata import files, requires
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from tests.support.commands import RECIPE, write_model

pytestmark = pytest.mark.gate

ROOT = Path(__file__).parents[1]


def run(folder: Path, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    own = {name: value for name, value in os.environ.items() if not name.startswith(("GIT_", "PYTHONPATH"))}
    return subprocess.run(
        command,
        cwd=folder,
        env={**own, **environment},
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=300,
        check=False,
    )


def commit_checkout(folder: Path) -> str:
    """Commit every file of this checkout in a new repository, and return the commit."""
    listed = run(ROOT, "git", "ls-files", "--cached", "--others", "--exclude-standard").stdout.splitlines()
    for name in listed:
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    author = ["-c", "user.name=test", "-c", "user.email=test@example.com"]
    for command in (["init", "--quiet"], ["add", "--all"], [*author, "commit", "--quiet", "-m", "all"]):
        assert run(folder, "git", *command).returncode == 0
    return run(folder, "git", "rev-parse", "HEAD").stdout.strip()


@pytest.mark.skipif(not (ROOT / ".git").exists() or shutil.which("git") is None, reason="pre-commit clones this checkout")
def test_a_recipe_with_a_mistake_is_not_committed(tmp_path: Path, exhaustive: bool) -> None:
    """At night, pre-commit installs epbuild from a repository. Otherwise, the hook runs the epbuild of these tests."""
    repository = tmp_path / "models"
    write_model(repository / "relu.onnx")
    (repository / "epbuild.yaml").write_text(RECIPE, encoding="utf-8")
    (repository / "wrong.epbuild.yaml").write_text(RECIPE.replace("soc_model:", "soc_modell:"), encoding="utf-8")
    (repository / "other.yaml").write_text("no recipe at all", encoding="utf-8")
    for command in (["init", "--quiet"], ["add", "--all"]):
        assert run(repository, "git", *command).returncode == 0
    if exhaustive:
        hooks = tmp_path / "hooks"
        source = {"repo": str(hooks), "rev": commit_checkout(hooks), "hooks": [{"id": "epbuild-validate"}]}
    else:
        [manifest] = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8"))
        source = {"repo": "local", "hooks": [{**manifest, "language": "system", "additional_dependencies": []}]}
    (repository / ".pre-commit-config.yaml").write_text(json.dumps({"repos": [source]}), encoding="utf-8")
    hook = [sys.executable, "-m", "pre_commit", "run", "--files"]
    own = {"PRE_COMMIT_HOME": str(tmp_path / "installed"), "PIP_CONSTRAINT": str(ROOT / "constraints.txt"), "PIP_NO_COMPILE": "1"}
    own["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = run(repository, *hook, "epbuild.yaml", "other.yaml", "wrong.epbuild.yaml", **own)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "epbuild.yaml is valid" in done.stdout
    assert "wrong.epbuild.yaml:14:7: error: QNNExecutionProvider has no option 'soc_modell'" in done.stdout
    assert "other.yaml" not in done.stdout
    assert run(repository, *hook, "epbuild.yaml", **own).returncode == 0


def find_dependencies(name: str) -> set[str]:
    """Return the installed distributions that a distribution needs, without extras."""
    found: set[str] = set()
    names = {name}
    while names:
        found |= names
        required = [Requirement(text) for each in names for text in requires(each) or []]
        wanted = {each.name.lower() for each in required if each.marker is None or each.marker.evaluate({"extra": ""})}
        names = {each.replace("_", "-") for each in wanted} - found
    return found - {name}


@pytest.mark.exhaustive
def test_the_hook_installs_everything_that_validate_imports(tmp_path: Path) -> None:
    [manifest] = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8"))
    listed = [Requirement(text) for text in manifest["additional_dependencies"] if not text.startswith("--")]
    direct = {each.name: each.specifier for each in map(Requirement, requires("epbuild") or [])}
    assert all(each.specifier in (SpecifierSet(), direct.get(each.name)) for each in listed)
    all_of_it = find_dependencies("epbuild")
    missing = all_of_it - {each.name for each in listed}
    assert {"numpy", "onnx", "uv"} <= missing
    assert len(missing) + len(listed) == len(all_of_it)
    parts = {path.parts[0] for name in missing for path in files(name) or [] if path.suffix in (".py", ".so", ".pyd")}
    modules = sorted(name.partition(".")[0] for name in parts if "-" not in name)
    recipes = [str(ROOT / "recipes" / f"{name}.yaml") for name in ("cache", "llm")]
    wrong = tmp_path / "wrong.epbuild.yaml"
    wrong.write_text(RECIPE.replace("soc_model:", "soc_modell:").replace("path: dist", "pat: dist"), encoding="utf-8")
    write_model(tmp_path / "relu.onnx")
    code = f"import sys; sys.modules.update(dict.fromkeys({modules}))\nfrom epbuild.cli.app import execute\n"
    done = run(
        tmp_path,
        sys.executable,
        "-c",
        f"{code}print([execute(['validate', one]) for one in {[*recipes, str(wrong)]}])",
        PYTHONPATH=str(ROOT),
        EPBUILD_CACHE_DIR=str(tmp_path / "cache"),
    )
    assert done.stdout.splitlines()[-1:] == [str([*(0 for _ in recipes), 2])], done.stdout + done.stderr
    assert done.stderr.splitlines()[-1] == "4 errors", done.stderr
