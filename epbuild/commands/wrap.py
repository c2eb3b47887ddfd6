"""`epbuild wrap`: write EPContext models for a context binary of another tool."""

from __future__ import annotations

import tempfile
from pathlib import Path

from epbuild.catalog.catalog import entry, known_eps
from epbuild.catalog.entries import EpEntry
from epbuild.compile.describing import describe_binary
from epbuild.core.errors import ChangeRefused, Position, Problem
from epbuild.core.safepath import is_regular
from epbuild.core.shown import ProgressLines, format_path
from epbuild.onnxfile.edit.wrapping import Wrapped, wrap_binary
from epbuild.recipe.model import ToolchainSpec
from epbuild.toolchain.environment import Environment, list_provisioned_toolchains, list_toolchains
from epbuild.verify.live.toolchain import inspect_interpreter


def wrap(
    binary: Path, output: Path | None, interpreter: Path | None, lines: ProgressLines, *, quantized_io: bool = False
) -> Wrapped:
    """Write an EPContext model for each graph of a context binary.

    `output` is a folder, or an `.onnx` file for a single graph, or None for the folder of the binary. `interpreter` is the Python of
    the environment that reads the binary, or None for the newest toolchain with the EP. If `quantized_io` is set, quantized inputs and
    outputs stay integers. `lines` receives a notice if an environment is provisioned.

    Raises ChangeRefused (EPB624, EPB668), VerifyError (EPB600), ToolchainError and EnvironmentFailure.
    """
    if not is_regular(binary) or binary.stat().st_size == 0:
        raise ChangeRefused(Problem("EPB668", f"{format_path(binary)} is missing, empty or not a file"))
    ep_entry = next(found for found in map(entry, known_eps()) if found.binary.describer is not None)
    environment = _find_environment(binary, interpreter, ep_entry, lines)
    with tempfile.TemporaryDirectory(prefix="epbuild-wrap-", ignore_cleanup_errors=True) as folder:
        described = describe_binary(binary, ep_entry, environment, Path(folder))
    return wrap_binary(binary, described, ep_entry.sources[0], output, quantized_io=quantized_io)


def _find_environment(binary: Path, interpreter: Path | None, ep_entry: EpEntry, lines: ProgressLines) -> Environment:
    """Return the environment of the user's interpreter, or of the newest toolchain with the EP. Provision one if there is none."""
    toolchains = list_toolchains()
    if interpreter is not None:
        return inspect_interpreter(interpreter, [[ep_entry]], (), toolchains)[0]
    for found in list_provisioned_toolchains(toolchains.home):
        if found.has(ep_entry) and (environment := found.environment([ep_entry])) is not None:
            return environment
    packages = ep_entry.start.packages if ep_entry.start is not None else ep_entry.distributions
    lines(f"creating an environment with {', '.join(packages)}")
    spec = ToolchainSpec("wrap", Position(str(binary), 1, 1), packages=tuple(packages))
    return toolchains.prepare(spec, binary.parent, [ep_entry])
