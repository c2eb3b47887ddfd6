"""`python peak_memory.py FILE ARGUMENTS...`: run of epbuild in this process that writes its peak memory in bytes to FILE."""

from __future__ import annotations

import resource
import sys
from pathlib import Path

from epbuild.cli.app import execute


def peak() -> int:
    """Return the peak resident memory of this process in bytes, without its child processes."""
    if sys.platform != "linux":
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most if sys.platform == "darwin" else most * 1024
    # Linux's getrusage starts with the value of the parent process. This number starts with this program.
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


if __name__ == "__main__":
    file = Path(sys.argv.pop(1))
    code = execute(sys.argv[1:])
    file.write_text(str(peak()), encoding="utf-8")
    sys.exit(code)
