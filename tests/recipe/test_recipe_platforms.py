"""Platforms that a toolchain is locked for."""

from __future__ import annotations

from pathlib import Path

from tests.recipe.texts import MINIMAL, load_text, problems_of

PACKAGES = "packages: [onnxruntime-qnn==2.7.0]"


def test_platforms_of_a_toolchain_keep_their_order_without_duplicates(tmp_path: Path) -> None:
    platforms = "platforms: [windows-arm64, linux-x86_64, windows-arm64]"
    recipe = load_text(tmp_path, MINIMAL.replace(PACKAGES, f"{PACKAGES}\n    {platforms}"))
    assert recipe.toolchains["qnn"].platforms == ("windows-arm64", "linux-x86_64")
    assert load_text(tmp_path, MINIMAL).toolchains["qnn"].platforms == ()


def test_an_unknown_platform_is_reported_with_the_valid_platforms(tmp_path: Path) -> None:
    [problem] = problems_of(tmp_path, MINIMAL.replace(PACKAGES, f"{PACKAGES}\n    platforms: [windows]"))
    assert problem.code == "EPB106"
    assert "windows-arm64" in problem.text


def test_platforms_are_refused_for_an_existing_environment(tmp_path: Path) -> None:
    [problem] = problems_of(tmp_path, MINIMAL.replace(PACKAGES, "interpreter: python\n    platforms: [linux-x86_64]"))
    assert problem.message.startswith("'platforms' is only for an environment that epbuild creates")
