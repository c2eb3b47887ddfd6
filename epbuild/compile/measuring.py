"""Measurements of compiled models."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

from msgspec import Meta, Struct, to_builtins

from epbuild.compile.model_runs import run_model, stage_model
from epbuild.compile.program import (
    Program,
    make_command_program,
    read_output,
    run_program,
    stage_command,
    translate_staging_errors,
)
from epbuild.core.errors import BuildError, Problem, StepId
from epbuild.core.safepath import find_unportable_part, is_inside, is_regular
from epbuild.plan.measuring import FACTS, INPUT, OUTPUT, MeasuredMember, ModelMeasurement, build_facts
from epbuild.plan.result import DIAGNOSTICS, MeasuredModel, MeasurementResult, Measurements
from epbuild.recipe.model import MeasuredOn
from epbuild.toolchain.execution import Execution

_OUTPUT_ERROR = "EPB461", "Write the figures to the path of ${out}, as documented."
_MAX_FILES = 100
_MAX_FILE_BYTES = 1 << 30

_Milliseconds = Annotated[float, Meta(ge=0, le=1e9)]


class _Latency(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    first: _Milliseconds | None = None
    p50: _Milliseconds | None = None
    p95: _Milliseconds | None = None


class _Figures(Struct, frozen=True, forbid_unknown_fields=True):
    """JSON document that a command writes."""

    load_ms: _Milliseconds | None = None
    latency_ms: _Latency = _Latency()
    peak_memory: Annotated[int, Meta(ge=0, le=1 << 60)] | None = None
    on: MeasuredOn = "device"
    device: Annotated[str, Meta(min_length=1, max_length=200)] | None = None

    @property
    def by_name(self) -> dict[str, int | float]:
        figures = {
            "load_ms": self.load_ms,
            **{f"latency_ms.{name}": value for name, value in to_builtins(self.latency_ms).items()},
            "peak_memory": self.peak_memory,
        }
        return {name: value for name, value in figures.items() if value is not None}


def measure(measurement: ModelMeasurement, execution: Execution) -> MeasurementResult:
    """Measure each model, by its command or on the device. Store the figures and the other files. Raises EpbuildError and Cancelled."""
    begin = time.monotonic()
    models: list[MeasuredModel] = []
    kept: dict[str, Path] = {}
    runs = [execution.create_inner(execution.staging / f"{number}") for number in range(len(measurement.members))]
    try:
        for member, run in zip(measurement.members, runs, strict=True):
            models.append(_measure_model(measurement, member, run))
            kept |= {f"{DIAGNOSTICS}/{member.name}/{name}": path for name, path in _list_kept_files(measurement, run)}
    finally:
        with execution.log.open("wb") as log:
            for run in runs:
                log.write(run.log.read_bytes() if run.log.exists() else b"")
    execution.recheck()
    artifacts = {name: execution.store.put(path, move=True) for name, path in kept.items()}
    measured = Measurements(round(time.monotonic() - begin, 3), {}, None)
    return MeasurementResult(artifacts, execution.store.put(execution.log), measured, tuple(models), tuple(artifacts))


def _measure_model(measurement: ModelMeasurement, member: MeasuredMember, execution: Execution) -> MeasuredModel:
    if not member.command:
        return run_model(measurement, member, execution)
    program = make_command_program(measurement, member.command, measurement.choice.timeout, _OUTPUT_ERROR, is_on_device=True)
    _stage(measurement, member, program, execution)
    doing = f"measuring {member.name}"
    ending = run_program(program, execution, doing, process="measurement", environment=measurement.environment)
    found = read_output(program, OUTPUT, _Figures, "figures", execution, ending, _check_figures)
    return MeasuredModel(member.name, found.by_name, found.on, found.device)


def _stage(measurement: ModelMeasurement, member: MeasuredMember, program: Program, execution: Execution) -> None:
    """Write the compiled model, the facts and the recipe's files to the staging directory."""
    staging, result = execution.staging, measurement.compiled_of(member).compiled
    facts = build_facts(measurement.group, measurement.target, result, member.name)
    with translate_staging_errors(program, "the measurement"):
        (staging / OUTPUT).parent.mkdir(parents=True)
        stage_model(result, member.name, staging / INPUT, execution.store)
        (staging / FACTS).write_text(json.dumps(facts, indent=1), encoding="utf-8")
        stage_command(program, measurement.staged, execution)


def _check_figures(found: _Figures) -> None:
    p50, p95 = found.latency_ms.p50, found.latency_ms.p95
    if not found.by_name:
        raise ValueError("it has no figure")
    if p50 is not None and p95 is not None and p50 > p95:
        raise ValueError(f"latency_ms.p50 is {p50:g}, which is more than p95, {p95:g}")


def _list_kept_files(measurement: ModelMeasurement, execution: Execution) -> Iterator[tuple[str, Path]]:
    """Yield the name and the path of each file that the measurement wrote beside its figures. Raises BuildError."""
    figures = execution.staging / OUTPUT
    folder, step = figures.parent, StepId(measurement.id)
    others = [path for path in sorted(folder.rglob("*")) if path != figures and (path.is_symlink() or not path.is_dir())]
    for path in others:
        name = path.relative_to(folder).as_posix()
        why = (
            "is not a regular file"
            if not is_regular(path) or not is_inside(path, folder)
            else "has a name that is not valid on Windows"
            if find_unportable_part(name) is not None
            else f"is larger than {_MAX_FILE_BYTES:,} bytes"
            if path.stat().st_size > _MAX_FILE_BYTES
            else f"is one of more than {_MAX_FILES} files"
            if len(others) > _MAX_FILES
            else None
        )
        if why is not None:
            hint = "Change the target's options that request files."
            if measurement.choice.command:
                hint = "Write only files to keep into the folder of ${out}."
            raise BuildError(Problem("EPB461", f"the measurement wrote {name}, which {why}", step, hint))
        yield name, path
