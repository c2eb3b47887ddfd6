"""Descriptions of context binaries.

The EP's own library reads them in a process of the toolchain, because a damaged binary may crash the library.
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import msgspec

from epbuild.catalog.entries import EpEntry
from epbuild.core.errors import ChangeRefused, Problem
from epbuild.core.records import convert
from epbuild.core.shown import format_path
from epbuild.onnxfile.edit.wrapping import ContextDescription
from epbuild.toolchain.diagnosis import diagnose
from epbuild.toolchain.environment import Environment
from epbuild.toolchain.execution import Worker, run_script
from epbuild.worker.scripts import DESCRIBE

_SECONDS = 600.0


def describe_binary(binary: Path, entry: EpEntry, environment: Environment, scratch: Path) -> ContextDescription:
    """Return the description of a context binary by the EP's own library.

    `scratch` is an empty folder. Raises ChangeRefused (EPB668) for a file that the library does not read, and EnvironmentFailure.
    """
    package = " ".join(f"{name} {environment.fingerprint.distributions.get(name, '')}" for name in entry.distributions)
    describer = entry.binary.describer
    library = describer.find_library(sys.platform) if describer is not None else None
    if describer is None or library is None:
        raise ChangeRefused(Problem("EPB668", f"{package.strip()} cannot describe context binaries on this operating system"))
    request = {
        "here": {"eps": []},
        "eps": [],
        "module": entry.module,
        "library": library,
        "function": describer.function,
        "binary": str(binary.absolute()),
    }
    worker = Worker("process that reads the context binary", DESCRIBE, _SECONDS)
    ending = run_script(worker, environment, scratch, request, threading.Event())
    found = diagnose(ending, [entry])
    if found is not None:
        reason = found.raised or f"the process that reads it {found.end}"
        message = f"{package.strip()} does not read {format_path(binary)} as a context binary: {reason}"
        hint = "Check the file. To read a binary of a newer SDK, name a Python with a newer package with --interpreter."
        raise ChangeRefused(Problem("EPB668", message, None, hint))
    try:
        return convert(next(report for report in ending.reports if report["event"] == "described"), ContextDescription)
    except (StopIteration, msgspec.ValidationError) as error:
        message = f"{package.strip()} describes {format_path(binary)} in an unknown way: {error}"
        raise ChangeRefused(Problem("EPB668", message)) from error
