"""Reasons for CPU fallback: those of the EP, each with its node, and no other lines of its log."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import pytest

from epbuild.catalog.catalog import entry
from epbuild.compile.node_log import MARK, NodeLog
from epbuild.onnxfile.read.model_header import NamedNode
from epbuild.plan.result import FallbackNode
from epbuild.toolchain.process import LineHandling, WorkerListener, supervise

RULES = entry("QNNExecutionProvider").node_log
WHEN = "2026-11-22 14:15:52.651271482 [{}:onnxruntime:, {}.cc:1 f] "
SUPPORT = WHEN.format("V", "qnn_execution_provider")
UNSUPPORTED = "Operators of type `MatMulInteger` are not supported by QNN EP"
TAIL = ".MatMulInteger node `/fc/MatMul_quant` will not be assigned to QNN EP."


def refusal(operator: str, node: str, reason: str) -> list[str]:
    """Return the lines that QNN 2.7.0 logs for a refused node, as the supervisor reads them."""
    return [
        f"{SUPPORT}Validation FAILED for 1 nodes in OrtNodeUnit ({operator}) :",
        f"Operator type: {operator} Node name: {node} Node index: 13",
        f"REASON : {reason}",
        "",
    ]


def acceptance(operator: str, node: str) -> list[str]:
    return [
        f"{SUPPORT}Validation PASSED for 1 nodes in OrtNodeUnit ({operator}) :",
        f"Operator type: {operator} Node name: {node} Node index: 13",
        "",
    ]


def log(*lines: str) -> tuple[NodeLog, list[str]]:
    """Read a log, and return it with the value of each line."""
    assert RULES is not None
    found = NodeLog([RULES])
    return found, [found.read(line) for line in lines]


def test_each_node_gets_its_reason_without_its_own_name() -> None:
    lines = [
        f"{MARK}enc",
        *refusal("Gather", "/embedding/Gather", "Cannot get shape"),
        *refusal("MatMulInteger", "/fc/MatMul_quant", UNSUPPORTED + TAIL),
    ]
    found, worth = log(*lines)
    nodes = [NamedNode("/embedding/Gather", "Gather"), NamedNode("/fc/MatMul_quant", "MatMulInteger"), NamedNode("x", "If")]
    assert found.list_fallback_nodes("enc", nodes) == (
        FallbackNode("/embedding/Gather", "Gather", "Cannot get shape"),
        FallbackNode("/fc/MatMul_quant", "MatMulInteger", UNSUPPORTED),
        FallbackNode("x", "If", None),
    )
    assert worth == ["detail", *["kept"] * 8]


class NodeLogReader(WorkerListener):
    def __init__(self, log: NodeLog) -> None:
        self._log = log

    def classify(self, line: str) -> LineHandling:
        return self._log.read(line)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16-le"])
def test_reasons_are_read_from_the_log_of_each_platform(tmp_path: Path, encoding: str) -> None:
    lines = ["node_inputs:", *refusal("Det", "größe/det", "Det is not supported"), WHEN.format("W", "x") + "fallback"]
    said = f"{MARK}enc\n".encode() + "".join(f"{line}\n" for line in lines).encode(encoding)
    found, _ = log()
    supervise(
        [sys.executable, "-I", "-c", f"import os; os.write(2, {said!r})"],
        tmp_path,
        tmp_path / "log",
        NodeLogReader(found),
        timeout=60,
        environment={},
        cancelled=threading.Event(),
    )
    assert [node.reason for node in found.list_fallback_nodes("enc", [NamedNode("größe/det", "Det")])] == ["Det is not supported"]
    assert (tmp_path / "log").read_text(encoding="utf-8").splitlines()[-1] == lines[-1]


def test_all_nodes_of_a_refused_unit_get_the_same_reason() -> None:
    first, node, reason, end = refusal("Conv", "conv", "Failed to add node.")
    found, _ = log(f"{MARK}m", first, node, node.replace("Conv", "Relu").replace("conv", "relu"), reason, end)
    assert [left.reason for left in found.list_fallback_nodes("m", [NamedNode("conv", "Conv"), NamedNode("relu", "Relu")])] == [
        "Failed to add node"
    ] * 2


def test_members_with_equal_node_names_keep_their_own_reasons() -> None:
    found, _ = log(f"{MARK}prefill", *refusal("Add", "add", "one"), f"{MARK}decode", *refusal("Add", "add", "other"))
    assert [found.list_fallback_nodes(name, [NamedNode("add", "Add")])[0].reason for name in ("prefill", "decode", "third")] == [
        "one",
        "other",
        None,
    ]


def test_node_accepted_in_a_later_pass_has_no_reason() -> None:
    found, _ = log(f"{MARK}m", *refusal("Add", "add", "one"), *acceptance("Add", "add"))
    assert found.list_fallback_nodes("m", [NamedNode("add", "Add")])[0].reason is None


def test_unnamed_node_never_gets_the_reason_of_another_node() -> None:
    found, _ = log(f"{MARK}m", *refusal("Add", "", "one"), *refusal("Add", "", "other"), *refusal("Mul", "", "same") * 2)
    assert [left.reason for left in found.list_fallback_nodes("m", [NamedNode("", "Add"), NamedNode("", "Mul")])] == [
        None,
        "same",
    ]


def test_operator_is_matched_although_the_log_omits_its_domain() -> None:
    found, _ = log(f"{MARK}m", *refusal("Gelu", "gelu", "one"))
    assert found.list_fallback_nodes("m", [NamedNode("gelu", "com.microsoft::Gelu")])[0].reason == "one"


def test_known_lines_are_shown_and_details_are_hidden() -> None:
    lines = {
        WHEN.format("V", "qnn_model_wrapper") + "Qnn_OpConfig node name: x": "detail",
        "node_inputs:": "detail",
        "name=x id=0 version=1 type=QNN_TENSOR_TYPE_STATIC": "detail",
        "": "detail",
        "Starting stage: Graph Preparation": "shown",
        "name=x": "shown",
        WHEN.format("I", "inference_session") + "Initializing session.": "detail",
        WHEN.format("W", "qnn_model_wrapper") + "backendValidateOpConfig() failed": "shown",
        "terminate called": "shown",
        WHEN.format("E", "qnn_backend_manager") + "no such library": "shown",
    }
    assert log(*lines)[1] == list(lines.values())


def test_log_without_rules_is_unchanged() -> None:
    found = NodeLog([])
    assert not found.is_wanted
    assert found.read(SUPPORT + "Validation FAILED for 1 nodes in OrtNodeUnit (Add) :") == "shown"
