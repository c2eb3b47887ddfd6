"""Probes with the real EPs: targets that compile on this machine, and the reasons for the others."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import pytest
from msgspec.structs import replace

from epbuild.cache.location import find_toolchain_directory
from epbuild.catalog.catalog import entries_for
from epbuild.catalog.entries import EpEntry
from epbuild.compile.probing import Probes
from epbuild.core.errors import Position
from epbuild.plan.ability import Ability
from epbuild.recipe.model import ToolchainSpec
from epbuild.toolchain.environment import Environment, Toolchains
from epbuild.toolchain.process import Ending
from epbuild.toolchain.provision import Requirements, provision

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="what EPs can do on a Linux machine without their devices"),
]
[QNN] = entries_for("QNNExecutionProvider")
OPENVINO, PLUGIN = entries_for("OpenVINOExecutionProvider")
PACKAGES = {
    QNN.distribution: ("onnxruntime==1.31.1", "onnxruntime-qnn==2.7.0"),
    OPENVINO.distribution: ("onnxruntime-openvino==1.24.1",),
    PLUGIN.distribution: ("onnxruntime==1.31.1", "onnxruntime-ep-openvino==1.8.1"),
}


def environment(entry: EpEntry, home: Path) -> Environment:
    python = provision(Requirements(PACKAGES[entry.distribution]), find_toolchain_directory(), name="probe", where=None)
    toolchain = ToolchainSpec("probe", Position("here", 1, 1), interpreter=str(python))
    return Toolchains(home).prepare(toolchain, home, [entry])


@pytest.mark.parametrize(
    ("ability", "outcome", "words"),
    [
        (Ability(QNN), "does", "compiles with onnxruntime-qnn"),
        (Ability(QNN, "npu"), "cannot", "has no suitable device; available: cpu from"),
        (Ability(QNN, runs=True), "cannot", "which emulates it"),
        (Ability(OPENVINO), "does", "compiles with onnxruntime-openvino"),
        (Ability(OPENVINO, "npu"), "cannot", "Linux wheels contain no NPU compiler"),
        (Ability(OPENVINO, "cpu", runs=True), "cannot", "cannot load the CPU models that it compiles here"),
        (Ability(PLUGIN, "virtual-npu"), "cannot", "cannot compile for Intel NPUs here"),
    ],
    ids=lambda value: f"{value.entry.distribution}-{value.device}-{value.runs}" if isinstance(value, Ability) else "",
)
def test_each_ep_is_probed_in_its_own_process(ability: Ability, outcome: str, words: str, tmp_path: Path) -> None:
    found = Probes(tmp_path).probe(ability, environment(ability.entry, tmp_path), threading.Event())
    assert (found.outcome, words in found.why) == (outcome, True), found


def test_a_probe_runs_once_per_toolchain(tmp_path: Path) -> None:
    probes, held = Probes(tmp_path), environment(QNN, tmp_path)
    first = probes.probe(Ability(QNN), held, threading.Event())

    def none(*arguments: object, **options: object) -> Ending:
        raise AssertionError("it is known")

    assert probes.probe(Ability(QNN), replace(held, run_worker=none), threading.Event()) == first
    other = replace(held, run_worker=none, fingerprint=replace(held.fingerprint, distributions={"onnxruntime-qnn": "9"}))
    with pytest.raises(AssertionError, match="it is known"):
        probes.probe(Ability(QNN), other, threading.Event())
