"""Runner of a user's program: `python -I run.py request.json`.

The current directory is the staging directory. Output of the request's `command` is written to standard error. Reports are written as
JSON lines to the pipe that was standard output at the start. Standard input is a lifeline: when it closes, epbuild has ended, and this
process and the program end too.
"""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
from typing import Any

if sys.platform != "win32":
    import resource

COMPILE: dict[str, Any] = runpy.run_path(os.path.join(os.path.dirname(os.path.abspath(__file__)), "compile.py"))  # noqa: PTH100, PTH118, PTH120
"""Functions of `compile.py`, beside this script: the pipe and the lifeline."""


def measure_peak_memory() -> int | None:
    """Return the peak resident memory in bytes of the program or of this process, whichever is larger, or None if it is unknown."""
    own: int | None = COMPILE["measure_peak_memory"]()
    if sys.platform == "win32" or own is None:
        return own
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    return max(own, peak if sys.platform == "darwin" else peak * 1024)


def run(command: list[str], channel: Any) -> int:
    """Run the program, report how it ended, and return the exit status of this process."""
    channel.send("started")
    try:
        # The program inherits standard output, which the channel has redirected to standard error.
        status = subprocess.run(command, stdin=subprocess.DEVNULL, check=False).returncode
    except OSError as error:
        channel.send("failed", kind="unfit", type=type(error).__name__, message=f"{command[0]}: {error.strerror or error}")
        return 1
    if status != 0:
        channel.send("failed", kind="error", type="ExitStatus", message=str(status), peak_memory=measure_peak_memory())
        return 1
    channel.send("finished", peak_memory=measure_peak_memory())
    return 0


def main(arguments: list[str]) -> int:
    channel = COMPILE["Channel"]()
    COMPILE["follow_parent"]()
    with open(arguments[0], encoding="utf-8") as file:  # noqa: PTH123 - sufficient, also for older interpreters
        request: dict[str, Any] = json.load(file)
    return run(request["command"], channel)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
