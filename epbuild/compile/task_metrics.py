"""Runs of users' commands that compute task metrics from the outputs of models."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from msgspec import Meta

from epbuild.compile.program import (
    Program,
    make_command_program,
    make_output_error,
    read_output,
    run_program,
    stage_command,
    translate_staging_errors,
)
from epbuild.plan.result import TaskMetric
from epbuild.plan.verification import COMMAND_INPUT, METRIC_OUTPUT, CheckedMember, StagedCommand, Verification
from epbuild.toolchain.execution import Execution
from epbuild.verify.live.inputs import write_named_arrays

if TYPE_CHECKING:
    from epbuild.verify.live.numbers_check import ComparedRun, NamedArrays

_OUTPUT_ERROR = "EPB671", "Write a JSON object of names and numbers to the path of ${out}."

_Metrics = dict[Annotated[str, Meta(min_length=1, max_length=100)], float]


def compute_metrics(
    action: Verification, checked: CheckedMember, runs: Sequence[ComparedRun], execution: Execution
) -> list[TaskMetric]:
    """Run a member's command on the outputs of the source and then of the compiled model. Raises EpbuildError and Cancelled."""
    command = checked.metric or StagedCommand()
    program = make_command_program(action, command.words, action.timeout, _OUTPUT_ERROR, is_on_device=False)
    execution.staging.mkdir()
    source, compiled = (
        _run(program, checked, command.files, side, [(run.inputs, getattr(run, side)) for run in runs], execution)
        for side in ("source", "compiled")
    )
    if source.keys() != compiled.keys():
        names = ", ".join(sorted(source.keys() ^ compiled.keys()))
        raise make_output_error(program, f"computed other metrics for the compiled model than for its source: {names}", execution)
    metric = checked.choice.metric
    limits = (metric.min, metric.max, metric.max_drop, metric.max_rise) if metric is not None else ()
    if missing := sorted({name for limit in limits for name in limit} - source.keys()):
        raise make_output_error(program, f"did not compute {', '.join(missing)}, which a limit names", execution)
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
    try:
        ending = run_program(program, execution, f"computing metrics of {what} {checked.name}")
    finally:
        with outer.log.open("ab") as log:
            log.write(execution.log.read_bytes() if execution.log.exists() else b"")
    return read_output(program, METRIC_OUTPUT, _Metrics, "metrics", execution, ending, _check_metrics)


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


def _check_metrics(found: dict[str, float]) -> None:
    if not found or not all(name.isprintable() and math.isfinite(value) for name, value in found.items()):
        raise ValueError("expected at least one name with a finite number")
