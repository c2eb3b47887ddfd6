"""Probes with the real EPs: targets that compile on this machine, and the reasons for the others."""

from __future__ import annotations

import json
import subprocess
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
from tests.worker.scripts import FOLDER

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


def interpreter(entry: EpEntry) -> Path:
    return provision(Requirements(PACKAGES[entry.distribution]), find_toolchain_directory(), name="probe", where=None)


def environment(entry: EpEntry, home: Path) -> Environment:
    toolchain = ToolchainSpec("probe", Position("here", 1, 1), interpreter=str(interpreter(entry)))
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


_CHOOSE = """
import json, runpy, sys
import onnxruntime

worker = runpy.run_path(sys.argv[1])
ep = json.loads(sys.argv[2])
worker["register_ep"](onnxruntime, ep)
sys.stderr.write(json.dumps(worker["describe"](worker["choose_device"](onnxruntime, ep))))
"""


@pytest.mark.parametrize("suffix", [".virtual", ""])
def test_an_npu_of_another_machine_is_offered_only_under_a_virtual_name(suffix: str) -> None:
    device = {"type": "npu", "vendor": None, "metadata": {"npu_platform": "4000"}, "virtual": True}
    ep = {"name": PLUGIN.ep, "kind": "plugin", "module": PLUGIN.module, "library": None, "registration": f"{PLUGIN.ep}{suffix}"}
    command = [
        str(interpreter(PLUGIN)),
        "-I",
        "-c",
        _CHOOSE,
        str(FOLDER / "compile.py"),
        json.dumps({**ep, "device": device, "prefer": []}),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    if suffix:
        metadata = json.loads(done.stderr.splitlines()[-1])["metadata"]
        assert (metadata["is_virtual"], metadata["npu_platform"]) == ("1", "4000")
    else:
        assert "has no suitable device" in done.stderr
