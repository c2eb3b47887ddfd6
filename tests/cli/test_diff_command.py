"""`epbuild diff`: a verdict, a table that fits a terminal, and the exit codes of diff."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from epbuild.diff.difference import Comparison, Difference
from epbuild.diff.sizes import PartChange, SizeChange
from epbuild.report.json.artifacts import build_comparison_document
from epbuild.report.json.documents import format_json
from epbuild.report.terminal.artifacts import print_comparison
from tests.support.commands import epbuild, pack, write_model

QNN = "QNNExecutionProvider"
OLD, NEW = "a" * 64, "b" * 64
TWO_SOCS = Comparison(
    (
        Difference("target", "changed", ("eps", QNN, "options", "soc_model"), "SC8380XP", "SM8750"),
        Difference("target", "added", ("eps", QNN, "options", "htp_graph_finalization_optimization_mode"), None, "3"),
        Difference("context", "changed", ("models", "prefill", "nodes", "1", "context"), OLD, NEW),
        Difference("names", "changed", ("models", "prefill", "nodes", "0", "partition name"), "x" * 50, ""),
        Difference("names", "changed", ("models", "prefill", "nodes", "0", "source file name"), None, "prefill.onnx"),
    ),
    models=2,
)


def printed(capsys: pytest.CaptureFixture[str], found: Comparison) -> str:
    print_comparison(found)
    return capsys.readouterr().out


def test_the_verdict_is_followed_by_a_table_of_80_columns(capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys, TWO_SOCS)
    assert max(map(len, text.splitlines())) <= 80
    assert text == (
        "The artifacts differ in target, context and names.\n"
        "\n"
        "                                  A                       B\n"
        "target\n"
        "  QNNExecutionProvider: option soc_model\n"
        "                                  SC8380XP                SM8750\n"
        "  QNNExecutionProvider: option htp_graph_finalization_optimization_mode\n"
        "                                  -                       3\n"
        "context\n"
        "  prefill: node 2, context        aaaaaaaa                bbbbbbbb\n"
        "names\n"
        "  prefill: partition name         xxxxxxxxxxxxxxxxxxxxxx  (empty)\n"
        "                                  xxxxxxxxxxxxxxxxxxxxxx\n"
        "                                  xxxxxx\n"
        "  prefill: source file name       nothing                 prefill.onnx\n"
        "\n"
        "Identical: graph, weights, settings, toolchain.\n"
    )


def test_changed_contexts_are_shown_by_part(capsys: pytest.CaptureFixture[str]) -> None:
    parts = (PartChange("graph", "prefill", 1000, 3000), PartChange("graph", "decode, node 2", None, 500))
    sizes = (
        SizeChange("model", "prefill", 10, 20),
        SizeChange("context binary", "llm.bin", 9000, 11_500, "npu/", parts),
        SizeChange("context binary", "x.bin", 100, 50),
        SizeChange("context binary", "new.bin", None, 50),
    )
    text = printed(capsys, Comparison(TWO_SOCS.differences[:1], 1, sizes=sizes))
    assert text[text.index("Size by part") : text.index("\n\nIdentical")].splitlines() == [
        "Size by part                              before      after      change",
        "npu/llm.bin                               9.0 kB    11.5 kB     +2.5 kB   +27.8%",
        "  graph prefill                           1.0 kB     3.0 kB     +2.0 kB  +200.0%",
        "  graph decode, node 2                         -  500 bytes         new",
        "x.bin                                  100 bytes   50 bytes   -50 bytes   -50.0%",
        "  unknown: the EP lists no parts of this context",
    ]


def test_skipped_comparisons_are_listed_even_without_differences(capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(capsys, Comparison((), 1, ("B",))) == (
        "No difference: 1 model, identical byte for byte.\n"
        "\n"
        "Not compared, because B has no manifest: the options, the toolchain and the\n"
        "source models.\n"
    )
    assert "Not compared, because A and B have no manifests: " in printed(capsys, Comparison((), 1, ("A", "B")))


def test_terminal_escapes_in_a_model_are_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    change = Difference("names", "changed", ("models", "m\x1b[2J", "graph name"), "a\x1b]0;b\x07", "c")
    text = printed(capsys, Comparison((change,), 1))
    assert "\x1b" not in text
    assert "m\\x1b[2J: graph name" in text


def test_json_has_full_digests_and_every_fact() -> None:
    document = json.loads(format_json(build_comparison_document("old", "new", TWO_SOCS)))
    assert {name: document[name] for name in ("format", "a", "b", "equal", "senses", "same", "without_manifest")} == {
        "format": 1,
        "a": "old",
        "b": "new",
        "equal": False,
        "senses": ["target", "context", "names"],
        "same": ["graph", "weights", "settings", "toolchain"],
        "without_manifest": [],
    }
    assert document["differences"][2] == {
        "sense": "context",
        "what": "prefill: node 2, context",
        "kind": "changed",
        "artifact": "",
        "place": ["models", "prefill", "nodes", "1", "context"],
        "old": OLD,
        "new": NEW,
    }


@pytest.mark.slow
def test_exit_codes_equal_those_of_diff(tmp_path: Path) -> None:
    write_model(tmp_path / "a/relu.onnx")
    write_model(tmp_path / "b/relu.onnx")
    write_model(tmp_path / "c/relu.onnx", "Abs")
    same = epbuild(tmp_path, "diff", "a", "b/relu.onnx")
    assert (same.returncode, same.stderr) == (0, "")
    assert same.stdout.startswith("No difference: 1 model, identical byte for byte.\n")
    other = epbuild(tmp_path, "diff", "a", "c", "--json")
    assert (other.returncode, other.stderr) == (1, "")
    assert json.loads(other.stdout)["verdict"] == "The artifacts differ in graph."
    comment = epbuild(tmp_path, "diff", "a", "c", "--markdown")
    assert (comment.returncode, comment.stderr) == (1, "")
    assert comment.stdout.startswith("**The artifacts differ in graph.**\n\n`a` &rarr; `c`: ")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("a", "nowhere"), "epbuild: error: no such file or folder: nowhere. [EPB600]\n"),
        (("a", "empty"), "empty contains neither a manifest nor an ONNX model. [EPB600]\n"),
        (("a", "broken.onnx"), "epbuild: error: cannot compare the artifacts: broken.onnx is not a complete ONNX file: "),
        (("a",), "epbuild: error: Missing argument 'B'."),
        (("a", "a", "--markdown", "--json"), "epbuild: error: --markdown and --json cannot be combined"),
    ],
)
def test_inputs_that_cannot_be_compared_exit_with_2(tmp_path: Path, arguments: tuple[str, ...], told: str) -> None:
    write_model(tmp_path / "a/relu.onnx")
    (tmp_path / "empty").mkdir()
    (tmp_path / "broken.onnx").write_bytes(b"broken")
    done = epbuild(tmp_path, "diff", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert told in done.stderr


@pytest.mark.slow
def test_archives_images_and_folders_are_compared_in_any_combination(tmp_path: Path) -> None:
    write_model(tmp_path / "a/relu.onnx")
    write_model(tmp_path / "c/relu.onnx", "Abs")
    forms = [pack(tmp_path / "a", tmp_path / name).name for name in ("a.zip", "a.tar.zst", "image")]
    plain = json.loads(epbuild(tmp_path, "diff", "a", "c", "--json").stdout)
    for form in forms:
        assert epbuild(tmp_path, "diff", form, "a").returncode == 0
        assert epbuild(tmp_path, "diff", form, forms[0]).returncode == 0
        done = epbuild(tmp_path, "diff", form, "c", "--json")
        assert (done.returncode, done.stderr, json.loads(done.stdout)) == (1, "", {**plain, "a": form})
        done = epbuild(tmp_path, "diff", "c", form, "--markdown")
        assert done.returncode == 1
        assert f"`c` &rarr; `{form}`" in done.stdout


@pytest.mark.slow
def test_a_damaged_archive_exits_with_2(tmp_path: Path) -> None:
    write_model(tmp_path / "a/relu.onnx")
    path = pack(tmp_path / "a", tmp_path / "a.tar.zst")
    path.write_bytes(path.read_bytes()[:-1])
    done = epbuild(tmp_path, "diff", "a", "a.tar.zst")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("a.tar.zst: error: the archive ")
    assert done.stderr.endswith("Copy or download it again. [EPB619]\n")
    pack(tmp_path / "a", tmp_path / "image")
    broken = tmp_path / "b"
    broken.mkdir()
    (broken / "m.onnx").write_bytes(b"no model")
    pack(broken, tmp_path / "b.zip")
    done = epbuild(tmp_path, "diff", "image", "b.zip")
    assert done.returncode == 2
    assert "b.zip/m.onnx is not a complete ONNX file" in done.stderr


def test_an_archive_in_a_folder_is_reported_as_skipped(tmp_path: Path) -> None:
    write_model(tmp_path / "a/relu.onnx")
    write_model(tmp_path / "b/relu.onnx")
    pack(tmp_path / "a", tmp_path / "b" / "more.zip")
    done = epbuild(tmp_path, "diff", "a", "b")
    assert (done.returncode, done.stderr) == (0, "b/more.zip: skipped; name it on the command line to compare it\n")
