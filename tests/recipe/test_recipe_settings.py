"""Settings from outside the recipe: the environment by `${env.NAME}`, variables by `--set`."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epbuild.core.errors import Argument, Problem
from epbuild.recipe.variables import read_overrides
from tests.recipe.texts import MINIMAL, load_text, problems_of
from tests.support.recipe_texts import codes_and_places

ENVIRONMENT = {"SDK": "/opt/qnn", "EMPTY": "", "LEVEL": "3", "ProgramFiles(x86)": "C:/old", "BROKEN": "a\udcff"}


def option(tmp_path: Path, text: str, sets: tuple[str, ...] = ()) -> object:
    """Return the value of an option that the recipe has as `text`."""
    recipe = MINIMAL.replace("    ep: Q", f"    provider_options: {{o: {text}}}\n    ep: Q")
    loaded = load_text(tmp_path, recipe, environment=ENVIRONMENT, settings=sets)
    return loaded.targets["npu"].eps[0].provider_options["o"].value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("'${env.SDK}/lib'", "/opt/qnn/lib"),
        ("'${env.LEVEL}'", "3"),
        ("'${env.EMPTY}'", ""),
        ("'${env.SDK:-/usr}'", "/opt/qnn"),
        ("'${env.UNSET:-/usr}/lib'", "/usr/lib"),
        ("'${env.EMPTY:-/usr}'", "/usr"),
        ("'${env.UNSET:-}'", ""),
        ("'${env.UNSET:-a:-b}'", "a:-b"),
        ("'${env.ProgramFiles(x86)}'", "C:/old"),
        ("'$${env.SDK}'", "${env.SDK}"),
    ],
)
def test_a_text_reads_the_given_environment(tmp_path: Path, text: str, value: str) -> None:
    assert option(tmp_path, text) == value


def test_a_variable_can_come_from_the_environment(tmp_path: Path) -> None:
    text = MINIMAL.replace("quality: 3", "folder: '${env.MODELS:-models}'").replace("prefill.onnx", "'${vars.folder}/p.onnx'")
    assert load_text(tmp_path, text, environment={}).models["prefill"].path == "models/p.onnx"
    assert load_text(tmp_path, text, environment={"MODELS": "zoo"}).models["prefill"].path == "zoo/p.onnx"


def test_the_default_environment_is_that_of_the_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EPBUILD_TEST_MODEL", "here.onnx")
    recipe = load_text(tmp_path, MINIMAL.replace("prefill.onnx", "'${env.EPBUILD_TEST_MODEL}'"))
    assert recipe.models["prefill"].path == "here.onnx"


def test_an_invalid_environment_value_is_refused_at_its_reference(tmp_path: Path) -> None:
    [problem] = problems_of(tmp_path, MINIMAL.replace("prefill.onnx", "'${env.BROKEN}'"), environment=ENVIRONMENT)
    assert (problem.code, str(problem.where)) == ("EPB109", f"{tmp_path / 'epbuild.yaml'}:9:12")


def test_no_hint_lists_environment_variables(tmp_path: Path) -> None:
    [problem] = problems_of(tmp_path, MINIMAL.replace("prefill.onnx", "'${vars.x}'"), environment={"VERY_SECRET": "x"})
    assert "SECRET" not in str(problem)


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("vars.quality=2", 2),
        ("vars.quality='2'", "2"),
        ("vars.quality=1.5", 1.5),
        ("vars.quality=true", True),
        ("vars.quality=no", "no"),
        ("vars.quality=012", "012"),
        ("vars.quality=''", ""),
        ("vars.quality=a=b", "a=b"),
        ("vars.quality=${env.SDK}", "/opt/qnn"),
        ("vars.quality= spaced ", "spaced"),
    ],
)
def test_a_variable_can_be_set_to_any_scalar(tmp_path: Path, setting: str, value: object) -> None:
    found = option(tmp_path, "'${vars.quality}'", (setting,))
    assert found == value
    assert type(found) is type(value)


def test_the_last_of_two_settings_takes_precedence(tmp_path: Path) -> None:
    assert option(tmp_path, "'${vars.quality}'", ("vars.quality=1", "vars.quality=2")) == 2


@pytest.mark.parametrize(
    ("setting", "code", "says"),
    [
        ("vars.qualty=2", "EPB108", "Did you mean 'quality'?"),
        ("vars.quality.x=2", "EPB108", "there is no variable 'quality.x'"),
        ("name=other", "EPB106", "vars.<name>=<value>"),
        ("quality=2", "EPB106", "vars.<name>=<value>"),
        ("vars.quality", "EPB106", "vars.<name>=<value>"),
        ("", "EPB106", "vars.<name>=<value>"),
        ("vars.quality=", "EPB106", "not a single value"),
        ("vars.quality=[1, 2]", "EPB106", "not a single value"),
        ("vars.quality={a: 1}", "EPB106", "not a single value"),
        ("vars.quality=null", "EPB106", "not a single value"),
        ("vars.quality=1\nname: x", "EPB106", "not a single value"),
        ("vars.quality='open", "EPB106", "not a single value"),
        ("vars.quality=!!int 3", "EPB106", "not a single value"),
        ("vars.quality=${vars.other}", "EPB109", "can refer only to environment variables"),
        ("vars.quality=${env.UNSET}", "EPB109", "is not set"),
    ],
)
def test_an_invalid_setting_is_reported_as_written(tmp_path: Path, setting: str, code: str, says: str) -> None:
    [problem] = problems_of(tmp_path, MINIMAL, environment=ENVIRONMENT, settings=(setting,))
    assert (problem.code, problem.where) == (code, Argument(f"--set {setting}"))
    assert says in problem.text


def test_invalid_settings_are_reported_along_with_mistakes_in_the_recipe(tmp_path: Path) -> None:
    text = MINIMAL.replace("toolchain: qnn", "toolchain: qn")
    problems = problems_of(tmp_path, text, settings=("vars.a=1", "b"))
    assert sorted(problem.code for problem in problems) == ["EPB106", "EPB108", "EPB108"]


def test_setting_a_variable_does_not_hide_its_invalid_definition(tmp_path: Path) -> None:
    text = MINIMAL.replace("quality: 3", "quality: [3]")
    assert codes_and_places(problems_of(tmp_path, text, settings=("vars.quality=2",))) == [("EPB105", 4, 12)]


def test_the_digest_of_a_recipe_covers_its_variables_and_environment(tmp_path: Path) -> None:
    text = MINIMAL.replace("quality: 3", "quality: 3\n  home: ${env.HOME_OF_MODELS:-here}")
    one, same, two = (load_text(tmp_path, text, settings=(f"vars.quality={n}",), environment={}) for n in (1, 1, 2))
    other = load_text(tmp_path, text, settings=("vars.quality=1",), environment={"HOME_OF_MODELS": "there"})
    assert one.digest == same.digest
    assert len({one.digest, two.digest, other.digest}) == 3


@given(st.text() | st.text("vars.quality=:'\"[]{}#&*! \n").map("vars.quality=".__add__))
def test_any_setting_leads_to_a_value_or_a_problem(setting: str) -> None:
    found, problems = read_overrides([setting])
    assert len(found) + len(problems) == 1
    assert all(isinstance(problem, Problem) and problem.where == Argument(f"--set {setting}") for problem in problems)
