"""`epbuild wrap`: write EPContext models for a context binary of another tool."""

from __future__ import annotations

import tempfile
from pathlib import Path

from msgspec import Struct

from epbuild.catalog.catalog import entry, known_eps
from epbuild.catalog.entries import EpEntry
from epbuild.compile.describing import describe_binary
from epbuild.core.errors import ChangeRefused, Position, Problem
from epbuild.core.safepath import is_regular
from epbuild.core.shown import ProgressLines, format_path
from epbuild.onnxfile.edit.wrapping import Wrapped, wrap_binary
from epbuild.recipe.model import ToolchainSpec
from epbuild.toolchain.environment import Environment, Toolchains, list_provisioned_toolchains, list_toolchains
from epbuild.verify.live.toolchain import inspect_interpreter


class WrapRequest(Struct, frozen=True):
    """Context binary to wrap, and where to write its models."""

    binary: Path
    output: Path | None = None
    """Folder, or `.onnx` file for a single graph. None for the folder of the binary."""
    quantized_io: bool = False
    """True to keep quantized inputs and outputs as integers."""
    interpreter: Path | None = None
    """Python of the environment that reads the binary. None for the newest toolchain with the EP."""


def wrap(request: WrapRequest, lines: ProgressLines) -> Wrapped:
    """Write an EPContext model for each graph of a context binary.

    `lines` receives a notice if an environment is provisioned. Raises ChangeRefused (EPB624, EPB668), VerifyError (EPB600),
    ToolchainError and EnvironmentFailure.
    """
    if not is_regular(request.binary) or request.binary.stat().st_size == 0:
        raise ChangeRefused(Problem("EPB668", f"{format_path(request.binary)} is missing, empty or not a file"))
    ep_entry = next(found for found in map(entry, known_eps()) if found.binary.describer is not None)
    environment = _find_environment(request, ep_entry, list_toolchains(), lines)
    with tempfile.TemporaryDirectory(prefix="epbuild-wrap-", ignore_cleanup_errors=True) as folder:
        described = describe_binary(request.binary, ep_entry, environment, Path(folder))
    return wrap_binary(request.binary, described, ep_entry.sources[0], request.output, quantized_io=request.quantized_io)


def _find_environment(request: WrapRequest, ep_entry: EpEntry, toolchains: Toolchains, lines: ProgressLines) -> Environment:
    """Return the environment of the user's interpreter, or of the newest toolchain with the EP. Provision one if there is none."""
    if request.interpreter is not None:
        return inspect_interpreter(request.interpreter, [[ep_entry]], (), toolchains)[0]
    for found in list_provisioned_toolchains(toolchains.home):
        if found.has(ep_entry) and (environment := found.environment([ep_entry])) is not None:
            return environment
    packages = ep_entry.start.packages if ep_entry.start is not None else ep_entry.distributions
    lines(f"creating an environment with {', '.join(packages)}")
    spec = ToolchainSpec("wrap", Position(str(request.binary), 1, 1), packages=tuple(packages))
    return toolchains.prepare(spec, request.binary.parent, [ep_entry])
