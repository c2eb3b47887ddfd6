"""Runs of compiled models by a user's command, such as on a phone."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from epbuild.compile.model_runs import stage_model
from epbuild.compile.program import (
    Program,
    is_written,
    make_command_program,
    make_output_error,
    run_program,
    stage_command,
    translate_staging_errors,
)
from epbuild.core.safepath import open_regular
from epbuild.plan.measuring import FACTS
from epbuild.plan.verification import (
    COMMAND_INPUT,
    RUN_OUTPUT,
    CheckedMember,
    StagedCommand,
    Verification,
    build_check_facts,
)
from epbuild.toolchain.execution import Execution
from epbuild.verify.live.inputs import write_arrays, write_named_arrays
from epbuild.verify.live.worker import Feed

if TYPE_CHECKING:
    import numpy as np

T = TypeVar("T")

_DEVICE = f"{RUN_OUTPUT}/device.txt"
_MAX_DEVICE = 200
_OUTPUT_ERROR = "EPB461", "Write the files to the folder ${out}, as documented."
_MAX_BYTES = 1 << 32  # a small archive can expand to much more than memory holds


def run_by_command(
    action: Verification, checked: CheckedMember, feeds: Sequence[Feed], execution: Execution
) -> tuple[str, tuple[str, ...]]:
    """Run a member's command on all inputs, and write the outputs of each feed. Return the device and the names of the outputs.

    Raises EnvironmentFailure if the command fails, BuildError if its files are unusable, and Cancelled.
    """
    command = checked.runner or StagedCommand()
    program = make_command_program(action, command.words, action.timeout, _OUTPUT_ERROR, is_on_device=True)
    names = tuple(value.name for value in action.compiled_of(checked).compiled.model(checked.name).source.outputs)
    _stage(action, checked, command, program, feeds, execution)
    ending = run_program(program, execution, f"running {checked.name} with the command")

    def read(name: str, parse: Callable[[Path], T]) -> T:
        try:
            return parse(_find_output(execution.staging, name))
        except Exception as error:  # NumPy and zipfile raise errors of many types for damaged files
            what = f"wrote an unusable {name}: {error or type(error).__name__}"
            raise make_output_error(program, what, execution, ending) from error

    device = read(_DEVICE, _read_device)
    for number, feed in enumerate(feeds):
        arrays = read(f"{RUN_OUTPUT}/{number:05}.npz", partial(_read_outputs, names=names))
        write_arrays(feed.outputs, {f"arr_{index}": array for index, array in enumerate(arrays)})
    return device, names


def _stage(
    action: Verification,
    checked: CheckedMember,
    command: StagedCommand,
    program: Program,
    feeds: Sequence[Feed],
    execution: Execution,
) -> None:
    """Write the compiled model, its description, the inputs and the recipe's files to the staging directory."""
    place = execution.staging / COMMAND_INPUT
    with translate_staging_errors(program, "the command"):
        (execution.staging / RUN_OUTPUT).mkdir(parents=True)
        stage_model(action.compiled_of(checked).compiled, checked.name, place / "model", execution.store)
        for number, feed in enumerate(feeds):
            write_named_arrays(place / "inputs" / f"{number:05}.npz", feed.file, feed.names)
        (place / FACTS).write_text(json.dumps(build_check_facts(action, checked), indent=1), encoding="utf-8")
        stage_command(program, command.files, execution)


def _find_output(staging: Path, name: str) -> Path:
    """Return the path of a file that the command wrote. Raises OSError if it is missing or not a regular file."""
    path = staging / name
    if not is_written(path, staging / RUN_OUTPUT):
        raise OSError("it is missing or not a regular file")
    return path


def _read_device(path: Path) -> str:
    with open_regular(path) as file:
        device = file.read(4 * _MAX_DEVICE + 1).decode().strip()
    if not device or len(device) > _MAX_DEVICE or not device.isprintable():
        raise ValueError(f"expected the name of the device, with at most {_MAX_DEVICE} characters")
    return device


def _read_outputs(path: Path, names: Sequence[str]) -> list[np.ndarray[Any, Any]]:
    """Return the named arrays of a file, in the order of `names`. Raises errors of many types if the file is unusable."""
    import numpy as np

    with open_regular(path) as file:
        with zipfile.ZipFile(file) as archive:
            if sum(info.file_size for info in archive.infolist()) > _MAX_BYTES:
                raise ValueError(f"it expands to more than {_MAX_BYTES:,} bytes")
        file.seek(0)
        with np.load(file, allow_pickle=False) as arrays:
            missing = [name for name in names if name not in arrays.files]
            if missing:
                raise ValueError(f"it lacks the output '{missing[0]}'")
            return [arrays[name] for name in names]
