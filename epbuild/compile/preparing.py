"""Runs of preparations: programs that convert a model into another model."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from epbuild.compile.failure import translate_size_errors
from epbuild.compile.program import REQUEST_FORMAT, Program, find_program, quote_output, run_program, translate_staging_errors
from epbuild.core.clone import copy_file
from epbuild.core.errors import BuildError, EnvironmentFailure, Problem, StepId
from epbuild.core.safepath import BadReference, check_reference, is_inside, resolve_links
from epbuild.onnxfile.edit.fix_sizes import fix_sizes
from epbuild.onnxfile.read.headers import read_header
from epbuild.onnxfile.read.model_header import ModelHeader
from epbuild.onnxfile.read.wire import MalformedModel
from epbuild.plan.preparing import Preparation, estimate_built_in_memory
from epbuild.plan.result import Measurements, PreparationResult, PreparedModel
from epbuild.toolchain.execution import REQUEST, Execution
from epbuild.toolchain.process import Ending
from epbuild.worker.scripts import RUN_COMMAND

_LARGE_MEMORY = 1_000_000_000
_DATA = "Save the weights in the model's file or in a file beside it."


def prepare(preparation: Preparation, execution: Execution) -> PreparationResult:
    """Prepare a model, check and store the prepared model, and return the result. Raises EpbuildError and Cancelled."""
    begin = time.monotonic()
    header, ending = _prepare(preparation, execution)
    measured = Measurements(round(time.monotonic() - begin, 3), {}, ending.reports[-1].get("peak_memory"))
    model = PreparedModel(_get_file_name(preparation), tuple(header.external_locations), tuple(sorted(header.subgraph_data)))
    kept = execution.keep(preparation.id, execution.staging / "out", [model.file, *model.external])
    return PreparationResult(kept.artifacts, kept.log, measured, model)


def rebuild(preparation: Preparation, execution: Execution) -> Mapping[str, Path]:
    """Prepare and check a model without storing it. Return its files by name. Raises the errors of `prepare`."""
    header, _ = _prepare(preparation, execution)
    return {name: execution.staging / "out" / name for name in (_get_file_name(preparation), *header.external_locations)}


def _describe_program(preparation: Preparation) -> Program:
    return Program(
        StepId(preparation.id),
        preparation.title,
        preparation.toolchain.name,
        preparation.command,
        preparation.timeout,
        is_built_in=preparation.script is not None,
    )


def _get_file_name(preparation: Preparation) -> str:
    return preparation.output.rpartition("/")[2]


def _prepare(preparation: Preparation, execution: Execution) -> tuple[ModelHeader, Ending]:
    """Prepare and check the model in the staging directory. Return its header and the worker's ending."""
    _check_packages(preparation, execution)
    _stage(preparation, execution)
    ending = run_program(
        _describe_program(preparation),
        execution,
        f"preparing{_describe_memory(preparation)}",
        process="preparation",
        script=preparation.script or RUN_COMMAND,
        environment=preparation.environment,
    )
    execution.release_slot()
    header = _check_prepared(preparation, execution, ending)
    execution.recheck()
    if not preparation.is_make:
        shutil.rmtree(execution.staging / "in")
    return header, ending


def _describe_memory(preparation: Preparation) -> str:
    """Return a clause about the estimated memory of a preparation, or an empty string if it is small or unknown."""
    from rich.filesize import decimal

    needed = preparation.memory or 0
    with suppress(OSError):  # the preparation reports a missing file
        needed = needed or estimate_built_in_memory(preparation) or 0
    return f", which needs an estimated {decimal(needed)} of memory" if needed >= _LARGE_MEMORY else ""


def _check_packages(preparation: Preparation, execution: Execution) -> None:
    """Raise EnvironmentFailure if the toolchain lacks a package that the built-in preparation needs."""
    there = execution.environment.fingerprint.distributions
    lacking = [name for name, providers in preparation.packages.items() if providers.isdisjoint(there)]
    if lacking:
        names = ", ".join(lacking)
        message = f"the toolchain '{preparation.toolchain.name}' has no package {names}, which '{preparation.kind}' needs"
        raise EnvironmentFailure(Problem("EPB450", message, StepId(preparation.id), "Add it to the toolchain's packages."))


def _stage(preparation: Preparation, execution: Execution) -> None:
    """Copy all files that the preparation reads, so that it never writes to a user's file."""
    staging = execution.staging
    files = {**({} if preparation.is_make else _list_source_files(preparation)), **preparation.staged}
    with translate_staging_errors(_describe_program(preparation), "the preparation"):
        (staging / "out").mkdir()
        for parent in {(staging / name).parent for name in files}:
            parent.mkdir(parents=True, exist_ok=True)
        with execution.counting(preparation.id, "copying", files.values()) as count:
            for name, path in files.items():
                staged = staging / name
                if staged.exists():
                    continue  # the same file under two spellings of its name
                if name == preparation.input and preparation.inputs:
                    with translate_size_errors(preparation.model.name, StepId(preparation.id)):
                        fix_sizes(path, staged, preparation.inputs)
                else:
                    copy_file(resolve_links(path), staged, count)
                    staged.chmod(0o644 | (path.stat().st_mode & 0o111))
        request = json.dumps(_build_request(preparation, execution), indent=1, sort_keys=True)
        (staging / REQUEST).write_text(request, encoding="utf-8")


def _list_source_files(preparation: Preparation) -> dict[str, Path]:
    """Return the files of the model that a preparation reads, by their paths in the staging directory."""
    source, folder = preparation.source, preparation.input.rpartition("/")[0]
    if source is None:
        raise TypeError(preparation.id)
    external = {f"{folder}/{location}": path for location, path in source.external.items()}
    return {preparation.input: source.graph, **external}


def _build_request(preparation: Preparation, execution: Execution) -> dict[str, Any]:
    if preparation.script is None:
        return {
            "format": REQUEST_FORMAT,
            "command": [find_program(_describe_program(preparation), execution), *preparation.command[1:]],
        }
    return {
        "format": REQUEST_FORMAT,
        "kind": preparation.kind,
        "source": preparation.input,
        "output": preparation.output,
        "options": dict(preparation.options),
        "files": {name: list(files) for name, files in preparation.option_files.items()},
        "settings": dict(preparation.settings),
    }


def _check_prepared(preparation: Preparation, execution: Execution, ending: Ending) -> ModelHeader:
    """Check the prepared model and its external data, and return the model's header. Raises BuildError."""
    folder, path = execution.staging / "out", execution.staging / preparation.output
    printed, log = quote_output(ending.tail), f"See the whole log: {execution.shown_log}."

    def wrong(what: str, hint: str = "") -> BuildError:
        message = f"'{preparation.title}' {what}{printed}"
        return BuildError(Problem("EPB457", message, StepId(preparation.id), f"{hint} {log}".strip()))

    if not path.is_file():
        others = sorted(file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file())
        instead = f"; it wrote {', '.join(others[:3])} instead" if others else ""
        hint = "Write the model to the path of ${out}." if preparation.script is None else ""
        raise wrong(f"succeeded but did not write {preparation.output}{instead}", hint)
    if path.is_symlink() or not is_inside(path, folder):
        raise wrong(f"wrote a link instead of the file {preparation.output}", "Write the model itself.")
    try:
        header = read_header(path)
    except MalformedModel as error:
        raise wrong(f"wrote an incomplete or invalid ONNX file: {error}") from error
    except OSError as error:
        raise wrong(f"wrote a model that cannot be read: {error.strerror}") from error
    if header.is_compiled:
        hint = "Do not compile the model in a preparation."
        raise wrong("wrote a model that is already compiled: it contains EPContext nodes", hint)
    if not header.outputs:
        raise wrong("wrote a model without outputs")
    for location in header.external_locations:
        try:
            check_reference(location)
        except BadReference as error:
            raise wrong(f"wrote a model with data outside its folder: {error}", _DATA) from error
        data = folder / location
        if not data.is_file():
            raise wrong(f"wrote a model without its external data {location}", _DATA)
        if not is_inside(data, folder):
            raise wrong(f"wrote a link instead of the external data {location}", _DATA)
    return header
