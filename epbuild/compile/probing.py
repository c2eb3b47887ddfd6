"""Probes: whether an EP compiles on this machine, found out with a tiny model.

The model is compiled as any other is: by a recipe, in a process of the toolchain, and checked. What that shows of a machine is
little: that it does, or that the EP finds no device or driver here. Any other failure may be the toolchain's, and shows nothing.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import replace

from epbuild.cache.blobs import BlobStore
from epbuild.compile.executor import rebuild
from epbuild.core.errors import EpbuildError
from epbuild.engine.events import EventList
from epbuild.plan.ability import Ability
from epbuild.plan.planner import make_plan
from epbuild.plan.possible import obstacle
from epbuild.plan.steps import SessionGroup
from epbuild.recipe.load import load
from epbuild.toolchain.environment import Environment
from epbuild.toolchain.execution import Execution
from epbuild.toolchain.process import Ending, RunWorker
from epbuild.verify.live.session import session_of
from epbuild.verify.live.worker import Load, LoadFailure, run_models, why_not_real

_SECONDS = 120.0
_WIDTH = 64
NAME = "probe"
"""What the model, its group, its target and its toolchain are called."""
_OF_THE_MACHINE = frozenset({"EPB416"})
"""Codes of failures that are a machine's, by what the catalog knows of its EP."""
_NO_DEVICE = "NoDevice"
"""What the worker's process reports where an EP has no device that fits."""
_QUOTE = " The EP logged: "

Outcome = Literal["does", "cannot", "unclear"]


class ProbeResult(Struct, frozen=True):
    """What came of a probe."""

    outcome: Outcome
    why: str
    """What was done, or what stood in the way, as a clause."""
    device: str = ""
    """The type of the device that the EP chose; empty where it chooses none."""


def probe_ability(ability: Ability, environment: Environment, folder: Path, cancelled: threading.Event) -> ProbeResult:
    """Try something in an environment that holds the EP, with files in an empty folder. Raises Cancelled, and OSError."""
    endings = _Endings(environment.run_worker)
    execution = _execution(replace(environment, run_worker=endings), folder, cancelled)
    try:
        group = planned_probe(ability, environment, folder)
        if (reason := obstacle(group.target, sys.platform)) is not None:
            return ProbeResult("cannot", reason.rstrip("."))
        if ability.runs:
            return _run(ability, group, execution, endings)
        rebuild(group, execution)
    except EpbuildError as error:
        refused = _refused(error, endings)
        return replace(refused, why=_clause(refused.why))
    return ProbeResult("does", f"compiles with {_releases(ability, environment)}", endings.device)


def compile_probe(
    group: SessionGroup, environment: Environment, folder: Path, cancelled: threading.Event
) -> tuple[ProbeResult, Path | None]:
    """Compile the group of a probe in an empty folder: what comes of it, and the compiled model. Raises Cancelled, and OSError."""
    endings = _Endings(environment.run_worker)
    try:
        compiled = rebuild(
            replace(group, timeout=_SECONDS), _execution(replace(environment, run_worker=endings), folder, cancelled)
        )
    except EpbuildError as error:
        return _refused(error, endings), None
    return ProbeResult("does", "compiles", endings.device), compiled[f"{NAME}_ctx.onnx"]


def _refused(error: EpbuildError, endings: _Endings) -> ProbeResult:
    """What an error shows of this machine."""
    is_of_machine = endings.has_no_device or any(problem.code in _OF_THE_MACHINE for problem in error.problems)
    return ProbeResult("cannot" if is_of_machine else "unclear", error.problems[0].message.rstrip("."))


def _run(ability: Ability, group: SessionGroup, execution: Execution, endings: _Endings) -> ProbeResult:
    """Whether the EP chooses a real device; one that is built in chooses none, and has to open what it compiles.

    Of a plugin EP nothing is compiled: what the device of this machine is called in the target's options, its EP does not report.
    """
    scratch = execution.staging.with_name("run")
    scratch.mkdir()
    session = session_of(group.target, execution.environment, (), _SECONDS)
    found = run_models((), session, scratch, execution.cancelled)
    if (why := why_not_real(found, session.eps)) is not None:
        return ProbeResult(
            "cannot" if found.failure is None or _is_of_machine(found.failure, endings) else "unclear", _clause(why)
        )
    if ability.entry.kind == "plugin":
        return ProbeResult("does", f"runs on {found.devices}", str(found.of("device")[0]["type"]))
    compiled = rebuild(group, execution)[f"{NAME}_ctx.onnx"]
    opened = run_models([Load(NAME, compiled)], session, scratch, execution.cancelled)
    if opened.failure is not None:
        outcome: Outcome = "cannot" if _is_of_machine(opened.failure, endings) else "unclear"
        return ProbeResult(outcome, _clause(opened.failure.message))
    return ProbeResult("does", f"runs with {_releases(ability, execution.environment)}")


def _is_of_machine(failure: LoadFailure, endings: _Endings) -> bool:
    """Whether a failure is for want of a device or a driver; what an EP does not find in its toolchain is the toolchain's."""
    return failure.cannot_load and (endings.has_no_device or not endings.is_unfit)


def _clause(message: str) -> str:
    """A message without what it quotes of a log."""
    return message.partition(_QUOTE)[0].rstrip(".")


def _execution(environment: Environment, folder: Path, cancelled: threading.Event) -> Execution:
    staging = folder / "0"
    staging.mkdir()
    log = folder / f"{NAME}.log"
    return Execution(environment, staging, log, str(log), BlobStore(folder), EventList(), cancelled)


def planned_probe(ability: Ability, environment: Environment, folder: Path) -> SessionGroup:
    """The group of a probe for an ability, planned by a recipe that is written to a folder. Raises EpbuildError, and OSError."""
    write_probe_model(folder / f"{NAME}.onnx")
    place = folder / "epbuild.yaml"
    place.write_text(json.dumps(_recipe(ability, environment)), encoding="utf-8")
    [group] = make_plan(load(place)).session_groups.values()
    return replace(group, timeout=_SECONDS)


def _recipe(ability: Ability, environment: Environment) -> Mapping[str, Any]:
    held = environment.fingerprint.distributions
    target = {"toolchain": NAME, "ep": ability.entry.ep, **_settings(ability)}
    return {
        "epbuild": 1,
        "name": NAME,
        "toolchains": {
            NAME: {"packages": [f"{name}=={held[name]}" for name in ability.entry.distributions if name in held]},
        },
        "models": {NAME: f"{NAME}.onnx"},
        "targets": {NAME: target},
        "groups": {NAME: {"models": [NAME], "targets": [NAME]}},
        "outputs": [{"layout": "directory", "path": "dist"}],
    }


def _settings(ability: Ability) -> Mapping[str, Any]:
    """The options and the device of a target: those of a first recipe for the EP, and the device that is asked for."""
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
    """A model that every EP takes whole: two multiplications with something between them."""
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


def _releases(ability: Ability, environment: Environment) -> str:
    held = environment.fingerprint.distributions
    return ", ".join(f"{name} {held[name]}" for name in ability.entry.distributions if name in held)


@dataclass
class _Endings:
    """Runs workers, and keeps how the last one ended."""

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
