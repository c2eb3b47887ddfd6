"""`epbuild graph`: the destination of each format, and the behavior without Graphviz."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from epbuild.cli.app import execute
from tests.support.commands import RECIPE, epbuild, write_model

pytestmark = pytest.mark.slow


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "epbuild.yaml").write_text(RECIPE, encoding="utf-8")
    write_model(tmp_path / "relu.onnx")
    return tmp_path


def test_mermaid_and_dot_go_to_standard_output(folder: Path) -> None:
    mermaid = epbuild(folder, "graph", "--format", "mermaid")
    assert mermaid.returncode == 0, mermaid.stderr
    assert mermaid.stdout.splitlines() == [
        "---",
        'title: "epbuild.yaml: 2 steps. \\U0000002b 2 new"',
        "---",
        "flowchart LR",
        '  subgraph b0["main / phone"]',
        "    direction LR",
        '    n0["#43; compile relu"]:::new',
        '    n1["#43; emit directory"]:::new',
        "  end",
        "  n0 --> n1",
        "  classDef new fill:#f1e5fd,stroke:#7a46c9,color:#1f2328,stroke-width:1px",
    ]
    dot = epbuild(folder, "graph", "--format", "dot")
    assert '"compile:main/phone/relu" -> "emit:main/phone/directory";' in dot.stdout


def test_a_terminal_gets_a_tree(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert execute(["graph"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "epbuild.yaml: 2 steps",
        "+ 2 new",
        "+ emit:main/phone/directory",
        "└─ + compile:main/phone/relu",
    ]


def test_the_file_suffix_determines_the_format(folder: Path) -> None:
    for name, begins in (("plan.mmd", "---"), ("plan.dot", "digraph"), ("plan.svg", "<?xml")):
        done = epbuild(folder, "graph", "-o", name)
        assert (done.returncode, done.stdout) == (0, ""), done.stderr
        assert (folder / name).read_text(encoding="utf-8").startswith(begins)
    assert ElementTree.parse(folder / "plan.svg").getroot().tag == "{http://www.w3.org/2000/svg}svg"


def test_the_graph_contains_only_selected_steps(folder: Path) -> None:
    done = epbuild(folder, "graph", "compile:*", "--format", "mermaid")
    assert 'title: "epbuild.yaml: 1 step' in done.stdout
    assert epbuild(folder, "graph", "nothing:*").returncode == 2


def test_an_unwritable_file_is_an_error_without_a_traceback(folder: Path) -> None:
    done = epbuild(folder, "graph", "--format", "dot", "-o", os.path.join("relu.onnx", "plan.dot"))  # noqa: PTH118
    assert done.returncode == 3
    assert "Traceback" not in done.stderr
    assert "EPB443" in done.stderr


def test_an_output_file_with_another_suffix_is_refused(folder: Path) -> None:
    done = epbuild(folder, "graph", "-o", "epbuild.yaml")
    assert done.returncode == 2
    assert "implies no format: end it in .svg" in done.stderr
    assert (folder / "epbuild.yaml").read_text(encoding="utf-8") == RECIPE


def test_a_folder_is_refused_as_the_output_file(folder: Path) -> None:
    done = epbuild(folder, "graph", "-o", ".")
    assert done.returncode == 2
    assert "is a directory" in done.stderr
