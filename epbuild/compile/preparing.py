"""Runs of preparations: programs that convert a model into another model."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from epbuild.compile.failure import make_size_error
from epbuild.core.clone import copy_file
from epbuild.core.errors import BuildError, EnvironmentFailure, EpbuildError, Problem, StepId
from epbuild.core.safepath import BadReference, check_reference, is_inside, resolve_links
from epbuild.engine.events import StepStarted
from epbuild.onnxfile.edit.fix_sizes import fix_sizes
from epbuild.onnxfile.read.headers import read_header
from epbuild.onnxfile.read.model_header import ModelHeader
from epbuild.onnxfile.read.wire import MalformedModel
from epbuild.plan.preparing import PYTHON, Preparation, estimate_built_in_memory
from epbuild.plan.result import Measurements, PreparationResult, PreparedModel
from epbuild.toolchain.diagnosis import (
    FREE_SPACE,
    MIN_NTSTATUS,
    MORE_MEMORY,
    diagnose,
    extract_last_lines,
    is_disk_full,
    shorten_middle,
)
from epbuild.toolchain.execution import REQUEST, Execution, StepLog, Worker
from epbuild.toolchain.process import Ending
from epbuild.worker.scripts import RUN_COMMAND

REQUEST_FORMAT = 1
_MAX_QUOTES = 2
_MAX_QUOTE = 400
_SHELL_SIGNALS = range(128 + 1, 128 + 65)  # a shell's exit status: 128 plus the signal that ended its last command
_LARGE_MEMORY = 1_000_000_000
_TRACEBACK = "Traceback (most recent call last)"
_DATA = "Save the weights in the model's file or in a file beside it."

# These make runs reproducible. By default, Python salts hashes, and the order of its sets depends on hashes.
_ENVIRONMENT = {"PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1"}


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


def _get_file_name(preparation: Preparation) -> str:
    return preparation.output.rpartition("/")[2]


def _prepare(preparation: Preparation, execution: Execution) -> tuple[ModelHeader, Ending]:
    """Prepare and check the model in the staging directory. Return its header and the worker's ending."""
    _check_packages(preparation, execution)
    _stage(preparation, execution)
    step = StepId(preparation.id)
    execution.progress.report(StepStarted(step, f"preparing{_describe_memory(preparation)}"))
    environment = {**_ENVIRONMENT, **preparation.environment}
    worker = Worker("preparation", preparation.script or RUN_COMMAND, preparation.timeout, environment)
    ending = execution.run(worker, step, StepLog(step, execution.progress))
    error = _diagnose(preparation, ending, execution.shown_log)
    if error is not None:
        raise error
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
        message = (
            f"the toolchain '{preparation.toolchain.name}' has no package {', '.join(lacking)}, which '{preparation.kind}' needs"
        )
        raise EnvironmentFailure(Problem("EPB450", message, StepId(preparation.id), "Add it to the toolchain's packages."))


def _stage(preparation: Preparation, execution: Execution) -> None:
    """Copy all files that the preparation reads, so that it never writes to a user's file."""
    staging = execution.staging
    files = {**({} if preparation.is_make else _list_source_files(preparation)), **preparation.staged}
    try:
        (staging / "out").mkdir()
        for parent in {(staging / name).parent for name in files}:
            parent.mkdir(parents=True, exist_ok=True)
        with execution.counting(preparation.id, "copying", files.values()) as count:
            for name, path in files.items():
                staged = staging / name
                if staged.exists():
                    continue  # the same file under two spellings of its name
                if name == preparation.input and preparation.inputs:
                    fix_sizes(path, staged, preparation.inputs)
                else:
                    copy_file(resolve_links(path), staged, count)
                    staged.chmod(0o644 | (path.stat().st_mode & 0o111))
        (staging / REQUEST).write_text(
            json.dumps(_build_request(preparation, execution), indent=1, sort_keys=True), encoding="utf-8"
        )
    except MalformedModel as error:
        raise make_size_error(preparation.model.name, error, StepId(preparation.id)) from error
    except OSError as error:
        message = f"the files of the preparation could not be staged: {error.strerror or error}"
        hint = "Check the space and the permissions of the recipe's folder."
        raise EnvironmentFailure(Problem("EPB451", message, StepId(preparation.id), hint)) from error


def _list_source_files(preparation: Preparation) -> dict[str, Path]:
    """Return the files of the model that a preparation reads, by their paths in the staging directory."""
    source, folder = preparation.source, preparation.input.rpartition("/")[0]
    if source is None:
        raise TypeError(preparation.id)
    external = {f"{folder}/{location}": path for location, path in source.external.items()}
    return {preparation.input: source.graph, **external}


def _build_request(preparation: Preparation, execution: Execution) -> dict[str, Any]:
    if preparation.script is None:
        return {"format": REQUEST_FORMAT, "command": [_find_program(preparation, execution), *preparation.command[1:]]}
    return {
        "format": REQUEST_FORMAT,
        "kind": preparation.kind,
        "source": preparation.input,
        "output": preparation.output,
        "options": dict(preparation.options),
        "files": {name: list(files) for name, files in preparation.option_files.items()},
        "settings": dict(preparation.settings),
    }


def _find_program(preparation: Preparation, execution: Execution) -> str:
    """Return the path of the program to run: the toolchain's interpreter, or a program that a package installed beside it."""
    name, interpreter = preparation.command[0], execution.environment.interpreter
    if name == PYTHON:
        return str(interpreter)
    found = shutil.which(name, path=str(interpreter.parent)) if Path(name).name == name else None
    if found is None:
        message = f"the toolchain '{preparation.toolchain.name}' has no program '{name}'"
        hint = f"Use 'python' for the toolchain's interpreter, or add the package that installs '{name}' to its packages."
        raise EnvironmentFailure(Problem("EPB452", message, StepId(preparation.id), hint))
    return found


def _diagnose(preparation: Preparation, ending: Ending, log: str) -> EpbuildError | None:
    found = diagnose(ending)
    if found is None:
        return None
    step, hint, printed = StepId(preparation.id), f"See the whole log: {log}.", _quote_output(ending.tail)
    report = found.report
    if report and report["kind"] == "error" and preparation.script is None:
        # The exit status of a user's program.
        return _make_program_error(preparation, replace(ending, cause="exited", status=int(report["message"]), reports=()), log)
    title, advice = f"'{preparation.title}'", f"{report.get('hint') or ''} {hint}".strip()
    why = shorten_middle(found.raised or "", _MAX_QUOTE)
    match found.cause:
        case "timed out":
            message = f"{title} did not finish within {preparation.timeout:g} s and was stopped{printed}"
            return BuildError(Problem("EPB453", message, step, f"Increase its 'timeout'. {hint}"))
        case "out of memory":
            message = f"{title} ran out of memory" + (f": {why}" if report else printed)
            return EnvironmentFailure(Problem("EPB454", message, step, f"{MORE_MEMORY} {hint}"))
        case "ended":
            return EnvironmentFailure(Problem("EPB454", f"{title} {found.end}{printed}", step, f"{MORE_MEMORY} {hint}"))
        case "crashed":  # or its own code ended the process
            return BuildError(Problem("EPB458", f"{title} {found.end}{printed}", step, hint))
        case "unfit":
            return EnvironmentFailure(Problem("EPB456", why, step, advice))
        case "cannot write":
            return EnvironmentFailure(Problem("EPB459", f"{title} failed: {why}", step, f"{FREE_SPACE} {hint}"))
    return BuildError(Problem("EPB455", f"{title} failed: {why}", step, advice))


def _make_program_error(preparation: Preparation, ending: Ending, log: str) -> EpbuildError:
    """Return the error for the exit status of a user's program."""
    last = ending.tail[-_MAX_QUOTES:]
    found = diagnose(replace(ending, tail=last))
    cause, end = (found.cause, found.end) if found is not None else ("", "")
    step, hint = StepId(preparation.id), f"See the whole log: {log}."
    message = f"'{preparation.title}' {'ran out of memory' if cause == 'out of memory' else end}{_quote_output(ending.tail)}"
    if cause in ("out of memory", "ended"):
        return EnvironmentFailure(Problem("EPB454", message, step, f"{MORE_MEMORY} {hint}"))
    if is_disk_full(last):
        return EnvironmentFailure(Problem("EPB459", message, step, f"{FREE_SPACE} {hint}"))
    return BuildError(Problem("EPB458" if _is_crash(ending.status) else "EPB455", message, step, hint))


def _is_crash(status: int) -> bool:
    """Return whether an exit status means a crash: a signal, a signal that a shell reports, or a Windows error."""
    return status < 0 or status in _SHELL_SIGNALS or status >= MIN_NTSTATUS


def _quote_output(lines: Sequence[str]) -> str:
    """Return a sentence with the last lines that a program printed, or an empty string.

    If the output is a traceback, quote only its last line.
    """
    printed = [line for line in lines if line.strip()]
    if not printed:
        return ""
    is_traceback = any(_TRACEBACK in line for line in printed)
    text = printed[-1] if is_traceback else extract_last_lines(printed) or " | ".join(printed[-_MAX_QUOTES:])
    return f". It printed: {shorten_middle(' '.join(text.split()), _MAX_QUOTE)}"


def _check_prepared(preparation: Preparation, execution: Execution, ending: Ending) -> ModelHeader:
    """Check the prepared model and its external data, and return the model's header. Raises BuildError."""
    folder, path = execution.staging / "out", execution.staging / preparation.output
    printed, log = _quote_output(ending.tail), f"See the whole log: {execution.shown_log}."

    def wrong(message: str, hint: str) -> BuildError:
        return BuildError(Problem("EPB457", f"{message}{printed}", StepId(preparation.id), f"{hint} {log}".strip()))

    if not path.is_file():
        others = sorted(file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file())
        instead = f"; it wrote {', '.join(others[:3])} instead" if others else ""
        hint = "Write the model to the path of ${out}." if preparation.script is None else ""
        raise wrong(f"'{preparation.title}' succeeded but did not write {preparation.output}{instead}", hint)
    if path.is_symlink() or not is_inside(path, folder):
        raise wrong(f"'{preparation.title}' wrote a link instead of the file {preparation.output}", "Write the model itself.")
    try:
        header = read_header(path)
    except MalformedModel as error:
        raise wrong(f"'{preparation.title}' wrote an incomplete or invalid ONNX file: {error}", "") from error
    except OSError as error:
        raise wrong(f"'{preparation.title}' wrote a model that cannot be read: {error.strerror}", "") from error
    if header.is_compiled:
        hint = "Do not compile the model in a preparation."
        raise wrong(f"'{preparation.title}' wrote a model that is already compiled: it contains EPContext nodes", hint)
    if not header.outputs:
        raise wrong(f"'{preparation.title}' wrote a model without outputs", "")
    for location in header.external_locations:
        try:
            check_reference(location)
        except BadReference as error:
            raise wrong(f"'{preparation.title}' wrote a model with data outside its folder: {error}", _DATA) from error
        data = folder / location
        if not data.is_file():
            raise wrong(f"'{preparation.title}' wrote a model without its external data {location}", _DATA)
        if not is_inside(data, folder):
            raise wrong(f"'{preparation.title}' wrote a link instead of the external data {location}", _DATA)
    return header
