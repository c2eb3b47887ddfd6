"""Terminal views of inspections and findings: every line fits 80 columns, and nothing is hidden."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from epbuild.report.json.checks import build_findings_document
from epbuild.report.json.documents import format_json
from epbuild.report.terminal.artifacts import print_inspection
from epbuild.report.terminal.checks import print_findings
from epbuild.verify.findings import Finding


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)


NODE = {
    "name": "QNNExecutionProvider_QNN_14116243529464461520_1_0",
    "source": "QNNExecutionProvider",
    "ep_sdk_version": "2.50.0.260704",
    "target": "SC8380XP",
    "main_context": 1,
    "embed_mode": 0,
    "problem": None,
    "subgraph": False,
    "partition_name": None,
    "onnx_model_filename": None,
    "hardware_architecture": None,
    "notes": None,
    "max_size": 0,
    "others": {"is_multi_soc_ep_context": 0},
    "written": {
        "source": "STRING",
        "ep_cache_context": "STRING",
        "embed_mode": "INT",
        "is_multi_soc_ep_context": "INT",
        "w": "FLOATS",
    },
    "reference": "prefill_qnn.bin",
    "size": 268_700_000,
    "sha256": "ab" * 32,
    "weights": None,
    "parts": [],
}
FOUND: dict[str, Any] = {
    "file": str(Path("dist") / "prefill_ctx.onnx"),
    "size": 1234,
    "inputs": [{"name": "x", "type": "float32", "shape": [1, None, "batch"]}, {"name": "z", "type": "int64", "shape": None}],
    "outputs": [{"name": "y", "type": "float32", "shape": []}],
    "ep_context_nodes": [
        NODE,
        {**NODE, "name": "second", "main_context": 0, "target": None, "ep_sdk_version": None, "reference": None, "size": None},
        {**NODE, "name": "third", "embed_mode": 1, "reference": None, "size": 0, "target": None, "subgraph": True},
        {**NODE, "name": "fourth", "problem": "it does not exist", "target": None},
        {**NODE, "name": "fifth", "problem": "names none", "reference": None, "size": None, "target": None},
    ],
    "other_operators": {"Relu": 2, "com.example::X": 1},
    "left": [
        {"node": "/relu", "operator": "Relu", "reason": "Cannot get shape"},
        {"node": "", "operator": "Relu", "reason": "Cannot get shape"},
        {"node": "/x", "operator": "com.example::X", "reason": None},
    ],
    "compatibility": {"QNNExecutionProvider": "1;2;3"},
    "external_data": ["w.bin", "v.bin"],
    "initializers": {"count": 2, "inline_bytes": 4096},
}


def inspected(capsys: pytest.CaptureFixture[str], **changes: Any) -> str:
    print_inspection({**FOUND, **changes})
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 80
    return out


def test_an_inspection_fits_80_columns_with_full_digests(capsys: pytest.CaptureFixture[str]) -> None:
    out = inspected(capsys)
    assert f" {'ab' * 32}\n" in out


def test_an_inspection_shows_the_contents_and_problems_of_each_node(capsys: pytest.CaptureFixture[str]) -> None:
    squeezed = [" ".join(line.split()) for line in inspected(capsys).splitlines()]
    for line in (
        f"{FOUND['file']} (1.2 kB)",
        "inputs x float32[1, ?, batch]",
        "z int64[?]",
        "outputs y float32[]",
        f"EPContext {NODE['name']}",
        "source QNNExecutionProvider, SDK 2.50.0.260704",
        "compiled for SC8380XP",
        "context prefill_qnn.bin (268.7 MB)",
        "EPContext third (in a subgraph)",
        "attributes main_context 1 (default), embed_mode 0, max_size 0 (default)",
        "EP attributes is_multi_soc_ep_context 0, w (FLOATS)",
        "weights 2 initializers, 4.1 kB of them in the model file",
        "context in the node with main_context=1",
        "context embedded, 0 bytes",
        "problem it does not exist",
        "context none",
        "CPU fallback 3 nodes: Relu x 2, com.example::X x 1",
        "Relu (Cannot get shape): /relu, (no name)",
        "com.example::X: /x",
        "compatibility QNNExecutionProvider: 1;2;3",
        "external data w.bin, v.bin",
    ):
        assert line in squeezed


def test_an_inspection_shows_the_largest_weights_and_counts_the_others(capsys: pytest.CaptureFixture[str]) -> None:
    parts = [{"names": [f"w{size}", "same"], "offset": 0, "size": size * 1000} for size in range(9, 1, -1)]
    weights = {"reference": "net.bin", "size": 44_000, "sha256": "ab" * 32, "parts": parts}
    lines = [" ".join(line.split()) for line in inspected(capsys, ep_context_nodes=[{**NODE, "weights": weights}]).splitlines()]
    start = lines.index("size by weight w9, same: 9.0 kB")
    assert lines[start + 4 : start + 6] == ["w5, same: 5.0 kB", "3 smaller parts: 9.0 kB"]
    weights["parts"] = []
    shown = " ".join(inspected(capsys, ep_context_nodes=[{**NODE, "weights": weights}]).split())
    assert "size by weight unknown: the context has no usable list of weights" in shown


def test_an_inspection_shows_the_largest_parts_of_a_context_and_the_rest(capsys: pytest.CaptureFixture[str]) -> None:
    parts = [{"kind": "shared weights", "name": "", "size": 9_000}]
    parts += [{"kind": "graph", "name": name, "size": 1_000} for name in (NODE["name"], "b", "c", "d", "e", "f")]
    lines = [
        " ".join(line.split())
        for line in inspected(capsys, ep_context_nodes=[{**NODE, "size": 16_500, "parts": parts}]).splitlines()
    ]
    start = lines.index("size by part 9.0 kB shared weights")
    assert lines[start + 1 : start + 3] == ["1.0 kB graph of this node", "1.0 kB graph b"]
    assert lines[start + 5 : start + 7] == ["2.0 kB in 2 smaller parts", "1.5 kB headers and padding"]
    unnamed = {**NODE, "name": "", "partition_name": "", "size": 16_500, "parts": parts}
    assert "9.0 kB shared weights" in " ".join(inspected(capsys, ep_context_nodes=[unnamed]).split())
    assert "size by part unknown: the EP lists no parts of this context" in " ".join(inspected(capsys).split())


def test_an_inspection_of_a_fully_compiled_model_shows_no_cpu_fallback(capsys: pytest.CaptureFixture[str]) -> None:
    assert "CPU fallback none" in " ".join(inspected(capsys, other_operators={}).split())


def test_an_inspection_of_a_source_model_says_that_it_is_not_compiled(capsys: pytest.CaptureFixture[str]) -> None:
    out = " ".join(inspected(capsys, ep_context_nodes=[]).split())
    assert "not compiled 3 nodes, none of them an EPContext node" in out


@pytest.mark.parametrize(
    ("operators", "words"),
    [
        ({"Relu": 2}, "session.disable_cpu_ep_fallback=1 refuses such a model"),
        ({"QuantizeLinear": 1, "DequantizeLinear": 1}, "quantize the model's inputs and dequantize its outputs"),
    ],
)
def test_an_inspection_explains_the_effect_of_fallback_nodes(
    capsys: pytest.CaptureFixture[str], operators: dict[str, int], words: str
) -> None:
    assert words in " ".join(inspected(capsys, other_operators=operators).split())


def told(capsys: pytest.CaptureFixture[str], *findings: Finding) -> list[str]:
    print_findings(findings)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    return lines


def test_findings_are_a_line_for_each_check_with_failures_first(capsys: pytest.CaptureFixture[str]) -> None:
    assert told(
        capsys,
        Finding("digests", "a.onnx", "passed"),
        Finding("digests", "b.bin", "failed", "It has 7 bytes; the manifest says 8.", "EPB613", "Emit or copy it again."),
        Finding("signature", "a.onnx", "skipped", "Nothing says what they are."),
        Finding("signature", "b.onnx", "skipped", "Nothing says what they are."),
    ) == [
        "digests    1 failed, 1 passed",
        "  b.bin: It has 7 bytes; the manifest says 8. Emit or copy it again. [EPB613]",
        "signature  2 skipped",
        "  a.onnx, b.onnx: Nothing says what they are.",
        "1 passed, 2 skipped, 1 failed",
    ]


def test_long_names_are_not_wrapped(capsys: pytest.CaptureFixture[str]) -> None:
    print_findings([Finding("files", "x" * 100, "failed", "It is not there.", "EPB615")])
    assert "x" * 100 in capsys.readouterr().out


def test_a_finding_has_figures_in_json_only_if_something_was_measured() -> None:
    findings = [Finding("digests", "a.onnx", "passed"), Finding("numbers", "a.onnx", "passed", figures=({"output": "y"},))]
    document = json.loads(format_json(build_findings_document(Path("dist"), findings)))
    assert document["counts"] == {"failed": 0, "skipped": 0, "passed": 2}
    assert [finding.get("figures") for finding in document["findings"]] == [None, [{"output": "y"}]]
