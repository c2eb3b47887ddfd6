"""Measurements of compiled models."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

from msgspec import Meta, Struct, ValidationError, to_builtins

from epbuild.compile.model_runs import run_model, stage_model
from epbuild.compile.program import (
    ENVIRONMENT,
    Program,
    diagnose_program,
    is_written,
    make_command_program,
    quote_output,
    read_json_output,
    stage_command,
    translate_staging_errors,
)
from epbuild.core.errors import BuildError, EnvironmentFailure, Problem, StepId
from epbuild.core.records import convert
from epbuild.core.safepath import find_unportable_part, is_inside, is_regular
from epbuild.engine.events import StepStarted
from epbuild.plan.measuring import FACTS, INPUT, OUTPUT, MeasuredMember, ModelMeasurement, build_facts
from epbuild.plan.result import DIAGNOSTICS, MeasuredModel, MeasurementResult, Measurements
from epbuild.recipe.model import MeasuredOn
from epbuild.toolchain.execution import Execution, StepLog, Worker
from epbuild.toolchain.process import Ending
from epbuild.worker.scripts import RUN_COMMAND

_MAX_FIGURES_BYTES = 1 << 20
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
    step, choice = StepId(measurement.id), measurement.choice
    program = make_command_program(step, member.command, measurement.target.toolchain.name, choice.timeout)
    _stage(measurement, member, program, execution)
    execution.progress.report(StepStarted(step, f"measuring {member.name}"))
    worker = Worker("measurement", RUN_COMMAND, choice.timeout, {**ENVIRONMENT, **measurement.environment})
    ending = execution.run(worker, step, StepLog(step, execution.progress))
    error = diagnose_program(program, ending, execution.shown_log)
    if error is not None:
        # The device may be away. Failures of this machine are not recorded, so that the next build measures again.
        raise EnvironmentFailure(*error.problems)
    found = _read_figures(program, ending, execution)
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


def _read_figures(program: Program, ending: Ending, execution: Execution) -> _Figures:
    """Read what the command wrote. Raises BuildError if the file is missing, or if it is not as documented."""
    path = execution.staging / OUTPUT
    if not is_written(path, path.parent):
        raise _make_result_error(program, f"succeeded but did not write {OUTPUT}", ending, execution)
    try:
        found = convert(read_json_output(path, _MAX_FIGURES_BYTES), _Figures)
        p50, p95 = found.latency_ms.p50, found.latency_ms.p95
        if not found.by_name:
            raise ValidationError("it has no figure")
        if p50 is not None and p95 is not None and p50 > p95:
            raise ValidationError(f"latency_ms.p50 is {p50:g}, which is more than p95, {p95:g}")
    except (OSError, ValueError, RecursionError) as error:
        raise _make_result_error(program, f"wrote unusable figures: {error}", ending, execution) from error
    return found


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
            hint = (
                "Write only files to keep into the folder of ${out}."
                if measurement.choice.command
                else "Change the target's options that request files."
            )
            raise BuildError(Problem("EPB461", f"the measurement wrote {name}, which {why}", step, hint))
        yield name, path


def _make_result_error(program: Program, what: str, ending: Ending, execution: Execution) -> BuildError:
    hint = f"Write the figures to the path of ${{out}}, as documented. See the whole log: {execution.shown_log}."
    return BuildError(Problem("EPB461", f"'{program.title}' {what}{quote_output(ending.tail)}", program.step, hint))
