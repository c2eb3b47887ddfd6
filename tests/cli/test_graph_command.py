"""`epbuild graph`: the destination of each format, and the behavior without Graphviz."""

from __future__ import annotations

import os
from pathlib import Path
from xml.etree import ElementTree

import pytest

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


def test_the_ending_of_the_file_is_the_format_(folder: Path) -> None:
    for name, begins in (("plan.mmd", "---"), ("plan.dot", "digraph"), ("plan.svg", "<?xml")):
        done = epbuild(folder, "graph", "-o", name)
        assert (done.returncode, done.stdout) == (0, ""), done.stderr
        assert (folder / name).read_text(encoding="utf-8").startswith(begins)
    assert ElementTree.parse(folder / "plan.svg").getroot().tag == "{http://www.w3.org/2000/svg}svg"


def test_steps_are_those_that_are_named(folder: Path) -> None:
    done = epbuild(folder, "graph", "compile:*", "--format", "mermaid")
    assert 'title: "epbuild.yaml: 1 step' in done.stdout
    assert epbuild(folder, "graph", "nothing:*").returncode == 2


def test_a_file_that_cannot_be_written_is_one_sentence(folder: Path) -> None:
    done = epbuild(folder, "graph", "--format", "dot", "-o", os.path.join("relu.onnx", "plan.dot"))  # noqa: PTH118
    assert done.returncode == 3
    assert "Traceback" not in done.stderr
    assert "EPB443" in done.stderr


def test_a_file_that_is_no_picture_is_left_alone(folder: Path) -> None:
    done = epbuild(folder, "graph", "-o", "epbuild.yaml")
    assert done.returncode == 2
    assert "does not end in any of .svg" in done.stderr
    assert (folder / "epbuild.yaml").read_text(encoding="utf-8") == RECIPE


def test_a_folder_is_refused_as_the_file(folder: Path) -> None:
    done = epbuild(folder, "graph", "-o", ".")
    assert done.returncode == 2
    assert "is a directory" in done.stderr
