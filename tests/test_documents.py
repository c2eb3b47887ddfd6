"""Documentation: readers can copy its commands, and look up every code."""

from __future__ import annotations

import re
from pathlib import Path
from shutil import copytree

import pytest

from epbuild.catalog.catalog import known_eps
from epbuild.report.ci.sarif import read_error_codes
from tests.support.commands import epbuild
from tests.support.console_blocks import missing

ROOT = Path(__file__).parents[1]


def _text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def test_the_recipe_of_the_readme_is_valid(tmp_path: Path) -> None:
    shown = re.findall(r"```yaml\n(.*?)```", _text("README.md"), re.DOTALL)
    assert len(shown) == 1
    copytree(ROOT / "recipes" / "models", tmp_path / "models")
    (tmp_path / "epbuild.yaml").write_text(shown[0], encoding="utf-8")
    assert epbuild(tmp_path, "validate").returncode == 0


def test_the_list_of_recipes_is_complete() -> None:
    listed = re.findall(r"\[`([a-z-]+\.yaml)`\]\(\1\)", _text("recipes/README.md"))
    assert sorted(listed) == sorted(path.name for path in (ROOT / "recipes").glob("*.yaml"))


def test_exactly_the_raised_error_codes_are_explained() -> None:
    raised = {
        code
        for path in (ROOT / "epbuild").rglob("*.py")
        for code in re.findall(r'"(EPB\d{3})"', path.read_text(encoding="utf-8"))
    }
    assert read_error_codes().keys() == raised


def test_every_error_code_has_an_example_of_its_message() -> None:
    for code, found in read_error_codes().items():
        assert found.example.endswith(f" [{code}]")
        assert found.meaning.endswith(".")
        assert found.action.endswith(".")


def test_every_link_of_the_documents_has_a_target() -> None:
    for document in (*ROOT.glob("*.md"), ROOT / "recipes" / "README.md", *(ROOT / "docs").rglob("*.md")):
        for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", document.read_text(encoding="utf-8")):
            assert (document.parent / target).exists(), f"{document.name}: {target}"


def test_every_page_ends_with_a_newline() -> None:
    assert [page.name for page in (ROOT / "docs").rglob("*.md") if not page.read_bytes().endswith(b"\n")] == []


@pytest.mark.parametrize("ep", known_eps())
def test_every_ep_has_a_section_with_its_observed_behavior(ep: str) -> None:
    sections = _text("docs/guides/execution-providers.md").split("\n## ")
    assert len([section for section in sections if f"(../reference/{ep}.md)" in section]) == 1


REAL = """\
3 of 3 steps to do
[1/3] built      0.2 s  compile:a  1 kB
[2/3] built      0.4 s  compile:b  1 kB

Time: 9 s
a  1 s

2 built (0.71 s)
"""


@pytest.mark.parametrize(
    ("shown", "same"),
    [
        (REAL, True),
        (REAL.replace("0.2 s", "7.9 s").replace("a  1 s", "b  2 s"), True),  # times
        (
            "3 of 3 steps to do\n[1/3] built 1 s compile:b 1 kB\n[2/3] built 1 s compile:a 1 kB\n2 built (1 s)",
            True,
        ),  # their order
        ("...\n2 built (1 s)", True),
        ("3 of 3 steps\n   to do\n...", True),  # where lines are wrapped
        ("3 of […] to do\n[1/3] built 1 s compile:a 1 kB\n...", True),
        ("3 of 3 steps to do\n[1/3] built 1 s compile:a 1 kB\n2 built (1 s)", False),  # a step that is not shown
        ("...\n[1/3] built 1 s compile:c 1 kB\n...", False),
        (REAL.replace("1 kB", "2 kB"), False),
        (REAL.replace("2 built", "3 built"), False),
        ("2 built (1 s)\n...\n3 of 3 steps to do", False),
        (REAL.replace("2 built (0.71 s)\n", ""), False),
    ],
)
def test_documented_output_is_compared_with_real_output(shown: str, same: bool) -> None:
    assert (missing(shown.splitlines(), REAL) == []) is same
