"""Test run that starts a process with a child and a frozen one, prints their process groups, and never ends."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from tests.support.clusters import Worker

_PARENT = (
    "import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']); time.sleep(600)"
)

log = Path(sys.argv[1])
begun = [Worker([sys.executable, "-c", _PARENT], log, os.environ) for _ in range(2)]
begun[1].freeze()
sys.stdout.write(f"{begun[0].process.pid} {begun[1].process.pid}\n")
sys.stdout.flush()
time.sleep(600)
