"""Probes, which compile a tiny model to test whether an EP works on this machine.

The model is compiled from a recipe in a process of the toolchain, and verified, like any other model. A probe can show that
the EP works, or that it finds no device or driver. Any other failure may be caused by the toolchain, and therefore shows
nothing about the machine.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from epbuild.cache.blobs import BlobStore
from epbuild.cache.records import ActionRecords
from epbuild.cache.staging import staged
from epbuild.catalog.packagings import RUNTIME, find_runtimes
from epbuild.compile.executor import build_key_document, rebuild
from epbuild.core.digest import hash_document
from epbuild.core.errors import EpbuildError
from epbuild.core.records import convert
from epbuild.engine.events import EventList
from epbuild.plan.ability import Ability
from epbuild.plan.planner import make_plan
from epbuild.plan.possible import find_obstacle
from epbuild.plan.request import CONTRACT
from epbuild.plan.steps import SessionGroup
from epbuild.recipe.load import load
from epbuild.toolchain.environment import Environment
from epbuild.toolchain.execution import Execution
from epbuild.toolchain.platforms import read_drivers
from epbuild.toolchain.process import Ending, RunWorker
from epbuild.verify.live.session import open_target_session
from epbuild.verify.live.worker import Load, LoadFailure, explain_no_real_device, run_models

_FORMAT = 1
_SECONDS = 120.0
_WIDTH = 64
NAME = "probe"
"""Name of a probe's model, group, target and toolchain."""
_MACHINE_CODES = frozenset({"EPB416"})
"""Codes of failures that the catalog attributes to the machine."""
_NO_DEVICE = "NoDevice"
"""Error type in the worker's report if an EP has no suitable device."""
_QUOTE = " The EP logged: "

Outcome = Literal["does", "cannot", "unclear"]


class ProbeResult(Struct, frozen=True):
    """Result of a probe."""

    outcome: Outcome
    why: str
    """Description of the success or the obstacle, as a clause."""
    device: str = ""
    """Type of the device that the EP selected. Empty if the EP does not select a device."""


def probe_ability(ability: Ability, environment: Environment, folder: Path, cancelled: threading.Event) -> ProbeResult:
    """Probe whether this machine can compile for an EP or run it. `environment` must contain the EP.

    `folder` must be empty. Raises Cancelled and OSError.
    """
    runner = _RecordingRunner(environment.run_worker)
    execution = _new_execution(replace(environment, run_worker=runner), folder, cancelled)
    try:
        group = plan_probe(ability, environment, folder)
        if (reason := find_obstacle(group.target, sys.platform)) is not None:
            return ProbeResult("cannot", reason.rstrip("."))
        if ability.runs:
            return _probe_run(ability, group, execution, runner)
        rebuild(group, build_key_document(group, execution), execution)
    except EpbuildError as error:
        result = _interpret_error(error, runner)
        return replace(result, why=_strip_quote(result.why))
    return ProbeResult("does", f"compiles with {_list_releases(ability, environment)}", runner.device)


def compile_probe(
    group: SessionGroup, environment: Environment, folder: Path, cancelled: threading.Event
) -> tuple[ProbeResult, Path | None]:
    """Compile a probe's group in an empty folder. Return the result and the compiled model.

    The model is None if the compile failed. Raises Cancelled and OSError.
    """
    runner = _RecordingRunner(environment.run_worker)
    try:
        execution = _new_execution(replace(environment, run_worker=runner), folder, cancelled)
        compiled = rebuild(replace(group, timeout=_SECONDS), build_key_document(group, execution), execution)
    except EpbuildError as error:
        return _interpret_error(error, runner), None
    return ProbeResult("does", "compiles", runner.device), compiled[f"{NAME}_ctx.onnx"]


def _interpret_error(error: EpbuildError, runner: _RecordingRunner) -> ProbeResult:
    """Return the result of a failed probe, with the first message of the error."""
    is_machine_fault = runner.has_no_device or any(problem.code in _MACHINE_CODES for problem in error.problems)
    return ProbeResult("cannot" if is_machine_fault else "unclear", error.problems[0].message.rstrip("."))


def _probe_run(ability: Ability, group: SessionGroup, execution: Execution, runner: _RecordingRunner) -> ProbeResult:
    """Probe whether the EP runs on a real device.

    A built-in EP does not select a device, so the probe compiles a model and opens it. A plugin EP selects a device, which is
    sufficient. The probe compiles nothing for a plugin EP, because the name that the EP reports for its device is not the name
    that the target's options need.
    """
    scratch = execution.staging.with_name("run")
    scratch.mkdir()
    session = open_target_session(group.target, execution.environment, (), _SECONDS)
    found = run_models((), session, scratch, execution.cancelled)
    if (why := explain_no_real_device(found, session.eps)) is not None:
        return ProbeResult(
            "cannot" if found.failure is None or _is_machine_fault(found.failure, runner) else "unclear", _strip_quote(why)
        )
    if ability.entry.kind == "plugin":
        return ProbeResult("does", f"runs on {found.devices}", str(found.find_reports("device")[0]["type"]))
    compiled = rebuild(group, build_key_document(group, execution), execution)[f"{NAME}_ctx.onnx"]
    opened = run_models([Load(NAME, compiled)], session, scratch, execution.cancelled)
    if opened.failure is not None:
        outcome: Outcome = "cannot" if _is_machine_fault(opened.failure, runner) else "unclear"
        return ProbeResult(outcome, _strip_quote(opened.failure.message))
    return ProbeResult("does", f"runs with {_list_releases(ability, execution.environment)}")


def _is_machine_fault(failure: LoadFailure, runner: _RecordingRunner) -> bool:
    """Return whether a failure was caused by a missing device or driver, rather than by the toolchain."""
    return failure.cannot_load and (runner.has_no_device or not runner.is_unfit)


def _strip_quote(message: str) -> str:
    """Remove the quotation of the EP's log from a message."""
    return message.partition(_QUOTE)[0].rstrip(".")


def _new_execution(environment: Environment, folder: Path, cancelled: threading.Event) -> Execution:
    staging = folder / "0"
    staging.mkdir()
    log = folder / f"{NAME}.log"
    return Execution(environment, staging, log, str(log), BlobStore(folder), EventList(), cancelled)


def plan_probe(ability: Ability, environment: Environment, folder: Path) -> SessionGroup:
    """Write the recipe and the model of a probe to a folder. Return the session group to compile.

    Raises EpbuildError and OSError.
    """
    write_probe_model(folder / f"{NAME}.onnx")
    place = folder / "epbuild.yaml"
    place.write_text(json.dumps(_build_recipe(ability, environment)), encoding="utf-8")
    [group] = make_plan(load(place)).session_groups.values()
    return replace(group, timeout=_SECONDS)


def _build_recipe(ability: Ability, environment: Environment) -> Mapping[str, Any]:
    held = environment.fingerprint.distributions
    packages = [f"{name}=={held[name]}" for name in ability.entry.distributions if name in held]
    if not find_runtimes(name for name in ability.entry.distributions if name in held):
        packages += list(find_runtimes(held))[:1] or [RUNTIME]
    target = {"toolchain": NAME, "ep": ability.entry.ep, **_choose_settings(ability)}
    return {
        "epbuild": 1,
        "name": NAME,
        "toolchains": {NAME: {"packages": packages}},
        "models": {NAME: f"{NAME}.onnx"},
        "targets": {NAME: target},
        "groups": {NAME: {"models": [NAME], "targets": [NAME]}},
        "outputs": [{"layout": "directory", "path": "dist"}],
    }


def _choose_settings(ability: Ability) -> Mapping[str, Any]:
    """Return the target's options and device, from the EP's sample recipe and the requested device."""
    start, option = ability.entry.start, ability.entry.device_option
    options = dict(start.options) if start is not None else {}
    if start is not None and start.option is not None:
        options[start.option] = start.example
    device: dict[str, Any] = {}
    if ability.device and option is not None:
        options[option] = ability.device_type.upper()
    elif ability.device:
        device = {"type": ability.device_type, **({"virtual": True} if ability.is_virtual else {})}
        if ability.is_virtual and start is not None and start.metadata is not None:
            device["metadata"] = {start.metadata: start.example}
    return {**({"provider_options": options} if options else {}), **({"device": device} if device else {})}


def write_probe_model(path: Path) -> None:
    """Write a model whose nodes every EP supports: two matrix multiplications with an activation between them."""
    import numpy as np
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    shape = [1, _WIDTH]
    weights = np.full((_WIDTH, _WIDTH), 1 / _WIDTH, np.float32)
    nodes = [
        helper.make_node("MatMul", ["x", "first"], ["a"], name="first"),
        helper.make_node("Relu", ["a"], ["b"], name="relu"),
        helper.make_node("MatMul", ["b", "second"], ["y"], name="second"),
    ]
    value = helper.make_tensor_value_info
    inputs, outputs = [value("x", TensorProto.FLOAT, shape)], [value("y", TensorProto.FLOAT, shape)]
    tensors = [numpy_helper.from_array(weights, name) for name in ("first", "second")]
    graph = helper.make_graph(nodes, NAME, inputs, outputs, tensors)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


def _list_releases(ability: Ability, environment: Environment) -> str:
    held = environment.fingerprint.distributions
    return ", ".join(f"{name} {held[name]}" for name in ability.entry.distributions if name in held)


@dataclass
class _RecordingRunner:
    """Runner of workers that records the reports of the last worker."""

    run_worker: RunWorker
    reports: Sequence[Mapping[str, Any]] = field(default_factory=tuple)

    def __call__(self, *arguments: Any, **options: Any) -> Ending:
        ending = self.run_worker(*arguments, **options)
        self.reports = ending.reports
        return ending

    @property
    def is_unfit(self) -> bool:
        return any(report.get("event") == "failed" and report.get("kind") == "unfit" for report in self.reports)

    @property
    def has_no_device(self) -> bool:
        return any(report.get("event") == "failed" and report.get("type") == _NO_DEVICE for report in self.reports)

    @property
    def device(self) -> str:
        return next((str(report["type"]) for report in self.reports if report.get("event") == "device"), "")


@dataclass(frozen=True)
class Probes:
    """Thread-safe prober with a cache of results."""

    root: Path

    def find(self, ability: Ability, environment: Environment) -> ProbeResult | None:
        """Return the stored result of a probe, or None if no result is stored. Raises StoreError."""
        record = self._records.get(hash_document(_build_document(ability, environment)))
        try:
            return None if record is None else convert(record["result"], ProbeResult)
        except (msgspec.ValidationError, KeyError):
            return None

    def probe(self, ability: Ability, environment: Environment, cancelled: threading.Event) -> ProbeResult:
        """Return the cached result of a probe, or probe the ability. Raises StoreError, OSError and Cancelled."""
        result = self.find(ability, environment)
        if result is not None:
            return result
        with staged(self.root / "work", "probe") as folder:
            result = probe_ability(ability, environment, folder, cancelled)
        if result.outcome != "unclear":  # the cause may be temporary, such as a lack of memory
            document = _build_document(ability, environment)
            self._records.put(hash_document(document), {"document": document, "result": msgspec.to_builtins(result)})
        return result

    @property
    def _records(self) -> ActionRecords:
        return ActionRecords(self.root / "probes")


def _build_document(ability: Ability, environment: Environment) -> dict[str, Any]:
    """Return the key document of a probe: everything that its result depends on."""
    entry = ability.entry
    return {
        "format": _FORMAT,
        "contract": CONTRACT,
        "ep": [entry.ep, entry.digest],
        "device": ability.device,
        "runs": ability.runs,
        "toolchain": environment.identity([entry]),
        "drivers": sorted([str(how), version] for how, version in read_drivers([entry]).items()),
    }
