"""Reference pages under `docs/reference/`: complete, up to date, and valid Markdown."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from typer.main import get_command

from epbuild.catalog.catalog import entries_for, known_eps, list_session_keys
from epbuild.cli import app
from epbuild.cli.job_options import _EQUAL_JOBS
from epbuild.core.canonical import read_schema
from epbuild.core.defaults import CACHE_VARIABLES
from epbuild.core.user_folders import SETTINGS_VARIABLES
from epbuild.core.user_settings import _KINDS
from epbuild.engine.events import Event
from epbuild.report.json.documents import Document
from epbuild.report.json.events import format_event_name
from tests.support.commands import ROOT, environment
from tools.reference.__main__ import main
from tools.reference.environment import read_variables
from tools.reference.json_documents import DOCUMENTS, UNREPORTED
from tools.reference.pages import build_reference_pages
from tools.reference.report_schema import build_report_schema
from tools.reference.specification import STATES, read_sections

_INTERNAL = {"COMP_WORDS", "COMP_CWORD", "PYTHONHASHSEED"}
"""Variables that only a shell's completion script or epbuild itself sets."""
_READ_BY_LIBRARIES = {
    *("COLUMNS", "NO_PROXY", "HTTPS_PROXY", "SSL_CERT_DIR", "HF_HOME", "UV_INDEX"),
    *("AWS_SESSION_TOKEN", "AWS_ENDPOINT"),
}
"""Variables whose names are not in the code of epbuild."""
FOLDER = ROOT / "docs" / "reference"
PAGES = {path.name: path.read_text(encoding="utf-8") for path in FOLDER.iterdir()}


def command(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tools.reference", *arguments, str(folder)],
        env=environment(folder),
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=60,
        check=False,
    )


def test_the_checked_in_pages_match_their_sources() -> None:
    assert build_reference_pages() == PAGES, "run `python -m tools.reference --write`"


def test_the_schema_of_reports_matches_the_report_classes() -> None:
    there = (ROOT / "schemas" / "report.schema.json").read_text(encoding="utf-8")
    assert there == build_report_schema(), "run `python -m tools.reference --write`"
    jsonschema.Draft202012Validator.check_schema(json.loads(there))


@pytest.mark.parametrize("ep", known_eps())
def test_every_option_of_an_ep_is_on_its_page_with_its_meaning(ep: str) -> None:
    page = PAGES[f"{ep}.md"]
    for entry in entries_for(ep):
        for option in entry.options.values():
            [row, *_] = [line for line in page.splitlines() if line.startswith(f"| `{option.name}` |")]
            assert row
            assert option.meaning.split("`")[0].split("|")[0].split("<")[0].split("*")[0].strip(". ") in page


def test_every_session_key_is_on_the_page() -> None:
    for name in (*list_session_keys().options, *list_session_keys().reserved):
        assert f"| `{name}` |" in PAGES["session-options.md"]


def test_every_key_of_the_language_is_on_its_page() -> None:
    document = read_schema("recipe")
    described = [document, *document["$defs"].values()]
    for keys in (set(one.get("properties", {})) for one in described):
        for key in keys:
            assert f"| `{key}` |" in PAGES["recipe.md"]


def test_every_option_of_every_command_is_on_its_page_with_its_exit_codes() -> None:
    sections = re.split(r"^## epbuild ", PAGES["commands.md"], flags=re.MULTILINE)
    pages = {section.partition("\n")[0]: section for section in sections[1:]}
    found = dict(_commands(get_command(app._application), ()))
    assert pages.keys() == found.keys()
    for name, command in found.items():
        spellings = [spelling for parameter in command.params for spelling in (*parameter.opts, *parameter.secondary_opts)]
        for spelling in spellings:
            assert not spelling.startswith("-") or re.search(rf"`{spelling}[ `]", pages[name]), f"{name} {spelling}"
        assert re.findall(r"^\| `(\d+)` \|", pages[name], flags=re.MULTILINE)[0] == "0"


def _commands(group: Any, path: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    for name in group.list_commands(None):
        command = group.get_command(None, name)
        yield " ".join((*path, name)), command
        if hasattr(command, "commands"):
            yield from _commands(command, (*path, name))


def test_the_page_lists_exactly_the_environment_variables_in_use() -> None:
    data = read_variables()
    listed, standard = set(data["epbuild"]), {name for one in data["standard"] for name in one["names"]}
    code = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "epbuild").rglob("*.py"))
    assert set(re.findall(r"\b_?EPBUILD_[A-Z_]+\b", code)) == listed
    assert set(re.findall(r"\benviron(?:\.get\(|\[)\s*\"(\w+)\"", code)) <= listed | standard | _INTERNAL
    assert data["settings"].keys() == _KINDS.keys()
    assert {
        *CACHE_VARIABLES,
        *SETTINGS_VARIABLES,
        *(name for job, (count, _) in _EQUAL_JOBS.items() for name in (job, count)),
    } <= listed | standard
    assert all(name in code or name in _READ_BY_LIBRARIES for name in standard)


def subclasses(kind: Any) -> set[Any]:
    """Return the subclasses of a class, without those that tests define."""
    children = {child for child in kind.__subclasses__() if child.__module__.startswith("epbuild.")}
    return children.union(*map(subclasses, children))


def test_every_document_and_event_is_on_its_page() -> None:
    assert subclasses(Document) <= {document.type for document in DOCUMENTS}
    for event in subclasses(Event) - UNREPORTED:
        assert f"### {format_event_name(event)}\n" in PAGES["json.md"]


@pytest.mark.parametrize("name", sorted(PAGES))
def test_every_table_row_has_the_columns_of_its_header(name: str) -> None:
    widths = [len(re.findall(r"(?<!\\)\|", line)) if line.startswith("|") else 0 for line in PAGES[name].splitlines()]
    for above, width in pairwise(widths):
        assert not (above and width) or above == width


@pytest.mark.parametrize("name", sorted(name for name in PAGES if name.endswith(".md")))
def test_every_link_of_a_page_has_a_target(name: str) -> None:
    anchors = {
        re.sub(r"[^a-z0-9 _-]", "", title.lower()).replace(" ", "-") for title in re.findall(r"^#+ (.*)$", PAGES[name], re.M)
    }
    for target in re.findall(r"\]\((?!https:)([^)]+)\)", PAGES[name]):
        file, _, anchor = target.partition("#")
        assert (FOLDER / file).is_file() if file else anchor in anchors


def test_every_test_on_the_page_of_the_specification_exists() -> None:
    named = set(re.findall(r"`(tests/[^`]*)`", PAGES["specification.md"])) - {"tests/e2e"}
    functions = {
        path: re.findall(r"^def (test_\w+)\(", (ROOT / path).read_text(encoding="utf-8"), flags=re.MULTILINE)
        for path in {name.partition("::")[0] for name in named}
    }
    missing = [name for name in named if name.partition("::")[2] not in functions[name.partition("::")[0]]]
    assert missing == []


def test_every_requirement_of_the_specification_has_a_state_and_tests_to_match() -> None:
    rows = [row for section in read_sections() for row in section["row"]]
    assert {row["state"] for row in rows} <= STATES.keys()
    for row in rows:
        needs_tests = {"met": True, "partly": True, "needs hardware": True, "missing": False, "not used": False}
        assert bool(row.get("tests")) == needs_tests.get(row["state"], bool(row.get("tests"))), row["requirement"]


def test_one_command_updates_the_pages_and_deletes_obsolete_pages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "GoneExecutionProvider.md").write_text("old", encoding="utf-8")
    (tmp_path / "recipe.md").write_text("old", encoding="utf-8")
    monkeypatch.setattr("sys.argv", ["reference", str(tmp_path)])
    assert main() == 1
    stale = capsys.readouterr().err
    assert "GoneExecutionProvider.md" in stale
    assert "recipe.md" in stale
    done = command(tmp_path, "--write")
    assert (done.returncode, done.stderr) == (0, "")
    assert {path.name for path in tmp_path.iterdir()} == PAGES.keys()
    assert main() == 0
