"""Abilities of a machine: those that the catalog allows, without those that a probe refuted."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import pytest
from msgspec.structs import replace

from epbuild.catalog.catalog import entries_for, entry
from epbuild.cluster.abilities import Abilities, list_possible_abilities
from epbuild.cluster.placement import list_needed_labels, list_own_labels
from epbuild.compile.probing import ProbeResult, Probes
from epbuild.plan.ability import Ability
from epbuild.plan.steps import SessionGroup
from epbuild.recipe.model import DeviceChoice
from epbuild.session.planning import read_plan
from epbuild.session.request import Request
from epbuild.toolchain.environment import Environment
from epbuild.toolchain.fingerprint import Fingerprint
from tests.support.projects import RECIPES

QNN = "QNNExecutionProvider"
OPENVINO = "OpenVINOExecutionProvider"
RTX = "NvTensorRTRTXExecutionProvider"


class KnownProbes(Probes):
    """Probes with given results by EP, device, and whether the probe has to run."""

    def __init__(self, **results: ProbeResult) -> None:
        super().__init__(Path())
        object.__setattr__(self, "results", results)
        object.__setattr__(self, "made", [])

    results: dict[str, ProbeResult]
    made: list[str]

    def probe(self, ability: Ability, environment: Environment, cancelled: threading.Event) -> ProbeResult:
        name = f"{ability.entry.short}{ability.device}{'_runs' if ability.runs else ''}"
        self.made.append(name)
        return self.results.get(name, ProbeResult("unclear", "crashed"))


@pytest.fixture
def environment() -> Environment:
    return Environment("qnn", Path("python"), Fingerprint("cpython-3.11", "linux-x86_64", {}, {}), Path("fingerprint.json"))


@pytest.fixture
def group() -> SessionGroup:
    _, plan = read_plan(Request(RECIPES / "quickstart.yaml"))
    return next(iter(plan.session_groups.values()))


def judged(probes: KnownProbes, group: SessionGroup, environment: Environment) -> tuple[Abilities, dict[str, str]]:
    heard: dict[str, str] = {}
    found = Abilities(probes, lambda labels, result: heard.update(dict.fromkeys(labels, result.outcome)))
    found.judge(group, environment, threading.Event())
    return found, heard


def on_device(group: SessionGroup, device: DeviceChoice) -> SessionGroup:
    [ep] = group.target.eps
    return replace(group, target=replace(group.target, eps=(replace(ep, device=device),)))


def test_missing_ability_is_probed_once_and_withdrawn_early(group: SessionGroup, environment: Environment) -> None:
    probes = KnownProbes(qnn=ProbeResult("cannot", "no device"))
    found, heard = judged(probes, group, environment)
    assert found.why_not(group) == "no device"
    assert heard[f"ep:{QNN}"] == "cannot"
    # A plugin EP without devices offers none of its types.
    assert heard[f"ep:{QNN}@npu"] == "cannot"
    found.judge(group, environment, threading.Event())
    assert probes.made == ["qnn"]


def test_failure_unrelated_to_the_machine_withdraws_nothing(group: SessionGroup, environment: Environment) -> None:
    probes = KnownProbes()
    found, heard = judged(probes, group, environment)
    assert (found.why_not(group), heard) == (None, {})
    found.judge(group, environment, threading.Event())
    assert probes.made == ["qnn"], "a model that fails again is not the machine's fault either"


def test_device_selected_by_an_ep_withdraws_other_devices(group: SessionGroup, environment: Environment) -> None:
    found, heard = judged(KnownProbes(qnn=ProbeResult("does", "compiles", "cpu")), group, environment)
    assert heard == {f"ep:{QNN}": "does", f"ep:{QNN}@cpu": "does", f"ep:{QNN}@npu": "cannot"}
    assert found.why_not(on_device(group, DeviceChoice("npu"))) == f"{QNN} offers only this device on this machine: cpu"
    assert found.why_not(group) is None


def test_another_toolchain_may_add_abilities_but_never_remove_any(group: SessionGroup, environment: Environment) -> None:
    probes = KnownProbes(qnn=ProbeResult("cannot", "no driver"))
    found, heard = judged(probes, group, environment)
    probes.results["qnn"] = ProbeResult("does", "compiles", "cpu")
    found.judge(group, replace(environment, interpreter=Path("newer")), threading.Event())
    assert (found.why_not(group), heard[f"ep:{QNN}"]) == (None, "does")
    probes.results["qnn"] = ProbeResult("cannot", "no driver")
    found.judge(group, replace(environment, interpreter=Path("older")), threading.Event())
    assert heard[f"ep:{QNN}"] == "does"


def test_action_needs_the_device_of_its_target(group: SessionGroup) -> None:
    assert f"ep:{QNN}" in list_needed_labels(group, "linux-x86_64")
    assert f"ep:{QNN}@npu" in list_needed_labels(on_device(group, DeviceChoice("npu")), "windows-arm64")
    [ep] = group.target.eps
    for options, labels in (
        ({"device_type": "AUTO:NPU,CPU"}, {f"ep:{OPENVINO}@npu", f"ep:{OPENVINO}@cpu"}),
        ({"device_type": "GPU.1"}, {f"ep:{OPENVINO}@gpu"}),
        ({}, {f"ep:{OPENVINO}"}),
    ):
        other = replace(ep, entry=entry(OPENVINO, ["onnxruntime-openvino"]), provider_options=options)
        asked = replace(group, target=replace(group.target, eps=(other,)))
        assert {label for label in list_needed_labels(asked, "x") if label.startswith("ep:")} == labels
    [plugin] = [found for found in entries_for(OPENVINO) if found.kind == "plugin"]
    virtual = replace(ep, entry=plugin, device=DeviceChoice("npu", virtual=True))
    asked = replace(group, target=replace(group.target, eps=(virtual,)))
    assert f"ep:{OPENVINO}/onnxruntime-ep-openvino@virtual-npu" in list_needed_labels(asked, "x")


@pytest.mark.skipif(sys.platform != "linux", reason="what Linux cannot do")
def test_impossible_targets_and_driverless_gpus_are_not_offered() -> None:
    offered = list_own_labels(list_possible_abilities(lambda found: found.ep == RTX))
    assert {f"ep:{QNN}", f"ep:{QNN}@npu", f"real:{QNN}", f"real:{QNN}@npu", f"ep:{OPENVINO}@gpu", "prepare"} <= offered
    # An emulator's device is never a real one.
    assert not {f"real:{QNN}@cpu", f"ep:{OPENVINO}@npu", f"ep:{RTX}"} & offered
    assert f"ep:{RTX}" in list_own_labels(list_possible_abilities(lambda found: False))


def test_only_named_eps_are_offered_with_devices_and_preparations() -> None:
    only = list_own_labels(list_possible_abilities(), [QNN])
    assert {f"ep:{QNN}", f"real:{QNN}"} <= only
    assert not any(OPENVINO in label for label in only)
    assert "prepare" not in only
    assert "prepare" in list_own_labels(list_possible_abilities(), [QNN, "prepare"])
