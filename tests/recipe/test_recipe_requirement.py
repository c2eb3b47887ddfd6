"""Pip requirements of toolchains: distribution, version, and whether an environment satisfies them."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epbuild.recipe.requirement import is_requirement, read_requirement
from tests.recipe.texts import MINIMAL, load_text


@pytest.mark.parametrize(
    ("text", "distribution", "version", "is_plain"),
    [
        ("onnxruntime", "onnxruntime", None, True),
        ("onnxruntime==1.31.1", "onnxruntime", "1.31.1", True),
        ("  OnnxRuntime_EP.OpenVINO == 1.8.1 ", "onnxruntime-ep-openvino", "1.8.1", True),
        ("x==1.25.0.dev20260801001", "x", "1.25.0.dev20260801001", True),
        ("x==1!2.0rc1.post2+cu12", "x", "1!2.0rc1.post2+cu12", True),
        ("x[y,z]==1.0", "x", "1.0", False),
        ("x[y]", "x", None, False),
        ("A_b.C-d>=1", "a-b-c-d", None, False),
        ("x==1.20.*", "x", None, False),
        ("x===1.20", "x", None, False),
        ("x==1.20,>=1", "x", None, False),
        ("x==1.20 ; sys_platform == 'win32'", "x", None, False),
        ("x @ https://h/x-1.0.whl", "x", None, False),
        ("/wheels/x-1.0.whl", "", None, False),
        ("-e .", "", None, False),
        ("", "", None, False),
    ],
)
def test_a_requirement_has_a_name_and_version_if_simple(
    text: str, distribution: str, version: str | None, is_plain: bool
) -> None:
    found = read_requirement(text)
    assert (found.text, found.distribution, found.version, found.is_plain) == (text, distribution, version, is_plain)


@pytest.mark.parametrize(
    "text",
    [
        "a",
        " A_b.C-d>=1,<2 ",
        "x[y,z]==1.0",
        "x==1.20 ; sys_platform == 'win32'",
        "x @ https://h/x-1.0.whl",
        "x @ git+https://h/x",
    ],
)
def test_names_that_installers_accept_are_requirements(text: str) -> None:
    assert is_requirement(text)


@given(st.text())
def test_options_and_several_lines_are_not_requirements(text: str) -> None:
    assert not is_requirement(f"-{text}")
    assert not is_requirement(f"a\n{text}")
    assert not is_requirement(text) or read_requirement(text).distribution


@given(st.text())
def test_any_text_can_be_parsed_without_an_exception(text: str) -> None:
    found = read_requirement(text)
    assert found.distribution or not found.is_plain
    assert found.version is None or "==" in text


@pytest.mark.parametrize(
    ("requirement", "version", "met"),
    [
        ("x", "0.1", True),
        ("x", None, False),
        ("x==1.24.1", "1.24.1", True),
        ("x==1.24.1", "1.24.2", False),
        ("x==1.24.1", "1.24", False),
        ("x==1.24.1", None, False),
        ("x==1.24", "1.24.0", True),
        ("x==1.24.0", "1.24", True),
        ("x==1.24", "1.24.0.1", False),
        ("x==10.0", "1", False),
        ("x==1.24", "1.24rc1", False),
        ("x==1.24rc1", "1.24.0rc1", True),
        ("x==1.24", "1.24.0+cu12", True),
        ("x==1.24+cu12", "1.24.0+cu12", True),
        ("x==1.24+cu12", "1.24+CU12", True),
        ("x==1.24+cu12", "1.24", False),
        ("x==1.24+cu12", "1.24+cu13", False),
    ],
)
def test_an_environment_meets_a_requirement_as_pip_compares_versions(requirement: str, version: str | None, met: bool) -> None:
    assert read_requirement(requirement).is_met_by(version) is met


def test_packages_beside_an_interpreter_describe_its_environment(tmp_path: Path) -> None:
    packages = "    interpreter: env/bin/python\n    packages: [onnxruntime, 'onnxruntime-ep-openvino==${vars.quality}.1']"
    toolchain = load_text(tmp_path, MINIMAL.replace("    packages: [onnxruntime-qnn==2.7.0]", packages)).toolchains["qnn"]
    assert toolchain.interpreter == "env/bin/python"
    assert [(one.distribution, one.version) for one in toolchain.requirements] == [
        ("onnxruntime", None),
        ("onnxruntime-ep-openvino", "3.1"),
    ]
