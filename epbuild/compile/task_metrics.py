"""Runs of users' commands that compute task metrics from the outputs of models."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from msgspec import Meta, ValidationError

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
from epbuild.core.errors import BuildError, Problem
from epbuild.core.records import convert
from epbuild.engine.events import StepStarted
from epbuild.plan.result import TaskMetric
from epbuild.plan.verification import COMMAND_INPUT, METRIC_OUTPUT, CheckedMember, StagedCommand, Verification
from epbuild.toolchain.execution import Execution, StepLog, Worker
from epbuild.toolchain.process import Ending
from epbuild.verify.live.inputs import write_named_arrays
from epbuild.worker.scripts import RUN_COMMAND

if TYPE_CHECKING:
    from epbuild.verify.live.numbers_check import ComparedRun, NamedArrays

_MAX_BYTES = 1 << 20

_Metrics = dict[Annotated[str, Meta(min_length=1, max_length=100)], float]


def compute_metrics(
    action: Verification, checked: CheckedMember, runs: Sequence[ComparedRun], execution: Execution
) -> list[TaskMetric]:
    """Run a member's command on the outputs of the source and then of the compiled model. Raises EpbuildError and Cancelled."""
    command = checked.metric or StagedCommand()
    program = make_command_program(action.id, command.words, action.target.toolchain.name, action.timeout)
    execution.staging.mkdir()
    source, compiled = (
        _run(program, checked, command.files, side, [(run.inputs, getattr(run, side)) for run in runs], execution)
        for side in ("source", "compiled")
    )
    if source.keys() != compiled.keys():
        names = ", ".join(sorted(source.keys() ^ compiled.keys()))
        raise _make_error(program, f"computed other metrics for the compiled model than for its source: {names}", "", execution)
    metric = checked.choice.metric
    limits = (metric.min, metric.max, metric.max_drop, metric.max_rise) if metric is not None else ()
    if missing := sorted({name for limit in limits for name in limit} - source.keys()):
        raise _make_error(program, f"did not compute {', '.join(missing)}, which a limit names", "", execution)
    return [TaskMetric(checked.name, name, value, compiled[name]) for name, value in sorted(source.items())]


def _run(
    program: Program,
    checked: CheckedMember,
    files: Mapping[str, Path],
    side: str,
    pairs: Sequence[tuple[NamedArrays, NamedArrays]],
    outer: Execution,
) -> dict[str, float]:
    """Run the command on the inputs and outputs of one model, and return the metrics by name."""
    execution = outer.create_inner(outer.staging / side)
    _stage(program, files, pairs, execution)
    what = "the compiled model" if side == "compiled" else "the source model"
    execution.progress.report(StepStarted(program.step, f"computing metrics of {what} {checked.name}"))
    worker = Worker("program", RUN_COMMAND, program.timeout, ENVIRONMENT)
    try:
        ending = execution.run(worker, program.step, StepLog(program.step, execution.progress))
    finally:
        with outer.log.open("ab") as log:
            log.write(execution.log.read_bytes() if execution.log.exists() else b"")
    error = diagnose_program(program, ending, execution.shown_log)
    if error is not None:
        raise error
    return _read_metrics(program, ending, execution)


def _stage(
    program: Program, files: Mapping[str, Path], pairs: Sequence[tuple[NamedArrays, NamedArrays]], execution: Execution
) -> None:
    """Write the inputs, the outputs and the recipe's files to the staging directory."""
    staging = execution.staging
    with translate_staging_errors(program, "the metric"):
        (staging / METRIC_OUTPUT).parent.mkdir(parents=True)
        for number, pair in enumerate(pairs):
            for kind, (file, names) in zip(("inputs", "outputs"), pair, strict=True):
                write_named_arrays(staging / COMMAND_INPUT / kind / f"{number:05}.npz", file, names)
        stage_command(program, files, execution)


def _read_metrics(program: Program, ending: Ending, execution: Execution) -> dict[str, float]:
    """Read what the command wrote. Raises BuildError if the file is missing, or if it is not an object of finite numbers."""
    path, printed = execution.staging / METRIC_OUTPUT, quote_output(ending.tail)
    if not is_written(path, path.parent):
        raise _make_error(program, f"succeeded but did not write {METRIC_OUTPUT}", printed, execution)
    try:
        found: dict[str, float] = convert(read_json_output(path, _MAX_BYTES), _Metrics)
        if not found or not all(name.isprintable() and math.isfinite(value) for name, value in found.items()):
            raise ValidationError("expected at least one name with a finite number")
    except (OSError, ValueError, RecursionError) as error:
        raise _make_error(program, f"wrote unusable metrics: {error}", printed, execution) from error
    return found


def _make_error(program: Program, what: str, printed: str, execution: Execution) -> BuildError:
    hint = f"Write a JSON object of names and numbers to the path of ${{out}}. See the whole log: {execution.shown_log}."
    return BuildError(Problem("EPB671", f"'{program.title}' {what}{printed}", program.step, hint))
