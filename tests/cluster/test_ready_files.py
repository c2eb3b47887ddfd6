"""Files under docs/cluster: this version of epbuild accepts the commands that they start."""

from __future__ import annotations

import configparser
import importlib
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.main import get_command

FOLDER = Path(__file__).parents[2] / "docs" / "cluster"
SCHEDULER_OPTIONS = {"--host", "--port", "--no-dashboard", "--protocol", "--tls-ca-file", "--tls-cert", "--tls-key"}


def parse(words: list[str]) -> None:
    """Parse a command line without running the command."""
    program, command, *arguments = words
    if program.rpartition("/")[2] == "epbuild":
        get_command(importlib.import_module(f"epbuild.cli.{command}").app).make_context(command, arguments)
    else:
        assert (program, command) == ("dask", "scheduler")
        assert {word for word in arguments if word.startswith("--")} <= SCHEDULER_OPTIONS


def kubernetes() -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((FOLDER / "kubernetes.yaml").read_text(encoding="utf-8")))


def compose() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((FOLDER / "compose.yaml").read_text(encoding="utf-8"))
    return found


@pytest.mark.parametrize("words", [["epbuild", "worker", "--no-such-option"], ["epbuild", "worker", "--slots", "none"]])
def test_invalid_epbuild_command_is_detected(words: list[str]) -> None:
    with pytest.raises(Exception, match=r"no-such-option|none"):
        parse(words)


def test_systemd_unit_starts_a_worker() -> None:
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(FOLDER / "epbuild-worker.service", encoding="utf-8")
    parse(shlex.split(unit["Service"]["ExecStart"]))


def test_compose_file_starts_the_named_services() -> None:
    services = compose()["services"]
    for service in services.values():
        if "command" in service:
            entrypoint = service.get("entrypoint", "epbuild")  # the entry point of the Dockerfile
            parse(shlex.split(f"{entrypoint} {service['command']}"))
    assert {"scheduler", "worker-1", "worker-2", "cache"} <= services.keys()


@pytest.mark.slow
def test_compose_file_matches_the_compose_schema() -> None:
    checker = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", str(FOLDER / "compose.yaml")]
    done = subprocess.run(checker, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_kubernetes_files_contain_each_named_secret_and_selector() -> None:
    documents = kubernetes()
    assert [document["kind"] for document in documents] == ["Service", "Deployment", "Deployment"]
    comment = (FOLDER / "kubernetes.yaml").read_text(encoding="utf-8").partition("apiVersion")[0]
    made = set(re.findall(r"create secret generic (\S+)", comment))
    for document in documents[1:]:
        spec = document["spec"]
        assert spec["selector"]["matchLabels"] == spec["template"]["metadata"]["labels"]
        pod = spec["template"]["spec"]
        volumes = {volume["name"]: volume for volume in pod["volumes"]}
        assert {volume["secret"]["secretName"] for volume in volumes.values() if "secret" in volume} <= made
        for container in pod["containers"]:
            parse(list(map(str, container["command"])))
            assert {mount["name"] for mount in container["volumeMounts"]} <= volumes.keys()


@pytest.mark.skipif(sys.platform == "win32", reason="a script for Linux")
def test_slurm_script_is_valid_and_starts_a_worker() -> None:
    path = FOLDER / "slurm.sh"
    subprocess.run(["bash", "-n", str(path)], check=True)
    [line] = [line for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("exec ")]
    parse(shlex.split(line.removeprefix("exec ")))


@pytest.mark.skipif(shutil.which("nginx") is None, reason="nginx is not installed")
def test_nginx_accepts_its_configuration(tmp_path: Path) -> None:
    text = (FOLDER / "nginx.conf").read_text(encoding="utf-8").replace("/srv/epbuild", str(tmp_path))
    own = tmp_path / "nginx.conf"
    own.write_text(f"pid {tmp_path}/pid;\nerror_log {tmp_path}/log;\n{text}", encoding="utf-8")
    done = subprocess.run(["nginx", "-t", "-p", str(tmp_path), "-c", str(own)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
