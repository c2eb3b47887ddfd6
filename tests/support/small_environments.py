"""Small virtual environments with packages that are only folders, made without pip and without a network."""

from __future__ import annotations

import os
import sys
import venv
import zipfile
from pathlib import Path

PYTHON = f"python{sys.version_info[0]}.{sys.version_info[1]}"
posix_only = "a script stands for the interpreter here, and Windows runs no scripts by path"


def make_environment(folder: Path) -> Path:
    """An empty environment; returns its interpreter."""
    venv.EnvBuilder(with_pip=False, symlinks=os.name != "nt").create(folder)
    return folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def site_of(interpreter: Path) -> Path:
    """Where the environment's packages lie."""
    environment = interpreter.parent.parent
    return environment / ("Lib/site-packages" if os.name == "nt" else f"lib/{PYTHON}/site-packages")


def install(interpreter: Path, distribution: str, version: str, libraries: dict[str, bytes]) -> None:
    """A package as an installer leaves it: metadata, and files by their paths below the site folder."""
    site = site_of(interpreter)
    metadata = site / f"{distribution.replace('-', '_')}-{version}.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text(_metadata(distribution, version), encoding="utf-8")
    for name, content in libraries.items():
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).write_bytes(content)


def write_wheel(folder: Path, distribution: str, version: str, files: dict[str, bytes], requires: tuple[str, ...] = ()) -> Path:
    """A wheel that an installer takes from disk."""
    stem = f"{distribution.replace('-', '_')}-{version}"
    path = folder / f"{stem}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for name, content in files.items():
            wheel.writestr(name, content)
        needs = "".join(f"Requires-Dist: {requirement}\n" for requirement in requires)
        wheel.writestr(f"{stem}.dist-info/METADATA", _metadata(distribution, version) + needs)
        wheel.writestr(
            f"{stem}.dist-info/WHEEL", "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{stem}.dist-info/RECORD", "".join(f"{name},,\n" for name in files))
    return path


def write_script(path: Path, text: str) -> Path:
    """A file that can be started, which is no Python."""
    path.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
    path.chmod(0o755)
    return path


def _metadata(distribution: str, version: str) -> str:
    return f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n"
