"""SARIF of problems and failures: valid by the OASIS schema, with locations that code scanning finds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft4Validator

from epbuild import __version__
from epbuild.core.errors import Argument, PlanError, Position, Problem, RecipeError, StepId
from epbuild.engine.events import Event, RunFinished, StepFailed, Warned
from epbuild.report.ci.sarif import SarifDocument, read_error_codes

SCHEMA = json.loads((Path(__file__).parent / "schemas/sarif-schema-2.1.0.json").read_text(encoding="utf-8"))
VALIDATOR = Draft4Validator(SCHEMA)


def written(*events: Event, error: BaseException | None = None, recipe: str = "epbuild.yaml") -> dict[str, Any]:
    document = SarifDocument(Path(recipe))
    for event in events:
        document.report(event)
    found = json.loads(document.text(error))
    VALIDATOR.validate(found)
    [run] = found["runs"]
    return dict(run)


def test_a_problem_has_its_location_rule_and_hint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / "models").mkdir()
    monkeypatch.chdir(tmp_path / "models")
    mistake = Problem("EPB103", "unknown key 'a'", Position("my recipe.yaml", 14, 7), "Did you mean 'b'?")
    run = written(error=RecipeError(mistake))
    [result] = run["results"]
    assert (result["ruleId"], result["level"], result["message"]["text"]) == (
        "EPB103",
        "error",
        "unknown key 'a'. Did you mean 'b'?",
    )
    assert result["locations"] == [
        {
            "physicalLocation": {
                "artifactLocation": {"uri": "models/my%20recipe.yaml", "uriBaseId": "%SRCROOT%"},
                "region": {"startLine": 14, "startColumn": 7},
            }
        }
    ]
    [rule] = run["tool"]["driver"]["rules"]
    assert rule["help"]["text"] == "Use the key that the message suggests. The recipe lists all keys."
    assert rule["helpUri"].endswith("docs/reference/errors.md#epb103")
    assert run["tool"]["driver"]["version"] == __version__
    assert run["invocations"] == [{"executionSuccessful": False, "exitCode": 2}]


def test_a_failed_step_is_located_at_the_recipe_by_step_name() -> None:
    step = StepId("compile:main/phone/relu")
    run = written(
        Warned(Problem("EPB250", "likely not meant")),
        StepFailed(step, (Problem("EPB401", "no nodes", step),)),
        StepFailed(step, (Problem("EPB402", "allowed", step),), allowed=True),
        StepFailed(step, (Problem("EPB401", "no nodes", step),)),
        RunFinished(1, 1.0, 0, 0, 0, 1, 0),
    )
    assert [(result["ruleId"], result["level"]) for result in run["results"]] == [
        ("EPB250", "warning"), ("EPB401", "error"), ("EPB402", "note"),
    ]  # fmt: skip
    [location] = run["results"][1]["locations"]
    assert location["logicalLocations"] == [{"fullyQualifiedName": step, "kind": "step"}]
    assert location["physicalLocation"]["artifactLocation"]["uri"] == "epbuild.yaml"
    assert [rule["id"] for rule in run["tool"]["driver"]["rules"]] == ["EPB250", "EPB401", "EPB402"]
    assert [run["results"][n]["ruleIndex"] for n in range(3)] == [0, 1, 2]
    assert run["invocations"] == [{"executionSuccessful": False, "exitCode": 1}]


def test_problems_outside_the_recipe_name_their_file_or_argument(tmp_path: Path) -> None:
    problems = (Problem("EPB109", "no such variable", Argument("--set vars.a=1")), Problem("EPB503", "damaged", tmp_path / "a%b"))
    argument, path = written(error=PlanError(*problems))["results"]
    assert argument["message"]["text"] == "--set vars.a=1: no such variable."
    assert path["locations"][0]["physicalLocation"]["artifactLocation"]["uri"].startswith("file:///")
    assert path["locations"][0]["physicalLocation"]["artifactLocation"]["uri"].endswith("/a%25b")


def test_success_and_interrupt_are_recorded() -> None:
    assert written(RunFinished(0, 1.0, 1, 0, 0, 0, 0))["invocations"] == [{"executionSuccessful": True, "exitCode": 0}]
    assert written(error=KeyboardInterrupt())["invocations"] == [{"executionSuccessful": False}]


TEXTS = st.text(st.characters(), min_size=1, max_size=30) | st.sampled_from(
    ["\x00\x1b[31m", "\ud800", "\r\n", "\ufffe", "../a b#c?d"]
)


@given(TEXTS, TEXTS)
def test_hostile_names_and_messages_are_escaped(name: str, message: str) -> None:
    path = name.replace("\0", "0")
    run = written(
        StepFailed(name, (Problem("EPB401", message, StepId(name), message),)),
        error=RecipeError(Problem("EPB103", message, Position(path, 1, 1)), Problem("EPB104", message, Path(path))),
        recipe=path,
    )
    json.dumps(run, ensure_ascii=False).encode()
    assert len(run["results"]) == 3


def test_every_error_code_has_help() -> None:
    assert all(found.meaning and found.action for found in read_error_codes().values())
    assert len(read_error_codes()) > 100
