"""Excerpt of a problem: the line with the exact word underlined, for any content and any terminal."""

from __future__ import annotations

import io
import os
import re
import sys
import unicodedata
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from epbuild.core.errors import Position, Problem, StepId
from epbuild.report.terminal.problems import format_excerpt, print_errors, print_problems
from tests.report.events import Terminal

GUTTER = len("   12 | ")


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR", "GITHUB_ACTIONS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.chdir(tmp_path)


def told(monkeypatch: pytest.MonkeyPatch, *problems: Problem, stream: io.StringIO | None = None) -> list[str]:
    """Return the lines on standard error."""
    stream = stream or io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    print_problems(problems)
    return stream.getvalue().split("\n")[:-1]


def problem(line: int, column: int, file: str = "epbuild.yaml") -> Problem:
    return Problem("EPB211", "QNN has no option 'soc_modell'", Position(file, line, column), "Did you mean 'soc_model'?")


def columns(text: str) -> int:
    """Return the number of terminal columns of a text."""
    return sum(0 if unicodedata.category(c) in {"Mn", "Me"} else 1 + (unicodedata.east_asian_width(c) in "WF") for c in text)


def test_the_offending_line_is_shown_with_the_word_underlined(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "epbuild.yaml").write_text("targets:\n      soc_modell: SM8750  # a phone\n", encoding="utf-8")
    assert told(monkeypatch, problem(2, 7)) == [
        "epbuild.yaml:2:7: error: QNN has no option 'soc_modell'. Did you mean 'soc_model'? [EPB211]",
        "    2 |       soc_modell: SM8750  # a phone",
        "      |       ^^^^^^^^^^",
    ]


# ‸ marks the position of the problem. The expected underlined text follows the line.
@pytest.mark.parametrize(
    ("line", "underlined"),
    [
        ("‸name: tiny", "name"),
        ("name: ‸tiny llm  # small", "tiny llm"),
        ("url: ‸http://host:80/a#b", "http://host:80/a#b"),
        ('‸"a key": 1', '"a key"'),
        (r'name: ‸"a \" b" # c', r'"a \" b"'),
        ("name: ‸'it''s' # c", "'it''s'"),
        ("name: ‸'never ends", "'never ends"),
        ("models: [‸a, b]", "a"),
        ("models: [a, ‸b]", "b"),
        ("models: ‸[a, [b, c]]  # d", "[a, [b, c]]"),
        ("models: ‸[a,", "[a,"),
        ('{"a":{"b":‸1,"c":2}}', "1"),
        ("x: {soc_model: ‸SM8750}", "SM8750"),
        ("soc_model: ‸60,69", "60,69"),
        ("  a, ‸b,", "b"),
        ("path: ‸dist/${group}/${target}", "dist/${group}/${target}"),
        ("path: dist/‸${grup}/${target}", "${grup}"),
        ('path: "dist/‸${grup}/x"', "${grup}"),
        ("soc: ‸${matrix.soc}", "${matrix.soc}"),
        ("x: {soc: ‸${matrix.soc}, y: 1}", "${matrix.soc}"),
        ("‸<<: *base", "<<"),
        ("key:‸", None),
        ("key: ‸  # empty", None),
    ],
)
def test_exactly_the_invalid_word_is_underlined(line: str, underlined: str | None) -> None:
    column = line.index("‸")
    line = line.replace("‸", "")
    _, shown, carets = format_excerpt(line, Position("x", 1, column + 1))
    assert shown == line
    assert carets == " " * column + "^" * len(underlined or "^")
    assert underlined is None or line[column:].startswith(underlined)


@pytest.mark.parametrize(
    ("before", "word"),
    [
        ("\t\t", "x"),
        ("名前: ", "値段"),
        ("a\u0308: ", "u\u0308ber"),
        ("\U0001f600 ", "b"),
        ("\x1b[31m\u202e ", "b"),
        ("- ", "a\tb"),
    ],
    ids=["tabs", "wide", "combining", "emoji", "controls", "tab inside"],
)
def test_the_underline_is_below_the_word_after_any_prefix(before: str, word: str) -> None:
    _, shown, carets = format_excerpt(f"{before}{word}", Position("x", 1, len(before) + 1))
    here = len(carets) - len(carets.lstrip())
    assert columns(shown) == here + carets.count("^")
    assert columns(shown[shown.index(word[0], len(before) - 1) :] if "\t" not in word else "a    b") == carets.count("^")


@pytest.mark.parametrize("text", ["\x1b]0;title\x07", "\x1b[2J", "\u202egnp.exe", "\x9b31m"])
def test_an_excerpt_cannot_control_the_terminal(text: str) -> None:
    _, shown, _ = format_excerpt(text, Position("x", 1, 1))
    assert shown.isprintable()


@given(
    st.text(st.characters(exclude_characters="\r\n\x85\u2028\u2029"), max_size=400), st.integers(1, 500), st.integers(1, 10**5)
)
@example("0" * 72, 73, 1)
def test_any_line_fits_80_columns_with_the_underline_visible(line: str, column: int, number: int) -> None:
    gutter, shown, carets = format_excerpt(line, Position("x", number, column))
    assert gutter.strip() == str(number)
    assert len(gutter) + 3 + columns(shown) <= 80
    assert len(gutter) + 3 + len(carets) <= 80
    assert set(carets.lstrip()) == {"^"}
    assert shown.isprintable()


@given(st.integers(0, 300), st.integers(0, 300))
@example(61, 0)  # the word just fits, and the rest does not
def test_the_word_in_a_long_line_is_shown_with_its_context(left: int, right: int) -> None:
    line = f"{'a' * left} WRONG {'b' * right}"
    _, shown, carets = format_excerpt(f"k: [{line}]".replace(" WRONG ", ", WRONG, "), Position("x", 1, len("k: [") + left + 3))
    here = carets.index("^")
    assert shown[here : here + len("WRONG")] == "WRONG"
    assert carets.count("^") == len("WRONG")
    assert ("…" in shown) == (len(shown) < len(line) + 7)


def test_the_underline_is_correct_on_an_ascii_terminal(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class Ascii(io.StringIO):
        encoding = "ascii"

    (tmp_path / "epbuild.yaml").write_text(f"name: größe, und {'x' * 99}\n", encoding="utf-8")
    lines = told(monkeypatch, problem(1, 14), stream=Ascii())
    assert "".join(lines).isascii()
    assert lines[1].index("und") == lines[2].index("^")
    assert lines[1].endswith("...")


@pytest.mark.parametrize(
    ("make", "line", "column"),
    [
        (lambda path: None, 1, 1),
        (lambda path: path.mkdir(), 1, 1),
        (lambda path: path.write_text("one line"), 2, 1),
        (lambda path: path.write_text("one line"), 0, 0),
    ],
    ids=["missing", "a folder", "shorter by now", "nowhere"],
)
def test_a_file_that_cannot_be_shown_omits_only_the_excerpt(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, make: object, line: int, column: int
) -> None:
    assert callable(make)
    make(tmp_path / "epbuild.yaml")
    assert len(told(monkeypatch, problem(line, column))) == 1


@pytest.mark.skipif(os.name == "nt", reason="Windows has no named pipes among its files")
def test_a_message_about_a_pipe_does_not_wait_for_data(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    if sys.platform != "win32":
        os.mkfifo(tmp_path / "epbuild.yaml")
    assert len(told(monkeypatch, problem(1, 1))) == 1


@pytest.mark.parametrize(
    "content",
    [b"\xef\xbb\xbfname: x\r\nkey: 1\r\n", b"name: x\rkey: 1\r", b"name: x\n\tkey: 1\n", b"name: \xff\nkey: 1"],
    ids=["bom and crlf", "cr", "tab", "not utf-8"],
)
def test_excerpt_and_position_count_lines_alike(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "epbuild.yaml").write_bytes(content)
    column = 2 if b"\t" in content else 1
    _, line, carets = told(monkeypatch, problem(2, column))
    assert line.endswith("key: 1")
    assert line.index("key") == carets.index("^^^")


def test_problems_are_sorted_by_position(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = told(monkeypatch, problem(10, 1), problem(2, 9), problem(2, 3), Problem("EPB501", "lost"))
    assert [line.split(" error")[0] for line in lines] == [
        "epbuild:",
        "epbuild.yaml:2:3:",
        "epbuild.yaml:2:9:",
        "epbuild.yaml:10:1:",
    ]


def test_each_file_of_a_recipe_shows_its_own_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("a.yaml", "b.yaml"):
        (tmp_path / name).write_text(f"from: {name}\n", encoding="utf-8")
    lines = told(monkeypatch, problem(1, 7, "a.yaml"), problem(1, 7, "b.yaml"))
    assert [line[GUTTER:] for line in lines[1::3]] == ["from: a.yaml", "from: b.yaml"]


@pytest.mark.parametrize(
    ("stream", "environment", "has_colors"),
    [
        (Terminal, {}, True),
        (Terminal, {"NO_COLOR": "1"}, False),
        (Terminal, {"NO_COLOR": ""}, True),
        (Terminal, {"TERM": "dumb"}, False),
        (Terminal, {"FORCE_COLOR": "1", "NO_COLOR": "1"}, False),
        (io.StringIO, {}, False),
        (io.StringIO, {"FORCE_COLOR": "1"}, True),
        (io.StringIO, {"FORCE_COLOR": "1", "TERM": "dumb"}, True),
        (io.StringIO, {"FORCE_COLOR": ""}, False),
        (io.StringIO, {"FORCE_COLOR": "1", "NO_COLOR": "1"}, False),
    ],
)
def test_the_excerpt_is_colored_only_on_terminals_that_support_colors(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, stream: type[io.StringIO], environment: dict[str, str], has_colors: bool
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "epbuild.yaml").write_text("name: x\n", encoding="utf-8")
    first, *_, shown, carets = told(monkeypatch, problem(1, 1), stream=stream())
    assert ["\x1b[" in line for line in (first, shown, carets)] == [has_colors] * 3


@pytest.mark.parametrize("width", [80, 120])
def test_a_problem_breaks_only_between_words_on_a_terminal(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    for name, value in (("COLUMNS", str(width)), ("TERM", "xterm"), ("NO_COLOR", "1")):
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "stdout", Terminal())
    long = Problem("EPB211", "one word after another " * 12, StepId("compile:a/b/c"))
    (line,) = told(monkeypatch, long)
    lines = told(monkeypatch, long, stream=Terminal())
    assert max(map(len, lines)) in range(width - 10, width + 1)
    assert " ".join(" ".join(lines).split()) == " ".join(line.split())


def test_under_github_actions_a_problem_is_one_annotation_above_its_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.delenv("GITHUB_WORKSPACE", raising=False)
    (tmp_path / "epbuild.yaml").write_text("name: x\n", encoding="utf-8")
    lines = told(monkeypatch, problem(1, 1))
    text = "QNN has no option 'soc_modell'. Did you mean 'soc_model'? [EPB211]"
    assert lines[0] == f"::error file=epbuild.yaml,line=1,col=1::{text}"
    assert lines[1:] == ["    1 | name: x", "      | ^^^^"]


@pytest.mark.parametrize(
    ("file", "annotated"),
    [("epbuild.yaml", "a, b/epbuild.yaml"), ("../x.yaml", "x.yaml"), ("../../outside.yaml", "../../outside.yaml")],
)
def test_an_annotation_names_its_file_by_its_path_in_the_repository(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, file: str, annotated: str
) -> None:
    folder = tmp_path / "repository" / "a, b"
    folder.mkdir(parents=True)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_WORKSPACE", str(tmp_path / "repository"))
    [line] = told(monkeypatch, problem(3, 7, file))
    assert line.startswith(f"::error file={annotated.replace(',', '%2C')},line=3,col=7::QNN")
    [line] = told(monkeypatch, Problem("EPB111", "it cannot be read", Path(file)))
    assert line == f"::error file={annotated.replace(',', '%2C')}::it cannot be read. [EPB111]"


def test_names_in_a_model_cannot_control_a_terminal_or_a_workflow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check this because the model's author chooses the name of an external data file."""
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    message = "the model 'm' needs the external data file w\n::add-mask::a\r\x1b[2J.bin"
    lines = told(monkeypatch, Problem("EPB203", message, StepId("compile:g/t/m")))
    shown = r"the model 'm' needs the external data file w\n::add-mask::a\r\x1b[2J.bin. [EPB203]"
    escaped = r"the model 'm' needs the external data file w%0A::add-mask::a%0D\x1b[2J.bin. [EPB203]"
    assert lines == [f"::error title=compile%3Ag/t/m::{escaped}"]
    monkeypatch.delenv("GITHUB_ACTIONS")
    lines = told(monkeypatch, Problem("EPB203", message, StepId("compile:g/t/m")))
    assert lines == [f"compile:g/t/m: error: {shown}"]


@pytest.mark.parametrize(
    ("problems", "text"),
    [
        ([problem(1, 1)], "1 error\n"),
        ([problem(1, 1), problem(2, 1), Problem("EPB501", "lost")], "3 errors\n"),
        ([Problem("EPB501", "lost")], ""),
        ([], ""),
    ],
)
def test_a_list_of_errors_ends_with_their_number(capsys: pytest.CaptureFixture[str], problems: list[Problem], text: str) -> None:
    print_errors(problems)
    written = capsys.readouterr()
    assert written.out == ""
    assert "".join(re.findall(r"^\d+ errors?\n\Z", written.err, re.MULTILINE)) == text
