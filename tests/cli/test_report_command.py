"""`epbuild report`: recipes that were never built, output files, and errors."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest

from epbuild.core.canonical import read_schema
from tests.support.commands import RECIPE, epbuild, imported_by, write_model

pytestmark = pytest.mark.slow  # each test starts the real command


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "epbuild.yaml").write_text(RECIPE, encoding="utf-8")
    write_model(tmp_path / "relu.onnx")
    return tmp_path


def test_the_json_report_matches_its_schema_and_writes_nothing(folder: Path) -> None:
    done = epbuild(folder, "report", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    document = json.loads(done.stdout)
    jsonschema.Draft202012Validator(read_schema("report")).validate(document)
    assert {step["state"] for step in document["steps"]} == {"new"}
    assert document["build"] is None
    assert not (folder / ".epbuild").exists()


def test_the_file_suffix_selects_html_or_json(folder: Path) -> None:
    for name in ("report.html", "deep/report.JSON"):
        done = epbuild(folder, "report", "-o", name)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    document = json.loads((folder / "deep" / "report.JSON").read_text(encoding="utf-8"))
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert page.lower().startswith("<!doctype html>")
    assert document["recipe"]["name"] in page


def test_a_report_that_replaces_another_report_shows_changes(folder: Path) -> None:
    for _ in range(2):
        assert epbuild(folder, "report", "-o", "report.json").returncode == 0
    document = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    assert document["against"]["path"] == "report.json"
    (folder / "report.json").write_text("{}", encoding="utf-8")
    assert epbuild(folder, "report", "-o", "report.json").returncode == 0
    assert json.loads((folder / "report.json").read_text(encoding="utf-8"))["against"] is None


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["report", "-o", "report.pdf"], 2, "invalid report file 'report.pdf': the name must end in .html or .json"),
        (["report", "-o", "report.html", "--json"], 2, "--output and --json cannot be combined"),
        (["report", "--against", "nowhere"], 2, "nowhere"),
        (["report", "--against", "epbuild.yaml/x.json"], 2, "epbuild.yaml/x.json"),
        (["report", "-o", "epbuild.yaml/x.json"], 3, "epbuild.yaml/x.json"),
        (["report", "nowhere.yaml"], 2, "nowhere.yaml"),
        (["run", "--against", "x.json"], 2, "--against requires --report"),
        (["run", "--report", "x.pdf"], 2, "the name must end in .html or .json"),
        (["run", "--check", "--trace", "x.json"], 2, "--report, --trace, --junit and --sarif describe a build"),
    ],
)
def test_invalid_report_options_are_errors_without_a_traceback(folder: Path, arguments: list[str], code: int, words: str) -> None:
    done = epbuild(folder, *arguments)
    assert (done.returncode, done.stdout) == (code, "")
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_a_build_that_cannot_begin_writes_no_report_and_one_error(folder: Path) -> None:
    (folder / "relu.onnx").unlink()
    done = epbuild(folder, "run", "--report", "report.html", "--trace", "trace.json")
    assert done.returncode == 2
    assert done.stderr.count("EPB201") == 1
    assert not (folder / "report.html").exists()
    assert json.loads((folder / "trace.json").read_text(encoding="utf-8"))["traceEvents"] == []


def test_a_build_without_a_report_imports_no_report_module(folder: Path) -> None:
    loaded = imported_by(folder, "run", "--dry-run")
    assert not {
        name for name in loaded if name.startswith(("epbuild.report.html.report_page", "epbuild.commands.reporting.report"))
    }
