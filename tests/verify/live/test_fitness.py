"""Fitness of models: what EPs answer, and which of two SDKs is newer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from epbuild.runtime.sdks import find_compiling_sdk, is_newer
from epbuild.verify.facts import Model
from epbuild.verify.findings import Finding
from epbuild.verify.live.fitness import SdkDifference, report_fitness
from epbuild.verify.live.worker import Attempt

EP = "SomeExecutionProvider"


@pytest.mark.parametrize(
    ("compiled", "here", "newer"),
    [
        ("v2.51.0.260929181845", "2.51.0", False),
        ("v2.52.0.1", "2.51.0", True),
        ("2.9", "2.51.0", False),
        ("2026.4", "2026.4.1", False),
        ("2026.5", "2026.4.1", True),
        ("unknown", "2.51.0", False),
    ],
)
def test_an_sdk_is_newer_by_the_numbers_that_both_versions_have(compiled: str, here: str, newer: bool) -> None:
    assert SdkDifference(EP, compiled, here).is_newer is newer
    assert is_newer(compiled, here) is newer  # the runtime's own function


@pytest.mark.parametrize(
    ("answers", "opened", "fitness"),
    [
        ([(EP, "EP_SUPPORTED_OPTIMAL")], True, "best"),
        ([(EP, "EP_SUPPORTED_OPTIMAL"), ("Other", None)], True, "runs"),
        ([(EP, "EP_SUPPORTED_PREFER_RECOMPILATION")], True, "runs"),
        ([(EP, "EP_NOT_APPLICABLE")], True, "runs"),
        ([], True, "runs"),
        ([(EP, "EP_UNSUPPORTED")], True, "recompile"),
        ([(EP, "EP_UNSUPPORTED")], False, "recompile"),
        ([(EP, "EP_SUPPORTED_OPTIMAL")], False, "cannot"),
    ],
)
def test_the_answer_of_the_ep_and_the_load_decide(answers: list[Any], opened: bool, fitness: str) -> None:
    reports = [{"event": "compatibility", "model": "m", "ep": ep, "answer": text} for ep, text in answers]
    load = Finding("load", "m.onnx", "passed" if opened else "failed", "Some reason.")
    models, shown = {"m": Model(Path(), "m.onnx")}, {"m": "m.onnx"}
    [found] = report_fitness(Attempt(tuple(reports), None), models, shown, [load])
    assert (found.fitness, found.subject) == (fitness, "m.onnx")
    assert (found.code is None) == (fitness in ("best", "runs"))


@pytest.mark.parametrize("source", ["QNNExecutionProvider", "QNN", "Qnn", "QnnExecutionProvider"])
def test_the_runtime_finds_the_newest_sdk_in_every_spelling_of_the_source(source: str) -> None:
    sdks = [(source, "v2.9.1"), (source, "v2.50.0"), ("OpenVINOExecutionProvider", "2026.4")]
    assert find_compiling_sdk(sdks, "QNNExecutionProvider") == "v2.50.0"
    assert find_compiling_sdk(sdks, "CPUExecutionProvider") is None
