"""Environment variables in every text of a recipe: no message contains their values."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from epbuild.core.errors import EpbuildError, Problem
from epbuild.core.redact import conceal_text
from epbuild.report.ci.sarif import SarifDocument
from epbuild.report.json.documents import build_problem_views, format_json
from epbuild.report.terminal.problems import print_problems
from epbuild.session.planning import read_plan
from epbuild.session.request import RemoteChoice, Request
from tests.recipe.texts import FULL

pytestmark = pytest.mark.slow  # each place is planned twice

SECRET = "tulip-bulb'42/0"
Place = tuple[str | int, ...]
MORE: dict[str, Any] = {
    "catalogs": ["my-ep.toml"],
    "cache": {"remote": "https://cache.example/x", "trust": [f"ed25519:{'A' * 43}="]},
}


def leaves(value: Any, place: Place = ()) -> Iterator[Place]:
    """Yield the paths of all scalars."""
    if isinstance(value, dict):
        for name, item in value.items():
            yield from leaves(item, (*place, name))
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from leaves(item, (*place, number))
    else:
        yield place


WHOLE = {**yaml.safe_load(FULL), **MORE}


@pytest.mark.parametrize("place", list(leaves(WHOLE)), ids=lambda place: ".".join(map(str, place)))
def test_no_message_contains_the_value_of_an_environment_variable(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TOKEN", SECRET)
    for text in ("${env.TOKEN}", "https://${vars.quality}.example/" + "b" * 90):
        document = copy.deepcopy(WHOLE)
        document["vars"]["quality"] = "${env.TOKEN}"
        inner: Any = document
        for step in place[:-1]:
            inner = inner[step]
        inner[place[-1]] = text
        recipe = tmp_path / "epbuild.yaml"
        recipe.write_text(yaml.safe_dump(document), encoding="utf-8")
        problems: tuple[Problem, ...]
        try:
            problems = read_plan(Request(recipe, remote=RemoteChoice()))[1].warnings
        except EpbuildError as error:
            problems = error.problems
        assert problems
        print_problems(problems)
        sarif = SarifDocument(recipe)
        sarif.add("error", problems)
        shown = [capsys.readouterr().err, format_json({"problems": build_problem_views(problems)}), sarif.text(None)]
        assert not [text for text in shown if "tulip" in text.lower()], place


def test_a_short_value_is_not_redacted(monkeypatch: pytest.MonkeyPatch) -> None:
    from epbuild.recipe.template import TemplateNames

    assert TemplateNames({"JOBS": "8"})["env.JOBS"] == "8"
    assert conceal_text("8 of 18") == "8 of 18"
