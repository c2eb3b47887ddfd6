"""Default toolchains of preparations."""

from __future__ import annotations

from pathlib import Path

import pytest

from epbuild.catalog.packagings import pin_package
from epbuild.catalog.preparations import get_preparation, list_preparation_kinds
from tests.recipe.texts import load_text, problems_of

RECIPE = """\
epbuild: 1
name: shop
models: {norm: {path: norm.onnx, prepare: [{rewrite: qnn}]}}
targets: {phone: {ep: qnn, soc: SM8750}}
"""


def with_toolchains(text: str) -> str:
    return RECIPE + f"toolchains: {text}\n"


def test_step_without_a_toolchain_gets_the_catalogs(tmp_path: Path) -> None:
    recipe = load_text(tmp_path, RECIPE)
    assert recipe.models["norm"].prepare[0].toolchain.name == "rewrite"
    assert recipe.toolchains["rewrite"].packages == ("onnx==1.23.2",)
    assert recipe.defaults.toolchains["rewrite"] == ("onnx==1.23.2",)


def test_equal_kinds_share_a_default_toolchain(tmp_path: Path) -> None:
    recipe = load_text(tmp_path, RECIPE.replace("norm: {", "other: {path: x.onnx, prepare: [{rewrite: qnn}]}, norm: {"))
    assert [model.prepare[0].toolchain.name for model in recipe.models.values()] == ["rewrite", "rewrite"]
    assert set(recipe.toolchains) == {"rewrite", "qnn"}


@pytest.mark.parametrize(
    ("toolchains", "name"),
    [
        ("{rewrite: {packages: [onnx==1.19.1]}}", "rewrite"),
        ("{tools: {packages: [onnx==1.19.1]}}", "tools"),
        ("{tools: {packages: [onnxslim==0.1.98]}}", "tools"),  # onnxslim installs onnx
        ("{tools: {packages: [numpy]}}", "rewrite"),
    ],
)
def test_toolchain_of_the_recipe_comes_before_the_catalogs(tmp_path: Path, toolchains: str, name: str) -> None:
    recipe = load_text(tmp_path, with_toolchains(toolchains))
    assert recipe.models["norm"].prepare[0].toolchain.name == name
    assert (name in recipe.defaults.toolchains) == (name not in toolchains)


def test_two_fitting_toolchains_are_ambiguous(tmp_path: Path) -> None:
    [problem] = problems_of(tmp_path, with_toolchains("{a: {packages: [onnx]}, b: {packages: [onnx]}}"))
    assert problem.message == "the key 'toolchain' is missing in a step of 'prepare': 2 toolchains have the packages of this step"
    assert problem.hint == "Toolchains: a, b."


def test_packages_depend_on_the_options_of_the_step(tmp_path: Path) -> None:
    recipe = load_text(tmp_path, RECIPE.replace("{rewrite: qnn}", "{infer_shapes: {symbolic: true}}"))
    assert set(recipe.defaults.toolchains["infer_shapes"]) == {"onnx==1.23.2", "onnxruntime==1.31.1", "sympy==1.14.0"}


def test_steps_of_one_kind_share_all_packages_that_they_need(tmp_path: Path) -> None:
    steps = "{infer_shapes: {}}, {infer_shapes: {symbolic: true}}"
    recipe = load_text(tmp_path, RECIPE.replace("{rewrite: qnn}", steps))
    assert {step.toolchain.name for step in recipe.models["norm"].prepare} == {"infer_shapes"}
    assert recipe.toolchains["infer_shapes"].packages == ("onnx==1.23.2", "onnxruntime==1.31.1", "sympy==1.14.0")


def test_own_program_needs_a_toolchain(tmp_path: Path) -> None:
    [problem] = problems_of(tmp_path, RECIPE.replace("{rewrite: qnn}", '{run: [python, x.py, "${in}", "${out}"]}'))
    assert problem.message == "the key 'toolchain' is missing in models.norm.prepare[0]"


def test_each_package_of_a_preparation_has_a_version() -> None:
    for kind in map(get_preparation, list_preparation_kinds()):
        packages = {*kind.packages, *(package for option in kind.options.values() for package in option.packages)}
        assert all("==" in pin_package(package) for package in packages), kind.kind
