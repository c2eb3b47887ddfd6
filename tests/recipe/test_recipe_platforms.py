"""Platforms that a toolchain is locked for."""

from __future__ import annotations

from pathlib import Path

from tests.recipe.texts import MINIMAL, load_text, problems_of

PACKAGES = "packages: [onnxruntime-qnn==2.7.0]"


def test_the_platforms_of_a_toolchain_are_read_in_their_order_each_once(tmp_path: Path) -> None:
    platforms = "platforms: [windows-arm64, linux-x86_64, windows-arm64]"
    recipe = load_text(tmp_path, MINIMAL.replace(PACKAGES, f"{PACKAGES}\n    {platforms}"))
    assert recipe.toolchains["qnn"].platforms == ("windows-arm64", "linux-x86_64")
    assert load_text(tmp_path, MINIMAL).toolchains["qnn"].platforms == ()


def test_a_platform_that_cannot_be_locked_is_told_with_those_that_can(tmp_path: Path) -> None:
    [problem] = problems_of(tmp_path, MINIMAL.replace(PACKAGES, f"{PACKAGES}\n    platforms: [windows]"))
    assert problem.code == "EPB106"
    assert "windows-arm64" in problem.text


def test_an_environment_that_is_there_has_no_platforms_to_choose(tmp_path: Path) -> None:
    [problem] = problems_of(tmp_path, MINIMAL.replace(PACKAGES, "interpreter: python\n    platforms: [linux-x86_64]"))
    assert problem.message.startswith("'platforms' is only for an environment that epbuild creates")
