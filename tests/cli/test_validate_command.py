"""`epbuild validate`: every mistake of a recipe with its position, for people, machines and CI services."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.support.commands import RECIPE, epbuild, write_model

pytestmark = pytest.mark.slow  # each test starts the real command

WRONG = (
    RECIPE.replace("soc_model: SM8750", "soc_modell: SM8750\n      vtcm_mb: banana")
    .replace("dist/${target}", "dist/${taget}")
    .replace("backend_type: htp", "backend_type: bogus")
)
"""Four mistakes: an option's name, two values, and a template."""


@pytest.fixture
def wrong(tmp_path: Path) -> Path:
    write_model(tmp_path / "relu.onnx")
    (tmp_path / "epbuild.yaml").write_text(WRONG, encoding="utf-8")
    return tmp_path


def places(text: str) -> list[tuple[int, int]]:
    """Return the line and column of every reported problem."""
    return [(int(line), int(column)) for line, column in re.findall(r"^epbuild\.yaml:(\d+):(\d+): error: ", text, re.MULTILINE)]


def position(word: str) -> tuple[int, int]:
    before = WRONG[: WRONG.index(word)]
    return before.count("\n") + 1, len(before) - before.rfind("\n")


MISTAKES = ("bogus", "soc_modell", "banana", "dist/${taget}")  # a text that cannot be resolved is reported at its beginning


@pytest.mark.parametrize("command", ["validate", "plan", "run"])
def test_all_mistakes_in_options_are_shown_in_order_and_underlined(wrong: Path, command: str) -> None:
    (wrong / "epbuild.yaml").write_text(WRONG.replace("taget", "target"), encoding="utf-8")
    done = epbuild(wrong, command)
    assert (done.returncode, done.stdout) == (2, "")
    assert places(done.stderr) == [position(word) for word in MISTAKES[:3]]
    lines = done.stderr.splitlines()
    assert lines[-1] == "3 errors"
    for word in MISTAKES[:3]:
        [shown] = [number for number, line in enumerate(lines) if re.match(rf" *\d+ \| .*{re.escape(word)}", line)]
        assert lines[shown + 1].index("^") == lines[shown].index(word)
        assert lines[shown + 1].count("^") == len(word)


def test_a_mistake_in_the_text_does_not_hide_mistakes_in_options(wrong: Path) -> None:
    assert places(epbuild(wrong, "validate").stderr) == [position(word) for word in MISTAKES]


@pytest.mark.parametrize("command", ["validate", "run"])
def test_a_toolchain_without_its_targets_ep_is_refused_before_anything_is_installed(wrong: Path, command: str) -> None:
    (wrong / "epbuild.yaml").write_text(RECIPE.replace(", onnxruntime-qnn==2.7.0", ""), encoding="utf-8")
    done = epbuild(wrong, command)
    assert (done.returncode, done.stdout) == (2, "")
    said = " ".join(done.stderr.split())
    assert "error: the toolchain 'qnn' has no package for QNNExecutionProvider." in said
    assert "Add onnxruntime-qnn==2.7.0 to the toolchain's packages. [EPB257]" in said


def test_near_names_and_common_synonyms_lead_to_the_intended_value(wrong: Path) -> None:
    text = RECIPE.replace("soc_model: SM8750", "soc_model: SM8751").replace("backend_type: htp", "backend_type: npu")
    (wrong / "epbuild.yaml").write_text(text, encoding="utf-8")
    said = epbuild(wrong, "validate").stderr
    assert re.findall("Did you mean '.*?'", said) == ["Did you mean 'htp'", "Did you mean 'SM8750'"]


def test_a_mistake_in_a_matrix_is_reported_once_among_others(wrong: Path) -> None:
    text = WRONG.replace("    toolchain: qnn\n", "    matrix: {row: [1, 2, 3]}\n    toolchain: qnn\n", 1)
    (wrong / "epbuild.yaml").write_text(text, encoding="utf-8")
    told = places(epbuild(wrong, "validate").stderr)
    assert len(told) == len(set(told)) >= len(MISTAKES)


def test_excerpts_of_the_recipe_fit_80_columns(wrong: Path) -> None:
    (wrong / "epbuild.yaml").write_text(WRONG.replace("SM8750", f"{'x' * 500}"), encoding="utf-8")
    excerpts = [line for line in epbuild(wrong, "validate").stderr.splitlines() if re.match(r" +\d* \|", line)]
    assert excerpts
    assert max(map(len, excerpts)) <= 80


def test_machines_get_the_same_problems_as_json_only(wrong: Path) -> None:
    people = epbuild(wrong, "validate")
    machines = epbuild(wrong, "validate", "--json")
    assert (machines.returncode, machines.stderr) == (2, "")
    document = json.loads(machines.stdout)
    assert document["valid"] is False
    assert [(problem["line"], problem["column"]) for problem in document["problems"]] == places(people.stderr)


def test_github_gets_an_annotation_for_each_problem(wrong: Path) -> None:
    done = epbuild(wrong, "validate", GITHUB_ACTIONS="true")
    annotated = re.findall(r"^::error file=epbuild\.yaml,line=(\d+),col=(\d+)::", done.stderr, re.MULTILINE)
    assert [(int(line), int(column)) for line, column in annotated] == places(epbuild(wrong, "validate").stderr) != []
    assert places(done.stderr) == [], "no problem is told twice"


def test_output_in_a_pipe_has_no_control_characters(wrong: Path) -> None:
    assert "\x1b" not in epbuild(wrong, "validate").stderr


def test_a_valid_recipe_is_summarized_without_errors(wrong: Path) -> None:
    (wrong / "epbuild.yaml").write_text(RECIPE, encoding="utf-8")
    done = epbuild(wrong, "validate")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("epbuild.yaml is valid: 1 model, 1 target, 1 group, ")


def test_models_that_were_not_fetched_are_named_as_unchecked(wrong: Path) -> None:
    (wrong / "epbuild.yaml").write_text(RECIPE.replace("relu: relu.onnx", 'relu: "package:zoo==1.0/relu.onnx"'), encoding="utf-8")
    done = epbuild(wrong, "validate")
    assert done.stdout.splitlines()[1:] == [
        "1 model was not checked, because it has not been fetched or made yet: relu.",
        "  `epbuild run` checks every model.",
    ]
    assert json.loads(epbuild(wrong, "validate", "--json").stdout)["unread"] == ["relu"]


def test_a_missing_recipe_has_no_summary(tmp_path: Path) -> None:
    done = epbuild(tmp_path, "validate", "nowhere.yaml")
    assert done.returncode == 2
    [line] = done.stderr.splitlines()
    assert line.startswith("nowhere.yaml: error: ")


@pytest.mark.parametrize(
    ("arguments", "location"),
    [
        (["nowhere.yaml"], {"path": "nowhere.yaml"}),
        (["--set", "vars.quality=3"], {"argument": "--set vars.quality=3"}),
        (["--set", "quality"], {"argument": "--set quality"}),
    ],
)
def test_json_says_where_a_problem_outside_the_recipe_is(tmp_path: Path, arguments: list[str], location: dict[str, str]) -> None:
    write_model(tmp_path / "relu.onnx")
    (tmp_path / "epbuild.yaml").write_text(RECIPE, encoding="utf-8")
    done = epbuild(tmp_path, "validate", *arguments, "--json")
    assert done.returncode == 2
    [problem] = json.loads(done.stdout)["problems"]
    assert {key: problem[key] for key in problem.keys() - {"code", "message", "hint"}} == location


def test_every_given_recipe_is_checked_and_all_mistakes_are_shown(wrong: Path) -> None:
    (wrong / "good.yaml").write_text(RECIPE, encoding="utf-8")
    (wrong / "other.yaml").write_text(RECIPE.replace("soc_model:", "soc_modell:"), encoding="utf-8")
    done = epbuild(wrong, "validate", "epbuild.yaml", "good.yaml", "other.yaml")
    assert done.returncode == 2
    assert "good.yaml is valid" in done.stdout
    assert len(places(done.stderr)) == len(MISTAKES)
    assert re.search(r"^other\.yaml:\d+:\d+: error: .*soc_modell", done.stderr, re.MULTILINE)
    assert done.stderr.endswith("5 errors\n")
    assert epbuild(wrong, "validate", "good.yaml", "good.yaml").returncode == 0
    refused = epbuild(wrong, "validate", "good.yaml", "other.yaml", "--json")
    assert refused.returncode == 2
    assert "--json, --explain and --sarif accept only one recipe" in refused.stderr


@pytest.mark.parametrize(
    "arguments", [("validate", "--sarif"), *(("run", option) for option in ("--junit", "--sarif", "--trace", "--summary"))]
)
def test_a_recipe_is_never_overwritten(wrong: Path, arguments: tuple[str, ...]) -> None:
    before = (wrong / "epbuild.yaml").read_bytes()
    refused = epbuild(wrong, *arguments, str(wrong / "epbuild.yaml"))
    assert refused.returncode == 2
    assert "is the recipe: choose another file" in refused.stderr.replace("\n", " ")
    assert (wrong / "epbuild.yaml").read_bytes() == before


def test_validate_explain_prints_an_equivalent_long_recipe(tmp_path: Path) -> None:
    write_model(tmp_path / "relu.onnx")
    text = "epbuild: 1\nname: tiny\nmodels: '*.onnx'\ntargets: {phone: {ep: qnn, soc: SM8750}}\n"
    (tmp_path / "epbuild.yaml").write_text(text, encoding="utf-8")
    done = epbuild(tmp_path, "validate", "--explain")
    assert (done.returncode, done.stderr) == (0, "")
    assert "  relu: relu.onnx\n" in done.stdout
    (tmp_path / "explained.yaml").write_text(done.stdout, encoding="utf-8")
    plans = [json.loads(epbuild(tmp_path, "plan", name, "--json").stdout) for name in ("epbuild.yaml", "explained.yaml")]
    assert [step["id"] for step in plans[0]["steps"]] == ["compile:relu/phone/relu", "emit:relu/phone/directory"]
    assert plans[0]["steps"] == plans[1]["steps"]
    assert plans[1]["defaults"] == {"name": None, "toolchains": {}, "groups": [], "output": None}
    (tmp_path / "relu.onnx").unlink()
    done = epbuild(tmp_path, "validate", "--explain")
    assert (done.returncode, done.stdout) == (2, "")
    assert "no file matches '*.onnx'" in done.stderr
    assert epbuild(tmp_path, "validate", "--explain", "--json").returncode == 2
