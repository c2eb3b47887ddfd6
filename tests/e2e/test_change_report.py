"""Size reports of real builds: the table of changes, and the comment for a pull request."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import cmarkgfm
import onnx
import pytest
from cmarkgfm.cmark import Options
from onnx import numpy_helper
from rich.filesize import decimal

from tests.support.projects import Project
from tests.support.quick_builds import write_model

DIST = "dist/quickstart"
SOC = "soc_model: ${matrix.soc}"
SLOWER = f"{SOC}\n      htp_graph_finalization_optimization_mode: 3"
CLASSIFIER = f"{DIST}/classifier/snapdragon-SM8750"
DECODER = f"{DIST}/decoder/snapdragon-SM8750"


@pytest.fixture
def project(new_quickstart: Project) -> Project:
    """Return the quickstart for one SoC."""
    new_quickstart.edit("[SC8380XP, SM8750]", "[SM8750]")
    return new_quickstart


class Rows(HTMLParser):
    """Parser for the cells of every table row of a comment, as GitHub renders it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self._open = False
        self.feed(cmarkgfm.github_flavored_markdown_to_html(text, options=Options.CMARK_OPT_UNSAFE))

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")
            self._open = True

    def handle_endtag(self, tag: str) -> None:
        self._open = self._open and tag not in ("td", "th")

    def handle_data(self, data: str) -> None:
        if self._open:
            self.rows[-1][-1] += data


def report(project: Project) -> list[str]:
    """Return the lines of a build's report, which must fit a terminal of 80 columns."""
    done = project.epbuild("run")
    assert (done.returncode, done.stderr) == (0, "")
    parts = done.stdout.split("\n\n")
    if len(parts) == 1:
        return []
    _, lines, *coverage, last = parts
    assert all(part.startswith("Coverage: ") for part in coverage)
    assert re.match(r"\d+ built", last)
    assert all(len(line) <= 80 for part in (lines, *coverage) for line in part.splitlines())
    return lines.splitlines()


def weight_bytes(path: Path) -> int:
    """Return the bytes of all distinct initializers of a model, counted with the onnx package."""
    proto = onnx.load(path)
    return sum(len(content) for content in {numpy_helper.to_array(tensor).tobytes() for tensor in proto.graph.initializer})


def size(path: Path) -> int:
    return path.stat().st_size


def test_a_build_reports_size_changes_of_its_outputs(project: Project) -> None:
    folder = project.folder
    first = report(project)
    sizes = [size(path) for path in (folder / DIST).rglob("*") if path.is_file() and path.name != "manifest.json"]
    assert first[0] == f"Size: {decimal(sum(sizes))} in 2 new outputs."
    binary = size(folder / DECODER / "prefill_qnn.bin")
    sentence = f"Sharing: {decimal(binary)} in share:decoder/snapdragon-SM8750, whose models have 50.0% of"
    assert first[1:3] == [sentence, "  their source weights in common."]
    assert first[3].startswith("Time: ")
    assert first[-1].split()[1] == "other"
    assert report(project) == [], "nothing was built"

    before = size(folder / CLASSIFIER / "classifier_qnn.bin")
    write_model(folder / "models/classifier/classifier.onnx", 1, 512)
    found = report(project)
    after = size(folder / CLASSIFIER / "classifier_qnn.bin")
    assert after > before
    rows = [" ".join(line.split()) for line in found]
    [row] = [row for row in rows if row.startswith("classifier_qnn.bin ")]
    percent = 100 * (after - before) / before
    assert row == f"classifier_qnn.bin {decimal(before)} {decimal(after)} +{decimal(after - before)} {percent:+,.1f}%"
    assert found[0].split() == ["Size", "before", "after", "change"]
    assert not any("decoder" in row for row in rows), "only what was laid out again is told"

    shutil.rmtree(folder / ".epbuild")
    project.edit(SOC, SLOWER)
    rows = [" ".join(line.split()) for line in report(project)]
    grown = size(folder / DECODER / "prefill_qnn.bin")
    assert grown != binary
    assert f"prefill_qnn.bin {decimal(binary)} {decimal(grown)}" in " ".join(rows), "the manifest that lies there tells what was"


def test_json_events_have_the_size_of_each_changed_file(project: Project) -> None:
    project.build()
    old = {path: size(project.folder / DECODER / path) for path in ("prefill_qnn.bin", "prefill_ctx.onnx")}
    project.edit(SOC, SLOWER)
    events = project.build()
    [found] = [event for event in events if event["event"] == "output_compared" and event["directory"] == DECODER]
    new = {path: size(project.folder / DECODER / path) for path in old}
    assert found["files"] == [{"path": "prefill_qnn.bin", "before": old["prefill_qnn.bin"], "after": new["prefill_qnn.bin"]}]
    assert found["after"] - found["before"] == new["prefill_qnn.bin"] - old["prefill_qnn.bin"]
    [saved] = [event for event in events if event["event"] == "sharing_saved"]
    weights = weight_bytes(project.folder / "models/tiny-llm/prefill.onnx")
    assert (saved["unshared"], saved["shared"], saved["measured"]) == (2 * weights, weights, False)
    assert saved["made"] == new["prefill_qnn.bin"]
    assert events[-1]["event"] == "run_finished"


def test_markdown_shows_the_changes_between_two_real_trees(project: Project) -> None:
    project.build()
    before = project.folder / "before"
    shutil.copytree(project.folder / DIST, before)
    same = project.epbuild("diff", "--markdown", "before", DIST)
    assert (same.returncode, same.stdout) == (0, "**No difference: 3 models, identical byte for byte.**\n")

    project.edit(SOC, SLOWER)
    project.edit("dist/${recipe.name}/${group}/${target}", "dist/${recipe.name}/${target}-${group}")
    project.build()
    done = project.epbuild("diff", "--markdown", "before", DIST)
    assert (done.returncode, done.stderr) == (1, "")
    text = done.stdout
    assert text.startswith("**The artifacts differ in target, context and names.**\n\n`before` &rarr; `dist/quickstart`: ")
    rows = Rows(text).rows
    old, new = (
        size(before / "decoder/snapdragon-SM8750/prefill_qnn.bin"),
        size(project.folder / DIST / "snapdragon-SM8750-decoder/prefill_qnn.bin"),
    )
    change = f"{'+' if new > old else '-'}{decimal(abs(new - old))}, {100 * (new - old) / old:+.1f}%"
    assert ["snapdragon-SM8750-decoder", "prefill_qnn.bin", decimal(old), decimal(new), change] in rows
    option = "QNNExecutionProvider: option htp_graph_finalization_optimization_mode"
    assert [option, "-", "3", "all 2"] in rows
    assert ["folder", "decoder/snapdragon-SM8750", "snapdragon-SM8750-decoder", "snapdragon-SM8750-decoder"] in rows
    document = json.loads(project.epbuild("diff", "--json", "before", DIST).stdout)
    [context] = [file for file in document["sizes"] if file["name"] == "prefill_qnn.bin"]
    parts = context.pop("parts")
    assert context == {
        "kind": "context binary",
        "name": "prefill_qnn.bin",
        "artifact": "snapdragon-SM8750-decoder/",
        "old": old,
        "new": new,
    }
    assert sum(part["new"] - part["old"] for part in parts) == new - old

    shutil.rmtree(before / "classifier")
    text = project.epbuild("diff", "--markdown", "before", DIST).stdout
    assert "Of 1 output on both sides, 1 differs, 1 new." in text
    assert ["snapdragon-SM8750-classifier", "classifier_ctx.onnx", "new"] in Rows(text).rows


def test_a_terminal_of_80_columns_shows_the_same_report_as_a_log(project: Project) -> None:
    pty = pytest.importorskip("pty", reason="there are no pseudo-terminals on Windows")
    command, environment = project.command("run")
    leader, follower = pty.openpty()
    environment = {**environment, "COLUMNS": "80", "TERM": "xterm-256color", "NO_COLOR": "1"}
    with subprocess.Popen(command, cwd=project.folder, env=environment, stdout=follower, stderr=subprocess.DEVNULL) as process:
        os.close(follower)
        shown = b""
        while True:
            try:
                part = os.read(leader, 65536)
            except OSError:  # error that Linux reports when the other side has closed
                break
            if not part:
                break
            shown += part
    os.close(leader)
    assert process.returncode == 0
    text = shown.decode().replace("\r\n", "\n")
    below = text.rpartition("\x1b[?25h")[2]
    assert "\nSize: " in below
    assert "\nSharing: " in below
    assert below.rstrip().splitlines()[-1].startswith("6 built (")
