"""Page of a report as a file: its contents, and the contents that it must never have."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import os
import re
import shutil
import subprocess
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from epbuild.report.html.report_page import render_page
from tests.support.sample_reports import HOSTILE, Document, hostile_report, large_report, small_report, zoo_report

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "epbuild" / "report" / "html" / "page"


class Elements(HTMLParser):
    """Elements of a page as a browser with scripts builds them, with the texts of its scripts and styles."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, list[str]] = {"script": [], "style": []}
        self._tag = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        self._tag = tag

    def handle_endtag(self, tag: str) -> None:
        self._tag = ""

    def handle_data(self, data: str) -> None:
        if self._tag in self.texts:
            self.texts[self._tag].append(data)


def test_the_page_contains_the_report_unchanged() -> None:
    document = hostile_report()
    assert json.loads(Elements(render_page(document)).texts["script"][0]) == document


@pytest.mark.parametrize("document", [small_report(), zoo_report(), hostile_report(), large_report(3)])
def test_sample_reports_match_the_schema(document: Document) -> None:
    schema = json.loads((ROOT / "schemas" / "report.schema.json").read_text(encoding="utf-8"))
    assert [error.message for error in Draft202012Validator(schema).iter_errors(document)] == []


def test_names_never_become_markup() -> None:
    plain, harmed = (Elements(render_page(document)) for document in (small_report(), hostile_report()))
    assert {tag for tag, _ in harmed.found} == {tag for tag, _ in plain.found}
    assert HOSTILE not in render_page(hostile_report())


def test_the_page_runs_only_its_own_scripts_and_loads_nothing() -> None:
    page = render_page(zoo_report())
    elements = Elements(page)
    (policy,) = (str(given["content"]) for tag, given in elements.found if given.get("http-equiv") == "Content-Security-Policy")
    rules = {name: values for name, *values in (rule.split() for rule in policy.split(";"))}
    assert rules["default-src"] == ["'none'"]
    assert rules["script-src"] == [digest(script) for script in elements.texts["script"][1:]]
    assert rules["style-src"] == [digest(style) for style in elements.texts["style"]]
    asked = [value for _, given in elements.found for name, value in given.items() if name in {"src", "href", "action"}]
    assert [value for value in asked if not str(value).startswith(("#", "data:,"))] == []


def digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


@pytest.mark.parametrize(
    ("exit_code", "state", "failed", "verdict"),
    [
        (0, "current", False, "Passed"),
        (0, "out of date", False, "Out of date"),
        (None, "new", False, "Not built"),
        (1, "failed", True, "Failed"),
        (3, "new", False, "Failed"),
        (130, "new", False, "Interrupted"),
    ],
)
def test_the_head_states_the_verdict(exit_code: int | None, state: str, failed: bool, verdict: str) -> None:
    document = zoo_report() if failed else small_report()
    for step in document["steps"]:
        step["state"] = state
    document["build"] = None if exit_code is None else {**document["build"], "exit_code": exit_code}
    assert f">{verdict}</strong>" in render_page(document)


@pytest.mark.parametrize(("state", "verdict"), [("out of date", "Out of date"), ("current", "Passed")])
def test_a_failure_before_the_last_change_is_out_of_date(state: str, verdict: str) -> None:
    document = zoo_report()
    document["failures"] = []
    for step in document["steps"]:
        step.update(errors=[], state=state)
    assert f">{verdict}</strong>" in render_page(document)


def test_a_build_with_allowed_failures_passed() -> None:
    document = zoo_report()
    document["build"]["exit_code"] = 0
    document["failures"] = [{**failure, "allowed": True} for failure in document["failures"]]
    page = render_page(document)
    assert ">Passed</strong>" in page
    assert "allowed to fail for 1 reason" in page


def test_the_head_counts_failures_and_models() -> None:
    document = zoo_report()
    failed = sum(bool(step["errors"]) for step in document["steps"])
    outcomes = Counter(row["outcome"] for row in document["coverage"])
    page = render_page(document)
    assert f"{failed} failed for 1 reason" in page
    assert all(f"{number} {outcome}" in page for outcome, number in outcomes.items())


def test_the_page_is_small_beside_its_data() -> None:
    document = large_report()
    assert len(document["steps"]) > 10_000
    data = len(json.dumps(document, separators=(",", ":")))
    assert len(render_page(document)) - data < 1_000_000


def test_rendering_a_report_is_deterministic() -> None:
    assert render_page(zoo_report()) == render_page(zoo_report())


def test_the_page_contains_every_script_and_style() -> None:
    page = render_page(small_report())
    for file in PAGE.glob("*.*s"):
        assert file.read_text(encoding="utf-8") in page, file.name
    assert html.escape((PAGE / "LICENSES.txt").read_text(encoding="utf-8")) in page


def test_the_page_contains_the_licenses_of_its_libraries() -> None:
    page = render_page(small_report())
    assert "@dagrejs/dagre" in page
    assert "Copyright" in page


def test_the_script_cannot_end_its_element() -> None:
    assert not re.search("</script|<!--", (PAGE / "report.js").read_text(encoding="utf-8"), re.IGNORECASE)


@pytest.mark.gate
def test_the_checked_in_script_matches_its_sources(tmp_path: Path) -> None:
    """Check types, lint, test and bundle `web/` with the packages of its lock."""
    npm = shutil.which("npm")
    if npm is None:
        assert "CI" not in os.environ, "there is no npm"
        pytest.skip("there is no npm on this machine")
    web = tmp_path / "web"
    shutil.copytree(ROOT / "web", web, ignore=shutil.ignore_patterns("node_modules"))
    (tmp_path / "schemas").mkdir()
    shutil.copy(ROOT / "schemas" / "report.schema.json", tmp_path / "schemas")
    for command in (
        ["ci", "--ignore-scripts", "--no-audit", "--no-fund"],
        ["run", "check"],
        ["run", "build", "--", str(tmp_path / "page")],
    ):
        done = subprocess.run(
            [npm, *command], check=False, cwd=web, capture_output=True, text=True, encoding="utf-8", timeout=500
        )
        assert done.returncode == 0, f"npm {command[0]}: {done.stdout}{done.stderr}"
    files = {"report.js": PAGE, "LICENSES.txt": PAGE, "report-types.d.ts": ROOT / "web" / "src"}
    for name, folder in files.items():
        built, committed = ((place / name).read_text(encoding="utf-8") for place in (tmp_path / "page", folder))
        assert built == committed, f"run `npm run build` in web/, which renews {name}"
