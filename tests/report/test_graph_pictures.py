"""Pictures of a plan: the contents of each format, for all names, with and without colors."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from epbuild.commands.graph import WORST_FIRST, GraphNode, StepGraph
from epbuild.core.errors import EnvironmentFailure, escape_controls
from epbuild.report.graph import STATE_STYLES, convert_to_svg, draw_svg, find_graphviz, format_dot, format_mermaid, format_tree

HOSTILE = (
    '"', 'a"];b["x', "</svg><script>alert(1)</script>", "line\nbreak", "\\N \\G \\l end\\", "&lt;b&gt; &amp; &#60;", "%% comment",
    "end", "1. list", "- list", "`code` **bold**", "a --> b", "#35; #quot;", "{{x}}", "\u202e rtl é漢字", "]]>", "---", ":::new",
    "%%{init: {'theme':'dark'}}%%", "\x00\x1b[31m", "<b>x</b>",
)  # fmt: skip
SVG = "{http://www.w3.org/2000/svg}"


def graph_of(*names: str, grouped: bool = False) -> StepGraph:
    states: dict[str, int] | None = dict[str, int].fromkeys(WORST_FIRST, 2) if grouped else None
    nodes = tuple(
        GraphNode(f"{name}{index}", name, name if index % 2 else "", states or {WORST_FIRST[index % 5]: 1}, (name,), grouped)
        for index, name in enumerate(names)
    )
    edges = tuple((index, index + 1) for index in range(len(names) - 1))
    return StepGraph(names[0], nodes, edges, {"new": len(names)}, "group" if grouped else None)


def texts(svg: str) -> list[str]:
    return ["".join(text.itertext()) for text in ElementTree.fromstring(svg).iter(f"{SVG}text")]


def test_svg_shows_every_name_unchanged_and_runs_no_script() -> None:
    svg = draw_svg(graph_of(*HOSTILE), find_graphviz())
    root = ElementTree.fromstring(svg)
    shown = texts(svg)
    for index, name in enumerate(HOSTILE):
        assert f"{STATE_STYLES[WORST_FIRST[index % 5]].sign} {escape_controls(name)}" in shown
    assert [element.tag for element in root.iter() if element.tag == f"{SVG}script"] == []
    assert len([element for element in root.iter(f"{SVG}g") if element.get("class") == "edge"]) == len(HOSTILE) - 1


def test_a_tree_lists_below_each_step_what_it_needs_and_expands_a_step_once() -> None:
    names = ("compile:g/t/m", "share:g/t", "emit:g/t/directory", "verify:g/t", "prepare:m")
    nodes = tuple(GraphNode(name, name, "", {"new": 1}) for name in names)
    edges = ((4, 0), (0, 1), (1, 2), (1, 3))
    assert format_tree(StepGraph("epbuild.yaml", nodes, edges, {"new": 5})).splitlines() == [
        "epbuild.yaml: 5 steps",
        "+ 5 new",
        "+ emit:g/t/directory",
        "└─ + share:g/t",
        "   └─ + compile:g/t/m",
        "      └─ + prepare:m",
        "+ verify:g/t",
        "└─ + share:g/t  (above)",
    ]


def test_a_tree_shows_hostile_names_escaped_on_one_line_each() -> None:
    lines = format_tree(graph_of(*HOSTILE, grouped=True)).splitlines()
    assert len(lines) == len(HOSTILE) + 3
    assert all(escape_controls(line) == line for line in lines)


def test_mermaid_contains_no_unescaped_syntax_from_names() -> None:
    """Check the escapes. Mermaid's own parser has read this text, and shown each name unchanged."""
    for line in format_mermaid(graph_of(*HOSTILE)).splitlines():
        for quoted in re.findall(r'"([^"]*)"', line):
            assert re.fullmatch(r"(?:[A-Za-z0-9 .,:/()✗△↻✓_-]|<br>|#\d+;|\\U[0-9a-f]{8})*", quoted)
        assert re.fullmatch(
            r'---|title: "[^"]*"|flowchart LR| +(n\d+\["[^"]*"\]:::\w+|subgraph b\d+\["[^"]*"\]|direction LR|end|n\d+ --> n\d+'
            r"|classDef \w+ [#\w:,. -]+)",
            line,
        )


def test_states_are_recognizable_without_colors() -> None:
    signs = [look.sign for look in STATE_STYLES.values()]
    assert len(set(signs)) == len(STATE_STYLES) == len(WORST_FIRST)
    assert [line.split()[0] for line in texts(draw_svg(graph_of(*"abcde"), find_graphviz())) if line[-1] in "abcde"[1:]]


def test_dark_pages_have_their_own_colors_and_readable_text() -> None:
    svg = draw_svg(graph_of("a", "b"), find_graphviz())
    assert "prefers-color-scheme:dark" in svg
    for look in STATE_STYLES.values():
        assert _contrast(look.light[0], "#1f2328") > 7
        assert _contrast(look.dark[0], "#f0f3f6") > 7


def test_a_grouped_node_shows_the_number_of_steps_in_each_state() -> None:
    graph = graph_of("one", "two", grouped=True)
    counts = "✗ 2 failed, △ 2 out of date, + 2 new, ↻ 2 restorable, ✓ 2 current"
    shown = texts(draw_svg(graph, find_graphviz()))
    assert "grouped by group: 2 nodes. Name steps to see them one by one." in shown
    assert shown.count(counts) == 2
    assert "grouped by group: 2 nodes" in format_mermaid(graph)
    assert "grouped by group: 2 nodes" in format_dot(graph)


def test_a_missing_program_is_an_error_with_the_package_to_install() -> None:
    with pytest.raises(EnvironmentFailure) as raised:
        convert_to_svg("digraph {}", None)
    (problem,) = raised.value.problems
    assert problem.code == "EPB445"
    assert "pip install 'epbuild[graph]'" in problem.text


@pytest.mark.skipif("sys.platform == 'win32'", reason="a script stands in for the program")
@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("echo 'out of ideas' >&2; exit 3", "out of ideas"),
        ("exit 0", "the program exited with status 0 and wrote no SVG"),
        ("kill -9 $$", "the program exited with status -9"),
    ],
)
def test_the_message_of_a_failed_program_is_quoted(script: str, words: str, tmp_path: Path) -> None:
    program = tmp_path / "dot"
    program.write_text(f"#!/bin/sh\ncat > /dev/null\n{script}\n", encoding="utf-8")
    program.chmod(0o755)
    with pytest.raises(EnvironmentFailure, match=words) as raised:
        convert_to_svg("digraph {}", str(program))
    assert raised.value.problems[0].code == "EPB446"


def _contrast(one: str, other: str) -> float:
    """Return the contrast of two colors by WCAG 2."""
    low, high = sorted(map(_luminance, (one, other)))
    return (high + 0.05) / (low + 0.05)


def _luminance(color: str) -> float:
    parts = (int(color[at : at + 2], 16) / 255 for at in (1, 3, 5))
    red, green, blue = (part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
