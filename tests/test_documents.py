"""What the documents say is so: a reader can copy from them, and look every code up."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from epbuild.catalog.catalog import known_eps

ROOT = Path(__file__).parents[1]


def _text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def test_the_readme_shows_the_quickstart_as_it_is() -> None:
    assert f"```yaml\n{_text('recipes/quickstart.yaml')}```" in _text("README.md")


def test_every_error_code_is_explained_and_no_other() -> None:
    raised = {
        code
        for path in (ROOT / "epbuild").rglob("*.py")
        for code in re.findall(r'"(EPB\d{3})"', path.read_text(encoding="utf-8"))
    }
    explained = re.findall(r"^\| (EPB\d{3}) \|", _text("docs/errors.md"), re.MULTILINE)
    assert sorted(explained) == sorted(raised)


def test_every_link_of_the_documents_leads_somewhere() -> None:
    for document in (*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")):
        for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", document.read_text(encoding="utf-8")):
            assert (document.parent / target).exists(), f"{document.name}: {target}"


@pytest.mark.parametrize("ep", known_eps())
def test_every_ep_has_a_page_of_what_was_seen_of_it(ep: str) -> None:
    pages = [
        path for path in (ROOT / "docs" / "eps").glob("*.md") if f"(../reference/{ep}.md)" in path.read_text(encoding="utf-8")
    ]
    assert len(pages) == 1
    assert f"]({pages[0].name})" in _text("docs/eps/index.md")
