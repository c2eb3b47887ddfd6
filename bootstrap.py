"""Setup of the project's environment, and a command in it: `python bootstrap.py epbuild run recipes/quickstart.yaml`.

The only requirement is Python 3.11 or newer. The environment is `.venv` beside this file. The script creates it on first use,
and updates it after each change of pyproject.toml or constraints.txt. The versions are those of constraints.txt.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent
ENVIRONMENT = ROOT / ".venv"
PROGRAMS = ENVIRONMENT / ("Scripts" if os.name == "nt" else "bin")
STAMP = ENVIRONMENT / "installed"
CONSTRAINTS = ROOT / "constraints.txt"
OLDEST = (3, 11)


def main(command: list[str]) -> int:
    """Run `command` in the environment, and return its exit code."""
    if sys.version_info < OLDEST:
        return _fail(f"epbuild needs Python {OLDEST[0]}.{OLDEST[1]} or newer; this is {sys.version.split()[0]}")
    if not command:
        return _fail(f"usage: {Path(sys.argv[0]).name} COMMAND [ARGUMENT]..., such as `epbuild --help` or `pytest`")
    wanted = hashlib.sha256((ROOT / "pyproject.toml").read_bytes() + CONSTRAINTS.read_bytes()).hexdigest()
    if not STAMP.is_file() or STAMP.read_text(encoding="utf-8") != wanted:
        failure = _install()
        if failure:
            return _fail(failure)
        STAMP.write_text(wanted, encoding="utf-8")
    program = PROGRAMS / (f"{command[0]}.exe" if os.name == "nt" else command[0])
    if not program.exists():
        return _fail(f"the environment has no program '{command[0]}'; it has, among others: epbuild, pytest, ruff, mypy")
    arguments = [str(program), *command[1:]]
    environment = {**os.environ, "VIRTUAL_ENV": str(ENVIRONMENT), "PATH": f"{PROGRAMS}{os.pathsep}{os.environ.get('PATH', '')}"}
    if os.name == "nt":
        return subprocess.run(arguments, env=environment, check=False).returncode
    # Replace this process, so that signals reach the command itself.
    return os.execve(arguments[0], arguments, environment)  # noqa: S606


def _install() -> str | None:
    """Create or update the environment. Return a message if that fails, else None."""
    sys.stderr.write("setting up .venv, once (about half a minute) ...\n")
    python = PROGRAMS / ("python.exe" if os.name == "nt" else "python")
    pinned = ["--quiet", "--constraint", str(CONSTRAINTS)]
    steps = (
        [sys.executable, "-m", "venv", str(ENVIRONMENT)],
        [str(python), "-m", "pip", "install", "--disable-pip-version-check", *pinned, "uv"],
        # uv takes a quarter of the time that pip takes.
        [str(python), "-m", "uv", "pip", "install", "--python", str(python), *pinned, "--editable", f"{ROOT}[test]"],
    )
    for step in steps:
        done = subprocess.run(step, capture_output=True, text=True, encoding="utf-8", errors="replace", check=False)
        if done.returncode != 0:
            said = (done.stderr.strip() or done.stdout.strip()).splitlines()[-5:]
            return f"`{' '.join(step[1:4])}` failed:\n  " + "\n  ".join(said)
    return None


def _fail(message: str) -> int:
    sys.stderr.write(f"bootstrap: {message}\n")
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
