"""`epbuild doctor` and `epbuild devices` on new and on broken machines."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest

from epbuild.core.canonical import read_schema
from tests.support.commands import RECIPE, epbuild, write_model

pytestmark = pytest.mark.slow


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "epbuild.yaml").write_text(RECIPE, encoding="utf-8")
    write_model(tmp_path / "relu.onnx")
    return tmp_path


def test_doctor_passes_on_a_new_machine(folder: Path) -> None:
    done = epbuild(folder, "doctor", EPBUILD_TOOLCHAIN_DIR=str(folder / "toolchains"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    assert [line for line in lines if len(line) > 80 and " " in line[23:]] == []  # long paths are not broken
    assert lines[-1].startswith("Builds can run.")
    assert any(line.startswith("ok       recipe        epbuild.yaml: 2 steps for 1 target") for line in lines)
    assert "not provisioned yet; a build provisions it when needed" in " ".join(done.stdout.split())
    assert sorted(path.name for path in folder.iterdir()) == ["epbuild.yaml", "relu.onnx"]


@pytest.mark.parametrize("command", ["doctor", "devices"])
def test_the_json_for_a_broken_recipe_matches_its_schema(command: str, folder: Path) -> None:
    (folder / "epbuild.yaml").write_text("epbuild: 1\nname: [", encoding="utf-8")
    done = epbuild(folder, command, "--json", EPBUILD_TOOLCHAIN_DIR=str(folder / "toolchains"))
    assert (done.returncode, done.stderr) == (1, "")
    document = json.loads(done.stdout)
    jsonschema.validate(document, read_schema("doctor"))
    assert document["healthy"] is False


def test_several_faults_are_one_line_each_without_a_traceback(folder: Path) -> None:
    (folder / "file").write_text("", encoding="utf-8")
    done = epbuild(
        folder,
        "doctor",
        "nowhere.yaml",
        EPBUILD_CACHE_DIR=str(folder / "file" / "cache"),
        EPBUILD_TOOLCHAIN_DIR="",
        EPBUILD_EXECUTOR="nonsense",
        EPBUILD_REMOTE_CACHE="gopher://cache",
        EPBUILD_SIGNING_KEY="nonsense",
        LC_ALL="C",
    )
    assert done.returncode == 1
    assert done.stderr == ""
    for words in ("EPB100", "found a file", "EPB536", "EPB275", "EPB277", "Builds cannot run until the errors are fixed."):
        assert words in done.stdout
    assert "Traceback" not in done.stdout


def test_devices_requires_no_recipe(tmp_path: Path) -> None:
    done = epbuild(tmp_path, "devices", EPBUILD_TOOLCHAIN_DIR=str(tmp_path / "toolchains"))
    assert done.returncode == 0, done.stderr
    assert "no toolchain exists yet" in done.stdout


def test_devices_lists_the_socs_of_an_ep_with_product_names(tmp_path: Path) -> None:
    lines = epbuild(tmp_path, "devices", "--ep", "qnn").stdout.splitlines()
    assert lines[0].startswith("soc_model of QNNExecutionProvider: ")
    assert lines[1].split() == ["name", "number", "arch", "product"]
    assert "SM8750       69      79    Snapdragon 8 Elite" in lines
    named = json.loads(epbuild(tmp_path, "devices", "--ep", "QNNExecutionProvider", "--json").stdout)["options"]["soc_model"]
    assert {"Snapdragon 8 Elite"} == {product for row in named if row["name"] == "SM8750" for product in row["products"]}


def test_devices_names_the_known_eps_if_one_is_unknown(tmp_path: Path) -> None:
    done = epbuild(tmp_path, "devices", "--ep", "qqn")
    assert done.returncode == 2
    assert done.stderr.startswith("epbuild: error: the catalog has no EP 'qqn'; it has CPUExecutionProvider, ")
