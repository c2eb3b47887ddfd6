"""Paths of the scripts that run inside a toolchain.

No other module of this package is imported.
"""

from pathlib import Path

_FOLDER = Path(__file__).parent
COMPILE = _FOLDER / "compile.py"
LOAD = _FOLDER / "load.py"
PREPARATIONS = _FOLDER / "preparations"
PROBE = _FOLDER / "probe.py"
RUN_COMMAND = _FOLDER / "run.py"
