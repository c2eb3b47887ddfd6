"""Other tools, installed into the workshop or part of the system."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from workshop import Unable, Workshop

_PACKAGES = {"ninja": "ninja==1.13.2", "doit": "doit==0.37.0", "scons": "scons==4.11.1", "dvc": "dvc==3.67.1"}
_SYSTEM = ("make", "sha256sum", "cp", "tar", "zstd", "curl", "nginx")


class Peers:
    """Programs by name. `missing` has the requested programs that this machine lacks."""

    def __init__(self, workshop: Workshop, *names: str) -> None:
        """Find or install the programs of these names. Raises Unable if a package cannot be installed."""
        self._programs = {name: found for name in names if name in _SYSTEM and (found := shutil.which(name))}
        self.missing = tuple(name for name in names if name in _SYSTEM and name not in self._programs)
        wanted = {name: _PACKAGES[name] for name in names if name in _PACKAGES}
        if wanted:
            scripts = _install(workshop.folder / "peers", list(wanted.values()))
            self._programs |= {name: str(scripts / f"{name}{'.exe' if os.name == 'nt' else ''}") for name in wanted}
        self._packages = wanted

    def program(self, name: str) -> str | None:
        """Return the path of a program, or None if it is missing."""
        return self._programs.get(name)

    def notes(self) -> str:
        """Return notes for readers: the installed versions and the missing programs."""
        versions = ", ".join(package.replace("==", " ") for package in self._packages.values())
        return " ".join([
            *([f"Installed versions: {versions}."] if versions else []),
            *(f"{name} is not installed on this machine." for name in self.missing),
        ])  # fmt: skip


def _install(folder: Path, packages: list[str]) -> Path:
    import uv

    interpreter = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    for command in (
        ["venv", "--no-project", "--python", sys.executable, str(folder)],
        ["pip", "install", "--no-config", "--python", str(interpreter), *packages],
    ):
        done = subprocess.run([uv.find_uv_bin(), *command], capture_output=True, text=True, encoding="utf-8", check=False)
        if done.returncode != 0:
            raise Unable(f"uv could not install {', '.join(packages)}:\n{done.stderr.strip()}")
    return interpreter.parent
