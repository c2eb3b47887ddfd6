"""Programs that run in a toolchain: users' commands and preparations."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from epbuild.core.canonical import parse_json
from epbuild.core.clone import copy_file
from epbuild.core.errors import BuildError, EnvironmentFailure, EpbuildError, Problem, StepId
from epbuild.core.records import convert
from epbuild.core.safepath import is_inside, is_regular, open_regular, resolve_links
from epbuild.engine.events import StepStarted
from epbuild.plan.measuring import ModelMeasurement
from epbuild.plan.staged_files import PYTHON
from epbuild.plan.verification import Verification
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

T = TypeVar("T")

REQUEST_FORMAT = 1
"""Format of the requests that `worker/run.py` and the built-in preparations read."""
ENVIRONMENT = {"PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1"}
"""Variables that make runs reproducible. By default, Python salts hashes, and the order of its sets depends on hashes."""

_MAX_OUTPUT_BYTES = 1 << 20
_MAX_QUOTES = 2
_MAX_QUOTE = 400
_SHELL_SIGNALS = range(128 + 1, 128 + 65)  # a shell's exit status: 128 plus the signal that ended its last command
_TRACEBACK = "Traceback (most recent call last)"


class Program(Struct, frozen=True):
    """Program of a step, with its title for messages, the name of its toolchain, and its time limit in seconds."""

    step: StepId
    title: str
    toolchain: str
    command: tuple[str, ...]
    timeout: float | None = None
    is_built_in: bool = False
    """True for a script of epbuild, False for a user's command."""
    output_error: tuple[str, str] = ("", "")
    """Code and hint of the error for unusable files of a user's command."""
    is_on_device: bool = False
    """True if the program uses a device, which may be away. Its failures are then failures of this machine, and are not recorded."""


def make_command_program(
    action: Verification | ModelMeasurement,
    command: tuple[str, ...],
    timeout: float | None,
    output_error: tuple[str, str],
    *,
    is_on_device: bool,
) -> Program:
    """Return the program of a user's command, whose title is short."""
    title, toolchain = " ".join(word.rpartition("/")[2] for word in command[:2]), action.target.toolchain.name
    return Program(StepId(action.id), title, toolchain, command, timeout, output_error=output_error, is_on_device=is_on_device)


def run_program(
    program: Program,
    execution: Execution,
    doing: str,
    *,
    process: str = "program",
    script: Path = RUN_COMMAND,
    environment: Mapping[str, str] = MappingProxyType({}),
) -> Ending:
    """Run a program whose files are staged, and return its ending.

    `doing` is the progress text, and `process` the name of the process in errors. Raises the error of `diagnose_program` if the program
    fails, and errors of `Execution.run`.
    """
    execution.progress.report(StepStarted(program.step, doing))
    worker = Worker(process, script, program.timeout, {**ENVIRONMENT, **environment})
    ending = execution.run(worker, program.step, StepLog(program.step, execution.progress))
    error = diagnose_program(program, ending, execution.shown_log)
    if error is not None:
        raise EnvironmentFailure(*error.problems) if program.is_on_device else error
    return ending


def stage_command(program: Program, files: Mapping[str, Path], execution: Execution) -> None:
    """Write a command's request, and the files that it reads by staged name, to the staging directory. Raises OSError."""
    for name, path in files.items():
        (execution.staging / name).parent.mkdir(parents=True, exist_ok=True)
        copy_file(resolve_links(path), execution.staging / name)
    request = {"format": REQUEST_FORMAT, "command": [find_program(program, execution), *program.command[1:]]}
    (execution.staging / REQUEST).write_text(json.dumps(request), encoding="utf-8")


@contextmanager
def translate_staging_errors(program: Program, owner: str) -> Iterator[None]:
    """Raise EnvironmentFailure (EPB451) if the files of `owner` cannot be staged, such as "the metric"."""
    try:
        yield
    except OSError as error:
        message = f"the files of {owner} could not be staged: {error.strerror or error}"
        hint = "Check the space and the permissions of the recipe's folder."
        raise EnvironmentFailure(Problem("EPB451", message, program.step, hint)) from error


def is_written(path: Path, folder: Path) -> bool:
    """Return whether a command wrote a regular file in `folder`. A link to a file elsewhere does not count."""
    return is_regular(path) and is_inside(path, folder)


def read_output(
    program: Program, name: str, kind: type[T], what: str, execution: Execution, ending: Ending, check: Callable[[T], None]
) -> T:
    """Return the JSON document that a command wrote to the file `name`, as a `kind`. `what` names its content in errors.

    Raises BuildError if the file is missing, or if `check` or the type refuses it.
    """
    path = execution.staging / name
    if not is_written(path, path.parent):
        raise make_output_error(program, f"succeeded but did not write {name}", execution, ending)
    try:
        found = convert(_read_json(path), kind)
        check(found)
    except (OSError, ValueError, RecursionError) as error:
        raise make_output_error(program, f"wrote unusable {what}: {error}", execution, ending) from error
    return found


def _read_json(path: Path) -> object:
    with open_regular(path) as file:
        content = file.read(_MAX_OUTPUT_BYTES + 1)
    if len(content) > _MAX_OUTPUT_BYTES:
        raise ValueError(f"it has more than {_MAX_OUTPUT_BYTES:,} bytes")
    return parse_json(content)


def make_output_error(program: Program, what: str, execution: Execution, ending: Ending | None = None) -> BuildError:
    """Return the error for unusable files of a program. `ending` has the output to quote, if any."""
    printed, hint = quote_output(ending.tail) if ending is not None else "", f"See the whole log: {execution.shown_log}."
    code, advice = program.output_error
    return BuildError(Problem(code, f"'{program.title}' {what}{printed}", program.step, f"{advice} {hint}"))


def find_program(program: Program, execution: Execution) -> str:
    """Return the path of the program to run: the toolchain's interpreter, or a program that a package installed beside it."""
    name, interpreter = program.command[0], execution.environment.interpreter
    if name == PYTHON:
        return str(interpreter)
    found = shutil.which(name, path=str(interpreter.parent)) if Path(name).name == name else None
    if found is None:
        message = f"the toolchain '{program.toolchain}' has no program '{name}'"
        hint = f"Use 'python' for the toolchain's interpreter, or add the package that installs '{name}' to its packages."
        raise EnvironmentFailure(Problem("EPB452", message, program.step, hint))
    return found


def diagnose_program(program: Program, ending: Ending, log: str) -> EpbuildError | None:
    """Return the error of a program that failed, or None if it succeeded. `log` is the name of its log."""
    found = diagnose(ending)
    if found is None:
        return None
    step, hint, printed = program.step, f"See the whole log: {log}.", quote_output(ending.tail)
    report = found.report
    if report and report["kind"] == "error" and not program.is_built_in:
        # The exit status of a user's program.
        return _make_program_error(program, replace(ending, cause="exited", status=int(report["message"]), reports=()), log)
    title, advice = f"'{program.title}'", f"{report.get('hint') or ''} {hint}".strip()
    why = shorten_middle(found.raised or "", _MAX_QUOTE)
    match found.cause:
        case "timed out":
            message = f"{title} did not finish within {program.timeout:g} s and was stopped{printed}"
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


def _make_program_error(program: Program, ending: Ending, log: str) -> EpbuildError:
    """Return the error for the exit status of a user's program."""
    last = ending.tail[-_MAX_QUOTES:]
    found = diagnose(replace(ending, tail=last))
    cause, end = (found.cause, found.end) if found is not None else ("", "")
    step, hint = program.step, f"See the whole log: {log}."
    message = f"'{program.title}' {'ran out of memory' if cause == 'out of memory' else end}{quote_output(ending.tail)}"
    if cause in ("out of memory", "ended"):
        return EnvironmentFailure(Problem("EPB454", message, step, f"{MORE_MEMORY} {hint}"))
    if is_disk_full(last):
        return EnvironmentFailure(Problem("EPB459", message, step, f"{FREE_SPACE} {hint}"))
    return BuildError(Problem("EPB458" if _is_crash(ending.status) else "EPB455", message, step, hint))


def _is_crash(status: int) -> bool:
    """Return whether an exit status means a crash: a signal, a signal that a shell reports, or a Windows error."""
    return status < 0 or status in _SHELL_SIGNALS or status >= MIN_NTSTATUS


def quote_output(lines: Sequence[str]) -> str:
    """Return a sentence with the last lines that a program printed, or an empty string.

    If the output is a traceback, quote only its last line.
    """
    printed = [line for line in lines if line.strip()]
    if not printed:
        return ""
    is_traceback = any(_TRACEBACK in line for line in printed)
    text = printed[-1] if is_traceback else extract_last_lines(printed) or " | ".join(printed[-_MAX_QUOTES:])
    return f". It printed: {shorten_middle(' '.join(text.split()), _MAX_QUOTE)}"
