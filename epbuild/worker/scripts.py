"""Paths of the scripts that run inside a toolchain.

epbuild imports this module and `patterns`, and no other module of this package.
"""

from pathlib import Path

_FOLDER = Path(__file__).parent
COMPILE = _FOLDER / "compile.py"
DESCRIBE = _FOLDER / "describe.py"
PATTERNS = _FOLDER / "patterns.py"
LOAD = _FOLDER / "load.py"
PREPARATIONS = _FOLDER / "preparations"
PROBE = _FOLDER / "probe.py"
RUN_COMMAND = _FOLDER / "run.py"
