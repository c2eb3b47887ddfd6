"""Preparations: programs that make one model of another."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from epbuild.core.clone import copy_file
from epbuild.core.errors import BuildError, EnvironmentFailure, EpbuildError, Problem, StepId
from epbuild.core.safepath import BadReference, check_reference, is_inside, real_path
from epbuild.engine.events import StepStarted
from epbuild.onnxfile.edit.fix_sizes import fix_sizes
from epbuild.onnxfile.read.headers import read_header
from epbuild.onnxfile.read.model_header import ModelHeader
from epbuild.onnxfile.read.wire import MalformedModel
from epbuild.plan.preparing import PYTHON, Preparation
from epbuild.plan.result import Measurements, PreparationResult, PreparedModel
from epbuild.toolchain.diagnosis import FREE_SPACE, MORE_MEMORY, could_not_write, diagnose, last_words, shortened
from epbuild.toolchain.execution import REQUEST, Execution, StepLog, Worker
from epbuild.toolchain.process import Ending
from epbuild.worker.scripts import RUN_COMMAND

REQUEST_FORMAT = 1
_QUOTED = 2
_LONGEST_QUOTE = 400
_OF_A_SHELL = range(128 + 1, 128 + 65)  # 128 and the signal that ended the last command
_OF_WINDOWS = 0xC0000000  # where the codes of its errors begin
_TRACEBACK = "Traceback (most recent call last)"

# So that what is made does not change from run to run: sets of Python are ordered by hashes, which are salted otherwise.
_ENVIRONMENT = {"PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1"}


def prepare(preparation: Preparation, execution: Execution) -> PreparationResult:
    """Prepare a model, check and store it, and return the result. Raises EpbuildError and Cancelled."""
    begin = time.monotonic()
    header, ending = _prepare(preparation, execution)
    measured = Measurements(round(time.monotonic() - begin, 3), {}, ending.reports[-1].get("peak_memory"))
    model = PreparedModel(_name(preparation), tuple(header.external_locations), tuple(sorted(header.subgraph_data)))
    kept = execution.keep(execution.staging / "out", [model.file, *model.external])
    return PreparationResult(kept.artifacts, kept.log, measured, model)


def rebuild(preparation: Preparation, execution: Execution) -> Mapping[str, Path]:
    """Prepare and check a model, store nothing, and return its files by name. Raises what `prepare` raises."""
    header, _ = _prepare(preparation, execution)
    return {name: execution.staging / "out" / name for name in (_name(preparation), *header.external_locations)}


def _name(preparation: Preparation) -> str:
    return preparation.output.rpartition("/")[2]


def _prepare(preparation: Preparation, execution: Execution) -> tuple[ModelHeader, Ending]:
    """Leave the prepared model, checked, in the staging directory; returns its header."""
    _check_packages(preparation, execution)
    _stage(preparation, execution)
    step = StepId(preparation.id)
    execution.progress.report(StepStarted(step, "preparing"))
    environment = {**_ENVIRONMENT, **preparation.environment}
    worker = Worker("preparation", preparation.script or RUN_COMMAND, preparation.timeout, environment)
    ending = execution.run(worker, step, StepLog(step, execution.progress))
    error = _error(preparation, ending, execution.shown_log)
    if error is not None:
        raise error
    execution.compiled()
    header = _checked(preparation, execution, ending)
    execution.recheck()
    shutil.rmtree(execution.staging / "in")
    return header, ending


def _check_packages(preparation: Preparation, execution: Execution) -> None:
    """Raises EnvironmentFailure where the toolchain lacks a package that a kind of epbuild's needs."""
    there = execution.environment.fingerprint.distributions
    lacking = [name for name, bringing in preparation.packages.items() if bringing.isdisjoint(there)]
    if lacking:
        message = (
            f"the toolchain '{preparation.toolchain.name}' has no package {', '.join(lacking)}, which '{preparation.kind}' needs"
        )
        raise EnvironmentFailure(Problem("EPB450", message, StepId(preparation.id), "Add it to the toolchain's packages."))


def _stage(preparation: Preparation, execution: Execution) -> None:
    """Copy all that the preparation may see: what it writes to is then never the user's."""
    staging, source = execution.staging, preparation.source
    if source is None:
        raise TypeError(preparation.id)
    folder = preparation.input.rpartition("/")[0]
    files = {
        preparation.input: source.graph,
        **{f"{folder}/{location}": path for location, path in source.external.items()},
        **preparation.staged,
    }
    try:
        (staging / "out").mkdir()
        for parent in {(staging / name).parent for name in files}:
            parent.mkdir(parents=True, exist_ok=True)
        for name, path in files.items():
            staged = staging / name
            if staged.exists():
                continue  # one file under two spellings of its name
            if name == preparation.input and preparation.inputs:
                fix_sizes(path, staged, preparation.inputs)
            else:
                copy_file(real_path(path), staged)
                staged.chmod(0o644 | (path.stat().st_mode & 0o111))
        (staging / REQUEST).write_text(json.dumps(_request(preparation, execution), indent=1, sort_keys=True), encoding="utf-8")
    except MalformedModel as error:
        message = f"the inputs of the model '{preparation.model.name}' cannot be given their sizes: {error}"
        raise BuildError(Problem("EPB265", message, StepId(preparation.id), "Export the model again.")) from error
    except OSError as error:
        message = f"the files of the preparation could not be staged: {error.strerror or error}"
        hint = "Check the space and the permissions of the recipe's folder."
        raise EnvironmentFailure(Problem("EPB451", message, StepId(preparation.id), hint)) from error


def _request(preparation: Preparation, execution: Execution) -> dict[str, Any]:
    if preparation.script is None:
        return {"format": REQUEST_FORMAT, "command": [_program(preparation, execution), *preparation.command[1:]]}
    return {
        "format": REQUEST_FORMAT,
        "kind": preparation.kind,
        "source": preparation.input,
        "output": preparation.output,
        "options": dict(preparation.options),
        "files": {name: list(files) for name, files in preparation.option_files.items()},
        "settings": dict(preparation.settings),
    }


def _program(preparation: Preparation, execution: Execution) -> str:
    """The program of a command: the toolchain's interpreter, or what one of its packages has installed beside that."""
    name, interpreter = preparation.command[0], execution.environment.interpreter
    if name == PYTHON:
        return str(interpreter)
    found = shutil.which(name, path=str(interpreter.parent)) if Path(name).name == name else None
    if found is None:
        message = f"the toolchain '{preparation.toolchain.name}' has no program '{name}'"
        hint = f"Write 'python' for its interpreter, or add the package that installs '{name}' to its packages."
        raise EnvironmentFailure(Problem("EPB452", message, StepId(preparation.id), hint))
    return found


def _error(preparation: Preparation, ending: Ending, log: str) -> EpbuildError | None:
    found = diagnose(ending)
    if found is None:
        return None
    step, hint, printed = StepId(preparation.id), f"The whole log: {log}.", _printed(ending.tail)
    report = found.report
    if report and report["kind"] == "error" and preparation.script is None:
        # The exit status of a program of the user's.
        return _program_error(preparation, replace(ending, how="exited", status=int(report["message"]), reports=()), log)
    title, advice = f"'{preparation.title}'", f"{report.get('hint') or ''} {hint}".strip()
    why = shortened(found.raised or "", _LONGEST_QUOTE)
    match found.cause:
        case "timed out":
            message = f"{title} did not end within {preparation.timeout:g} s and was stopped{printed}"
            return BuildError(Problem("EPB453", message, step, f"Give it more time with 'timeout'. {hint}"))
        case "out of memory":
            message = f"{title} ran out of memory" + (f": {why}" if report else printed)
            return EnvironmentFailure(Problem("EPB454", message, step, f"{MORE_MEMORY} {hint}"))
        case "ended":
            return EnvironmentFailure(Problem("EPB454", f"{title} {found.end}{printed}", step, f"{MORE_MEMORY} {hint}"))
        case "crashed":  # or something in it ended the process
            return BuildError(Problem("EPB458", f"{title} {found.end}{printed}", step, hint))
        case "unfit":
            return EnvironmentFailure(Problem("EPB456", why, step, advice))
        case "cannot write":
            return EnvironmentFailure(Problem("EPB459", f"{title} failed: {why}", step, f"{FREE_SPACE} {hint}"))
    return BuildError(Problem("EPB455", f"{title} failed: {why}", step, advice))


def _program_error(preparation: Preparation, ending: Ending, log: str) -> EpbuildError:
    """The error that the ending of a program of the user's amounts to."""
    last = ending.tail[-_QUOTED:]
    found, status = diagnose(replace(ending, tail=last)), ending.status
    step, hint, printed = StepId(preparation.id), f"The whole log: {log}.", _printed(ending.tail)
    end = found.end if found is not None else ""
    if found is not None and found.cause in ("out of memory", "ended"):
        end = end if found.cause == "ended" else "ran out of memory"
        message = f"'{preparation.title}' {end}{printed}"
        return EnvironmentFailure(Problem("EPB454", message, step, f"{MORE_MEMORY} {hint}"))
    message = f"'{preparation.title}' {end}{printed}"
    if could_not_write(last):
        return EnvironmentFailure(Problem("EPB459", message, step, f"{FREE_SPACE} {hint}"))
    return BuildError(Problem("EPB458" if _is_crash(status) else "EPB455", message, step, hint))


def _is_crash(status: int) -> bool:
    """Whether a program did not end by itself: a signal did it, or a shell reports it of what it ran, or Windows did."""
    return status < 0 or status in _OF_A_SHELL or status >= _OF_WINDOWS


def _printed(lines: Sequence[str]) -> str:
    """What a program printed last, to be added to a message: of a Python traceback its last line, which has the reason."""
    printed = [line for line in lines if line.strip()]
    if not printed:
        return ""
    is_traceback = any(_TRACEBACK in line for line in printed)
    words = printed[-1] if is_traceback else last_words(printed) if last_words(printed) else " | ".join(printed[-_QUOTED:])
    return f". It printed: {shortened(' '.join(words.split()), _LONGEST_QUOTE)}"


def _checked(preparation: Preparation, execution: Execution, ending: Ending) -> ModelHeader:
    """The header of the prepared model, which is whole, and all of whose data is there. Raises BuildError otherwise."""
    folder, path = execution.staging / "out", execution.staging / preparation.output
    printed, log = _printed(ending.tail), f"The whole log: {execution.shown_log}."

    def wrong(message: str, hint: str) -> BuildError:
        return BuildError(Problem("EPB457", f"{message}{printed}", StepId(preparation.id), f"{hint} {log}".strip()))

    if not path.is_file():
        others = sorted(file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file())
        instead = f", but {', '.join(others[:3])}" if others else ""
        hint = "Write the model to the path that ${out} stands for." if preparation.script is None else ""
        raise wrong(f"'{preparation.title}' ended well and left no {preparation.output}{instead}", hint)
    if path.is_symlink() or not is_inside(path, folder):
        raise wrong(f"'{preparation.title}' left a link in place of {preparation.output}", "Write the model itself.")
    try:
        header = read_header(path)
    except MalformedModel as error:
        raise wrong(f"'{preparation.title}' left what is not a whole ONNX file: {error}", "") from error
    except OSError as error:
        raise wrong(f"'{preparation.title}' left a model that cannot be read: {error.strerror}", "") from error
    if header.is_compiled:
        hint = "Leave compiling to the steps that follow."
        raise wrong(f"'{preparation.title}' left a model that is already compiled: it holds EPContext nodes", hint)
    if not header.outputs:
        raise wrong(f"'{preparation.title}' left a model without outputs", "")
    for location in header.external_locations:
        try:
            check_reference(location)
        except BadReference as error:
            raise wrong(f"'{preparation.title}' left a model with data outside its folder: {error}", _DATA) from error
        data = folder / location
        if not data.is_file():
            raise wrong(f"'{preparation.title}' left a model without its external data {location}", _DATA)
        if not is_inside(data, folder):
            raise wrong(f"'{preparation.title}' left a link in place of the external data {location}", _DATA)
    return header


_DATA = "Save the model with its weights, in it or in a file beside it."
