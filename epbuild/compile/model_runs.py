"""Runs of compiled models with the EPs of their target, to measure them."""

from __future__ import annotations

import math
import shutil
import statistics
from pathlib import Path

from msgspec.structs import replace

from epbuild.cache.blobs import BlobStore
from epbuild.core.errors import BuildError, EnvironmentFailure, Problem, StepId
from epbuild.core.host import read_cpu_name
from epbuild.engine.events import StepStarted
from epbuild.onnxfile.read.headers import read_header
from epbuild.plan.measuring import INPUT, OUTPUT, MeasuredMember, ModelMeasurement, list_model_files
from epbuild.plan.result import CompileResult, MeasuredModel
from epbuild.recipe.model import MadeInputs
from epbuild.toolchain.execution import REQUEST, Execution
from epbuild.verify.live.inputs import BadInputs, NoInputs, make_samples
from epbuild.verify.live.session import open_target_session
from epbuild.verify.live.worker import Attempt, Feed, Load, Session, explain_no_real_device, run_models

_PROFILE = "onnxruntime_profile.json"
_MAX_PROFILED_RUNS = 10
_OWN_FILES = frozenset({REQUEST, "worker.log", "inputs.npz", "outputs.npz"})


def stage_model(result: CompileResult, member: str, folder: Path, store: BlobStore) -> Path:
    """Write the files of a compiled model to a folder. Return the path of the model. Raises StoreError."""
    for name, digest in list_model_files(result, member).items():
        store.materialize(digest, folder / name)
    return folder / result.model(member).file


def run_model(measurement: ModelMeasurement, member: MeasuredMember, execution: Execution) -> MeasuredModel:
    """Load a model and run it on generated inputs. Files that the EP writes, such as a profile, are moved to the folder of `OUTPUT`.

    Raises EnvironmentFailure (EPB667) if the device is missing, BuildError and Cancelled.
    """
    choice, scratch = measurement.choice, execution.staging / "run"
    result = measurement.compiled_of(member).compiled
    model = stage_model(result, member.name, execution.staging / INPUT, execution.store)
    scratch.mkdir()
    session = open_target_session(measurement.target, execution.environment, measurement.custom_ops, choice.timeout)
    execution.progress.report(StepStarted(StepId(measurement.id), f"measuring {member.name}"))
    try:
        emulated = _find_emulator(measurement, session, scratch, execution)
        load = Load(member.name, model, feeds=(_write_inputs(measurement, member, model, scratch),) * choice.runs)
        attempt = _run(load, _add_diagnostics(session, measurement), measurement, scratch, execution)
        if choice.profile:
            # The profiler slows runs down, so the runs that are measured have none.
            profiled = replace(load, feeds=load.feeds[:_MAX_PROFILED_RUNS], profile=_PROFILE)
            _run(profiled, session, measurement, scratch, execution)
    finally:
        if (scratch / "worker.log").exists():
            shutil.copyfile(scratch / "worker.log", execution.log)
    _keep_files(scratch, execution)
    device = ", ".join(filter(None, (attempt.devices, read_cpu_name())))
    return MeasuredModel(member.name, _make_figures(attempt), "device" if emulated is None else "emulator", device or None)


def _find_emulator(measurement: ModelMeasurement, session: Session, scratch: Path, execution: Execution) -> str | None:
    """Return the reason why the target's device is not real, or None if it is. Raises EnvironmentFailure if the recipe rejects it."""
    offered = run_models((), session, scratch, execution.cancelled)
    emulated = explain_no_real_device(offered, session.eps)
    if emulated is not None and (measurement.is_on_real_device or offered.failure is not None):
        kind = "real device" if measurement.is_on_real_device else "device"
        raise make_device_error(f"{measurement.target.title} has no {kind} here: {emulated}", StepId(measurement.id))
    return emulated


def make_device_error(message: str, step: StepId) -> EnvironmentFailure:
    """Return the error for a step whose device is missing on this machine."""
    hint = "Run the step on a machine with such a device, or on a worker that has one (--executor)."
    return EnvironmentFailure(Problem("EPB667", message, step, hint))


def _run(load: Load, session: Session, measurement: ModelMeasurement, scratch: Path, execution: Execution) -> Attempt:
    """Load and run a model in a new process. Raises EnvironmentFailure if it fails."""
    attempt = run_models([load], session, scratch, execution.cancelled)
    if attempt.failure is not None:
        message = f"the model '{load.name}' cannot be run on {measurement.target.title}: {attempt.failure.message}"
        hint = f"See the whole log: {execution.shown_log}."
        raise EnvironmentFailure(Problem(attempt.failure.code, message, StepId(measurement.id), hint))
    return attempt


def _keep_files(scratch: Path, execution: Execution) -> None:
    """Move the files that the EP and ONNX Runtime wrote to the folder of `OUTPUT`."""
    kept = (execution.staging / OUTPUT).parent
    kept.mkdir(parents=True)
    for path in scratch.iterdir():
        if path.name not in _OWN_FILES and path.is_file():
            path.rename(kept / path.name)


def _add_diagnostics(session: Session, measurement: ModelMeasurement) -> Session:
    """Return the session with the target's options that request files about runs."""
    asked = zip(session.eps, measurement.diagnostic_options, strict=True)
    return replace(session, eps=tuple(replace(ep, provider_options={**ep.provider_options, **more}) for ep, more in asked))


def _write_inputs(measurement: ModelMeasurement, member: MeasuredMember, model: Path, scratch: Path) -> Feed:
    """Write generated inputs of a model, and return their file. Raises BuildError if inputs cannot be generated."""
    import numpy as np

    inputs = read_header(model).inputs
    sizes = measurement.compiled_of(member).group.member(member.name).model.dimensions
    try:
        [sample] = make_samples(MadeInputs(), inputs, sizes)
    except (NoInputs, BadInputs) as error:
        message = f"the inputs of the model '{member.name}' cannot be generated: {error}"
        raise BuildError(Problem("EPB648", message, StepId(measurement.id), "Measure the model with a command.")) from error
    names = tuple(value.name for value in inputs)
    np.savez(scratch / "inputs.npz", *(sample.arrays[name] for name in names))
    return Feed(scratch / "inputs.npz", names, scratch / "outputs.npz")


def _make_figures(attempt: Attempt) -> dict[str, int | float]:
    """Return the figures of a model. Latencies exclude the first run, which has its own figure."""
    [load] = attempt.seconds.values()
    [finished] = attempt.find_reports("finished")
    first, *others = (report["seconds"] for report in attempt.find_reports("ran"))
    ordered = sorted(others)
    figures = {
        "load_ms": load,
        "latency_ms.first": first,
        "latency_ms.p50": statistics.median(ordered),
        "latency_ms.p95": ordered[math.ceil(0.95 * len(ordered)) - 1],
    }
    peak = finished.get("peak_memory")
    return {**{name: round(1000 * value, 3) for name, value in figures.items()}, **({"peak_memory": peak} if peak else {})}
