"""Results of a probe: success, or a missing device or driver. Any other failure proves nothing."""

from __future__ import annotations

import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from epbuild.catalog.catalog import entry
from epbuild.compile.probing import probe_ability
from epbuild.plan.ability import Ability
from epbuild.toolchain.environment import Environment
from epbuild.toolchain.fingerprint import Fingerprint
from epbuild.toolchain.process import Ending

QNN = entry("QNNExecutionProvider")
RTX = entry("NvTensorRTRTXExecutionProvider")
FINISHED: Mapping[str, Any] = {"event": "finished", "peak_memory": None}


def device(kind: str, ep: str = QNN.ep) -> Mapping[str, Any]:
    return {"event": "device", "ep": ep, "type": kind, "vendor": "Acme"}


def failed(kind: str, name: str, message: str) -> Mapping[str, Any]:
    return {"event": "failed", "kind": kind, "type": name, "message": message}


def probed(ability: Ability, folder: Path, *reports: Mapping[str, Any], status: int = 0) -> tuple[str, str, str]:
    """Return the result of a probe whose processes send these reports."""

    def run(command: object, folder: Path, log: Path, **options: object) -> Ending:
        log.write_text("", encoding="utf-8")
        return Ending("exited", status, reports, ())

    held = {"onnxruntime": "1.31.1", **dict.fromkeys(ability.entry.distributions, "1.0")}
    prints = Fingerprint("cpython-3.11", "linux-x86_64", held, {})
    environment = Environment("probe", Path(sys.executable), prints, folder / "fingerprint.json", run_worker=run)
    found = probe_ability(ability, environment, folder, threading.Event())
    return found.outcome, found.why, found.device


@pytest.mark.parametrize(
    ("reports", "expected"),
    [
        ((device("npu"), FINISHED), ("does", "runs on npu from Acme", "npu")),
        ((device("cpu"), FINISHED), ("cannot", "only cpu from Acme, which emulates it", "")),
        ((failed("unfit", "NoDevice", "it offers: none"),), ("cannot", "it offers: none", "")),
        ((failed("unfit", "Unfit", "no package"),), ("unclear", "no package", "")),
    ],
    ids=["a real device", "an emulated device", "no device at all", "no EP"],
)
def test_real_device_is_a_device_that_the_ep_selects(
    reports: tuple[Mapping[str, Any], ...], expected: tuple[str, str, str], tmp_path: Path
) -> None:
    status = 0 if reports[-1] is FINISHED else 1
    assert probed(Ability(QNN, runs=True), tmp_path, *reports, status=status) == expected


@pytest.mark.parametrize(
    ("ability", "report", "outcome"),
    [
        (Ability(QNN), failed("unfit", "NoDevice", "QNN has no suitable device; available: none"), "cannot"),
        (Ability(QNN), failed("unfit", "Unfit", "this onnxruntime, 1.20, loads no plugin EPs"), "unclear"),
        (Ability(QNN), failed("error", "RuntimeError", "Unable to compile any nodes"), "unclear"),
        (Ability(QNN), failed("error", "MemoryError", "bad_alloc"), "unclear"),
        (Ability(RTX), failed("error", "RuntimeError", "libcuda.so.1: cannot open shared object file"), "cannot"),
    ],
    ids=["no device", "an old runtime", "the model", "memory", "no driver"],
)
def test_only_a_missing_device_or_driver_is_a_machine_fault(
    ability: Ability, report: Mapping[str, Any], outcome: str, tmp_path: Path
) -> None:
    assert probed(ability, tmp_path, report, status=1)[0] == outcome
