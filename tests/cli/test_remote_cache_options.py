"""Command-line options of the remote cache."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.commands import RECIPE, epbuild, write_model

pytestmark = pytest.mark.slow  # each test starts the real command


@pytest.fixture
def project(tmp_path: Path) -> Path:
    write_model(tmp_path / "relu.onnx")
    (tmp_path / "epbuild.yaml").write_text(RECIPE, encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "variables", "code"),
    [
        (("--remote-cache", "write"), {}, "EPB275"),
        (("--remote-cache", "write"), {"EPBUILD_REMOTE_CACHE": "there"}, "EPB277"),
        ((), {"EPBUILD_REMOTE_CACHE": "http://cache.example/x"}, "EPB275"),
        (("--insecure",), {"EPBUILD_REMOTE_CACHE": "http://cache.example/x"}, "EPB276"),
        (("--offline", "--remote-cache", "write"), {}, "--offline"),
        (("--remote-cache", "both"), {}, "both"),
    ],
)
def test_forbidden_remote_options_exit_with_2_before_any_change(
    arguments: tuple[str, ...], variables: dict[str, str], code: str, project: Path
) -> None:
    done = epbuild(project, "run", *arguments, EPBUILD_TOOLCHAIN_DIR=str(project / "toolchains"), **variables)
    assert (done.returncode, done.stdout) == (2, "")
    assert code in done.stderr
    assert sorted(path.name for path in project.iterdir()) == ["epbuild.yaml", "relu.onnx"]


def test_offline_names_the_toolchain_that_is_missing(project: Path) -> None:
    done = epbuild(project, "run", "--offline", EPBUILD_TOOLCHAIN_DIR=str(project / "toolchains"))
    assert (done.returncode, "EPB525" in done.stderr, "the toolchain 'qnn' has not been provisioned yet" in done.stderr) == (
        3,
        True,
        True,
    )


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("cache", "verify", "epbuild.yaml"), "--remote"),
        (("cache", "verify", "--remote"), "EPB275"),
        (("cache", "push"), "EPB275"),
        (("run", "--push-only", "--no-emit"), "--push-only"),
        (("run", "--push-only"), "EPB240"),
        (("run", "--no-compile", "--rebuild-and-compare"), "--no-compile"),
    ],
)
def test_contradictory_remote_options_exit_with_2(arguments: tuple[str, ...], expected: str, project: Path) -> None:
    done = epbuild(project, *arguments, EPBUILD_TOOLCHAIN_DIR=str(project / "toolchains"))
    assert (done.returncode, done.stdout) == (2, "")
    assert expected in done.stderr


def test_plan_accepts_every_remote_option_except_write(project: Path) -> None:
    done = epbuild(
        project, "plan", "--json", "--remote-cache", "read", "--offline", EPBUILD_TOOLCHAIN_DIR=str(project / "toolchains")
    )
    assert {step["remote"] for step in json.loads(done.stdout)["steps"]} == {False}
    assert epbuild(project, "plan", "--remote-cache", "write").returncode == 2
