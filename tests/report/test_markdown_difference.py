"""`epbuild diff --markdown` as GitHub shows it: by GitHub's own parser, names in artifacts are text and never markup."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import Any

import cmarkgfm
import pytest
from cmarkgfm.cmark import Options

from epbuild.core.errors import escape_controls
from epbuild.diff.difference import Comparison, Difference
from epbuild.diff.sizes import PartChange, SizeChange
from epbuild.report.formatting import format_code
from epbuild.report.markdown import MAX_CHARACTERS, format_markdown

QNN = "QNNExecutionProvider"
OLD, NEW = "a" * 64, "b" * 64
PLACES = ("decoder/x1/", "decoder/x2/", "decoder/x3/", "decoder/x4/", "decoder/x5/")
HOSTILE = (
    "a|b",
    "|",
    "a\\|b",
    "ends with \\",
    "`x`",
    "```",
    "<img src=x onerror=alert(1)>",
    "</code></td><b>bold</b>",
    "<!-- hidden",
    "**bold** _it_ ~~gone~~",
    "[text](javascript:alert(1))",
    "![](https://x.example/y.png)",
    "https://x.example/y",
    "www.x.example",
    "somebody@x.example",
    "@octocat #1 octo/cat#2",
    "&lt;b&gt; &amp; &#64;",
    " leading",
    "two\nlines\r\n| a | b |",
    "a\x1b[2J\u202eb",
    "größe → 名前",
    "</details>",
    "$x$",
)


class Page(HTMLParser):
    """Content for readers: elements, table cells, and texts shown as code."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.codes: list[str] = []
        self.rows: list[list[str]] = []
        self._within: list[str] = []
        self.feed(cmarkgfm.github_flavored_markdown_to_html(text, options=Options.CMARK_OPT_UNSAFE))
        self.close()

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append(tag)
        self._within.append(tag)
        if tag == "code":
            self.codes.append("")
        elif tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        self._within.remove(tag)

    def handle_data(self, data: str) -> None:
        if "code" in self._within:
            self.codes[-1] += data
        if {"td", "th"} & set(self._within):
            self.rows[-1][-1] += data

    def handle_comment(self, data: str) -> None:
        self.tags.append("comment")


def package(version: str, artifact: str = "") -> Difference:
    return Difference("toolchain", "changed", ("distributions", "onnxruntime-qnn"), "2.7.0", version, artifact)


def option(value: str | None, name: str = "soc_model", artifact: str = "") -> Difference:
    kind = "changed" if value else "removed"
    return Difference("target", kind, ("eps", QNN, "options", name), "SC8380XP", value, artifact)  # type: ignore[arg-type]


ONE = Comparison(
    (
        Difference("weights", "changed", ("models", "prefill", "source data", "weights.bin"), OLD, NEW),
        option("SM8750"),
        Difference("target", "added", ("eps", QNN, "options", "vtcm_mb"), None, "8"),
        Difference("settings", "changed", ("session_options", "ep.context_embed_mode"), "0", "1"),
        Difference("settings", "changed", ("share_weights",), False, True),
        package("2.8.0"),
        Difference("context", "changed", ("models", "prefill", "nodes", "0", "context"), OLD, NEW),
        Difference("names", "changed", ("target",), "one", ""),
    ),
    models=2,
    sizes=(
        SizeChange("model", "decode", 1300, 1300),
        SizeChange("model", "prefill", 1300, 1300),
        SizeChange("context binary", "llm.bin -> new.bin", 750_000, 900_000, parts=(PartChange("graph", "a|b", 1, 2),)),
        SizeChange("external data", "w.bin", None, 4000),
        SizeChange("external data", "v.bin", 1000, None),
    ),
)


def test_the_headline_is_a_sentence_and_each_subject_has_its_table() -> None:
    assert (
        format_markdown("old", "new", ONE)
        == """\
**The artifacts differ in weights, target, settings, toolchain, context and names.**

`old` &rarr; `new`: 753.6 kB &rarr; 906.6 kB (+153.0 kB, +20.3%).

#### Models

| model | before | after | change | differs in |
| --- | --: | --: | --: | --- |
| `prefill` | 1.3 kB | 1.3 kB | same size | weights, context |

1 more without differences.

#### Context binaries

| context binary | before | after | change |
| --- | --: | --: | --: |
| `llm.bin -> new.bin` | 750.0 kB | 900.0 kB | +150.0 kB, +20.0% |

#### External data

| external data | before | after | change |
| --- | --: | --: | --: |
| `w.bin` | - | 4.0 kB | new |
| `v.bin` | 1.0 kB | - | removed |

<details><summary>Size by part (1)</summary>

| file | part | before | after | change |
| --- | --- | --: | --: | --: |
| `llm.bin -> new.bin` | graph <code>a&#124;b</code> | 1 byte | 2 bytes | +1 byte, +100.0% |

</details>

#### Graph and weights

|  | before | after |
| --- | --- | --- |
| `prefill: source data weights.bin` | `aaaaaaaa` | `bbbbbbbb` |

#### Options

|  | before | after |
| --- | --- | --- |
| `QNNExecutionProvider: option soc_model` | `SC8380XP` | `SM8750` |
| `QNNExecutionProvider: option vtcm_mb` | - | `8` |
| `session key ep.context_embed_mode` | `0` | `1` |

#### Settings

|  | before | after |
| --- | --- | --- |
| `share weights` | `false` | `true` |

#### Toolchain

|  | before | after |
| --- | --- | --- |
| `package onnxruntime-qnn` | `2.7.0` | `2.8.0` |

<details><summary>Contexts (1)</summary>

|  | before | after |
| --- | --- | --- |
| `prefill: context` | `aaaaaaaa` | `bbbbbbbb` |

</details>

<details><summary>Names (1)</summary>

|  | before | after |
| --- | --- | --- |
| `name of the target` | `one` | (empty) |

</details>

Identical: graph.
"""
    )


def test_github_shows_it_as_headings_tables_and_folds() -> None:
    page = Page(format_markdown("old", "new", ONE))
    assert page.tags.count("table") == 10
    assert page.tags.count("details") == page.tags.count("summary") == 3
    assert ["package onnxruntime-qnn", "2.7.0", "2.8.0"] in page.rows


def test_no_difference_is_one_line_even_with_skipped_comparisons() -> None:
    assert format_markdown("old", "new", Comparison((), 4)) == "**No difference: 4 models, identical byte for byte.**\n"
    text = format_markdown("old", "new", Comparison((), 4, ("A", "B")))
    assert text.count("\n") == 1
    assert text.endswith(
        "Not compared, because `old` and `new` have no manifests: the options, the toolchain and the source models.\n"
    )


def test_skipped_comparisons_are_listed_beside_the_differences() -> None:
    text = format_markdown("old", "new", Comparison((option("SM8750"),), 1, ("B",)))
    assert text.endswith("\n\nNot compared, because `new` has no manifest: the options, the toolchain and the source models.\n")


@pytest.mark.parametrize(
    ("found", "headline"),
    [
        (Comparison((Difference("names", "changed", ("group",), "a", "b"),), 1), "**The artifacts differ only in names.**"),
        (
            Comparison(
                (Difference("context", "changed", ("models", "m", "nodes", "0", "context"), OLD, NEW),), 1, explained=False
            ),
            "**The contexts differ although all inputs and settings are equal.**",
        ),
    ],
)
def test_the_headline_names_the_differing_subjects(found: Comparison, headline: str) -> None:
    assert format_markdown("old", "new", found).splitlines()[0] == headline


def test_equal_differences_of_several_outputs_are_listed_once() -> None:
    found = Comparison(
        (
            *(package("2.8.0", place) for place in PLACES),
            *(option("SM8750", artifact=place) for place in PLACES[:2]),
            *(option(None, "vtcm_mb", place) for place in PLACES[:4]),
        ),
        models=5,
        artifacts=PLACES,
    )
    page = Page(format_markdown("old", "new", found))
    assert [row[1:] for row in page.rows if row[0]] == [
        ["SC8380XP", "SM8750", "decoder/x1, decoder/x2"],
        ["SC8380XP", "-", "decoder/x1, decoder/x2, decoder/x3 and 1 more"],
        ["2.7.0", "2.8.0", "all 5"],
    ]


def test_outputs_of_only_one_side_are_listed_with_their_models() -> None:
    found = Comparison(
        (
            Difference("graph", "removed", ("artifact",), "m_ctx.onnx", None, "gone/"),
            Difference("graph", "added", ("artifact",), None, "m_ctx.onnx, n_ctx.onnx", "here/"),
            Difference("graph", "removed", ("models", "n"), "n.onnx", None, PLACES[0]),
        ),
        models=5,
        sizes=(SizeChange("model", "n", 5, None, PLACES[0]), SizeChange("model", "m", 7, None, "gone/")),
        artifacts=PLACES,
    )
    text = format_markdown("old", "new", found)
    assert "Of 5 outputs on both sides, 1 differs, 1 new, 1 removed." in text
    rows = Page(text).rows
    assert ["gone", "m_ctx.onnx", "removed"] in rows
    assert ["here", "m_ctx.onnx, n_ctx.onnx", "new"] in rows
    assert ["decoder/x1", "n", "5 bytes", "-", "removed", ""] in rows


def test_unchanged_outputs_beside_a_new_output_are_counted() -> None:
    found = Comparison((Difference("graph", "added", ("artifact",), None, "m_ctx.onnx", "here/"),), models=5, artifacts=PLACES)
    assert "Of 5 outputs on both sides, 0 differ, 1 new." in format_markdown("old", "new", found)


@pytest.mark.parametrize("text", HOSTILE)
def test_names_are_always_text_and_never_markup(text: str) -> None:
    place = f"{text}/"
    found = Comparison(
        (
            Difference("names", "changed", ("graph name",), text, "x", place),
            Difference("toolchain", "added", ("distributions", text), None, text, place),
            Difference("graph", "changed", ("models", text, "inputs", text), text, text, place),
            Difference("graph", "added", ("artifact",), None, text, f"{text}2"),
        ),
        models=2,
        without_manifest=("A",),
        sizes=(SizeChange("model", text, 1, 2, place), SizeChange("context binary", text, 1, None, place)),
        artifacts=(place, "other/"),
    )
    plain = Page(
        format_markdown("old", "new", Comparison(found.differences, 2, ("A",), sizes=found.sizes, artifacts=found.artifacts))
    )
    page = Page(format_markdown(text, text, found))
    harmless = {"p", "strong", "code", "table", "thead", "tbody", "tr", "th", "td", "h4", "details", "summary"}
    assert set(page.tags) <= harmless
    assert page.tags.count("details") == 1
    assert [len(row) for row in page.rows] == [len(row) for row in plain.rows] == [3, 3, 6, 6, 5, 5, 4, 4, 4, 4, 4, 4]
    shown = escape_controls(text).strip()
    assert [code.strip() for code in page.codes].count(shown) > 8
    assert shown in [cell.strip() for row in page.rows for cell in row]


def test_the_text_is_ascii_for_any_pipe_encoding() -> None:
    found = Comparison((Difference("names", "changed", ("graph name",), "größe", "名前"),), 1)
    assert format_markdown("alt", "neu→", found).isascii()


def test_only_long_lists_are_folded() -> None:
    def listed(number: int) -> str:
        found = [Difference("toolchain", "changed", ("distributions", f"package-{n}"), "1", "2") for n in range(number)]
        return format_markdown("old", "new", Comparison(tuple(found), 1))

    assert "<details>" not in listed(12)
    assert "<details><summary>Toolchain (13)</summary>" in listed(13)
    assert Page(listed(13)).tags.count("tr") == 14


@pytest.mark.slow
@pytest.mark.parametrize("name", ["model-{}", "x" * 400 + "|{}"])
def test_the_comment_of_a_huge_change_fits_github_and_names_omissions(name: str) -> None:
    places = tuple(f"{name.format(n)}/" for n in range(3000))
    found = Comparison(
        tuple(
            Difference(sense, "changed", ("models", name.format(n), "nodes", "0", name.format(n)), OLD, name.format(n), place)
            for sense in ("graph", "target", "settings", "toolchain", "context", "names")
            for n, place in enumerate(places)
        ),
        models=3000,
        sizes=tuple(SizeChange("model", name.format(n), n, n + 1, place) for n, place in enumerate(places)),
        artifacts=places,
    )
    text = format_markdown("old", "new", found)
    assert len(text) <= MAX_CHARACTERS
    assert "Of 3000 outputs on both sides, 3000 differ." in text
    assert "more, which `epbuild diff` lists." in text or "\n\nToolchain: 3000\n\n" in text


def test_a_long_value_is_shortened_in_the_middle() -> None:
    shown = format_code("a" * 200 + "b" * 200)
    assert shown == f"`{'a' * 60}...{'b' * 60}`"
