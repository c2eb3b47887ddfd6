"""Options of built-in preparations, refused at their place in the recipe; and toolchains that lack what a preparation needs."""

from __future__ import annotations

from pathlib import Path

import pytest

from epbuild.core.errors import Position, Problem
from epbuild.plan.preparation_options import find_package_problems, resolve_preparation_options
from epbuild.recipe.model import ToolchainSpec
from epbuild.recipe.nodes import MappingNode, Node
from epbuild.recipe.source import read

WHERE = Position("epbuild.yaml", 7, 7)


def node_of(text: str) -> Node:
    root = read(f"options: {text}".encode(), "epbuild.yaml").root
    assert isinstance(root, MappingNode)
    return root.entries["options"].node


def codes_and_places(kind: str, text: str) -> list[tuple[str, int, int]]:
    found = []
    for problem in resolve_preparation_options(kind, node_of(text), WHERE)[1]:
        assert isinstance(problem.where, Position)
        found.append((problem.code, problem.where.line, problem.where.column))
    return found


@pytest.mark.parametrize(
    ("kind", "text", "column"),
    [
        ("cut", "{output: [y]}", 11),  # the name of the option
        ("cut", "{outputs: [y, 3]}", 24),  # the item
        ("split", "{part: 0, at: [y, [z, 3]]}", 32),  # the item of a group
        ("opset", "seventeen", 10),
        ("float16", "{keep_io_types: maybe}", 26),
        ("quantize", "{generate: {ranges: {x: [1, 0]}}}", 34),
    ],
)
def test_invalid_preparation_options_are_reported_at_their_position(kind: str, text: str, column: int) -> None:
    assert ("EPB280", 1, column) in codes_and_places(kind, text)


def test_an_unknown_preparation_is_refused_with_the_nearest_name() -> None:
    [problem] = resolve_preparation_options("quantise", None, WHERE)[1]
    assert (problem.code, problem.where, problem.hint) == ("EPB280", WHERE, "Did you mean 'quantize'?")


def test_a_preparation_without_its_required_options_is_refused() -> None:
    [problem] = resolve_preparation_options("cut", None, WHERE)[1]
    assert problem.where == WHERE
    assert "'inputs' or 'outputs'" in problem.message


def lacking(kind: str, *packages: str, interpreter: str | None = None) -> list[Problem]:
    toolchain = ToolchainSpec("tools", Position("epbuild.yaml", 2, 3), packages=packages, interpreter=interpreter)
    return find_package_problems(kind, {}, toolchain, WHERE)


def test_missing_packages_of_a_toolchain_are_named() -> None:
    [problem] = lacking("quantize", "onnxruntime==1.31.1")
    assert (problem.code, problem.where) == ("EPB281", WHERE)
    assert "'onnx' and 'sympy'" in problem.message
    assert problem.hint is not None
    assert "Add onnx, sympy to the packages of 'tools' (epbuild.yaml:2:3)" in problem.hint


@pytest.mark.parametrize(
    "packages",
    [
        ("onnxruntime==1.31.1", "onnx", "sympy>=1.13"),
        ("ONNXRuntime-GPU", "onnx[reference]", "sympy"),
        ("onnxruntime-openvino", "onnxslim"),  # which depends on onnx and sympy
        ("./wheels/all_of_it.whl",),  # its dependencies are unknown
    ],
)
def test_a_toolchain_that_may_contain_the_packages_is_accepted(packages: tuple[str, ...]) -> None:
    assert lacking("quantize", *packages) == []


def test_a_plugin_package_does_not_count_as_onnxruntime() -> None:
    assert len(lacking("float16", "onnxruntime-ep-openvino==1.8.1", "onnx")) == 1


def test_an_existing_environment_is_not_checked_during_planning(tmp_path: Path) -> None:
    assert lacking("quantize", interpreter=str(tmp_path / "python")) == []
