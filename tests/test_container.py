"""Container image: it validates recipes for any user, and has only what an installation needs."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.commands import RECIPE, write_model

ROOT = Path(__file__).parents[1]
IMAGE = "epbuild-of-tests"


def read_instructions() -> list[tuple[str, str]]:
    """Return the instructions of the Dockerfile with their arguments, in order."""
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    lines = (line.split(maxsplit=1) for line in text.splitlines() if line and not line.startswith("#"))
    return [(name, arguments) for name, arguments in lines]


def run(*command: str | Path, cwd: Path, **environment: str) -> str:
    """Run a command that succeeds, and return its output. Without an environment, it has the environment of the tests."""
    done = subprocess.run(
        list(map(str, command)),
        cwd=cwd,
        env=environment or None,
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def copy_context(folder: Path) -> Path:
    """Copy the part of the checkout that `.dockerignore` lets into the build."""
    folder.mkdir()
    for line in (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines():
        source = ROOT / line.removeprefix("!")
        if line.startswith("!") and source.is_dir():
            shutil.copytree(source, folder / source.name, ignore=shutil.ignore_patterns("__pycache__"))
        elif line.startswith("!"):
            shutil.copy(source, folder)
    return folder


def has_daemon() -> bool:
    return (
        shutil.which("docker") is not None
        and subprocess.run(["docker", "info"], capture_output=True, check=False).returncode == 0
    )


@pytest.mark.exhaustive
@pytest.mark.skipif("sys.platform != 'linux'", reason="the image is for Linux")
def test_the_image_validates_a_recipe_in_the_current_folder(tmp_path: Path) -> None:
    """Build the image if a daemon runs here. Otherwise, run the steps of the Dockerfile in folders that stand for the image's."""
    work = tmp_path / "work"
    write_model(work / "relu.onnx")
    (work / "epbuild.yaml").write_text(RECIPE, encoding="utf-8")
    if has_daemon():
        run("docker", "build", "--tag", IMAGE, ".", cwd=ROOT)
        user = f"{os.getuid()}:{os.getgid()}"
        shown = run("docker", "run", "--rm", "--user", user, "--volume", f"{work}:/work", IMAGE, "validate", cwd=work)
    else:
        shown = run_steps(tmp_path, work)
    assert "epbuild.yaml is valid" in shown


def run_steps(folder: Path, work: Path) -> str:
    """Run the steps of the Dockerfile, except the base image and system packages. Return the output of `validate`."""
    run(sys.executable, "-m", "venv", folder / "python", cwd=folder)
    places = {"/epbuild": copy_context(folder / "context"), "/cache": folder / "cache", "/work": work}
    environment = {"PATH": f"{folder / 'python' / 'bin'}:/usr/bin:/bin", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}

    def put(text: str) -> str:
        return re.sub(r"(?<![\w/])/(epbuild|cache|work)\b", lambda found: str(places[found[0]]), text)

    command: list[str] = []
    for name, arguments in read_instructions():
        match name:
            case "RUN" if "apt-get" not in arguments:
                script = re.sub(r"--mount=\S+", "", arguments)
                run("sh", "-ec", put(script), cwd=folder, **environment)
            case "ARG" | "ENV":
                variable, _, text = arguments.partition("=")
                environment[variable] = put(text)
            case "ENTRYPOINT":
                command = json.loads(arguments)
            case "WORKDIR":
                assert put(arguments) == str(work)
            case _:
                assert name in ("FROM", "RUN"), name
    return run(folder / "python" / "bin" / command[0], "validate", cwd=work, **environment)


def test_the_development_container_sets_up_the_projects_environment() -> None:
    container = json.loads((ROOT / ".devcontainer" / "devcontainer.json").read_text(encoding="utf-8"))
    [base] = [arguments for name, arguments in read_instructions() if name == "FROM"]
    assert base.startswith(container["image"])
    assert f"$ {container['postCreateCommand']} " in (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    settings = container["customizations"]["vscode"]["settings"]
    assert all((ROOT / schema).exists() for schema in settings["yaml.schemas"])


def test_the_documented_commands_use_the_image_as_it_is() -> None:
    guide = (ROOT / "docs" / "getting-started" / "installation.md").read_text(encoding="utf-8")
    command = shlex.split(re.findall(r"^docker run .*$", guide, flags=re.MULTILINE)[0])
    mounted = {command[at + 1].partition(":")[2] for at, word in enumerate(command) if word == "-v"}
    found = dict(read_instructions())
    assert mounted == {found["WORKDIR"], found["ENV"].removeprefix("HOME=")}
