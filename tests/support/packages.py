"""Small virtual environments and wheels, created without pip and without a network."""

from __future__ import annotations

import os
import sys
import venv
import zipfile
from collections.abc import Mapping
from pathlib import Path

PYTHON = f"python{sys.version_info[0]}.{sys.version_info[1]}"
posix_only = "a script stands for the interpreter here, and Windows runs no scripts by path"


def make_environment(folder: Path) -> Path:
    """Create an empty environment, and return its interpreter."""
    venv.EnvBuilder(with_pip=False, symlinks=os.name != "nt").create(folder)
    return folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def site_of(interpreter: Path) -> Path:
    """Return the site folder of the environment."""
    environment = interpreter.parent.parent
    return environment / ("Lib/site-packages" if os.name == "nt" else f"lib/{PYTHON}/site-packages")


def install(interpreter: Path, distribution: str, version: str, libraries: dict[str, bytes]) -> None:
    """Install a package as an installer does: metadata, and files by their paths below the site folder."""
    site = site_of(interpreter)
    metadata = site / f"{distribution.replace('-', '_')}-{version}.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text(_metadata(distribution, version), encoding="utf-8")
    for name, content in libraries.items():
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).write_bytes(content)


def write_wheel(
    folder: Path,
    distribution: str,
    version: str,
    *requires: str,
    files: Mapping[str, bytes] | None = None,
    tag: str = "py3-none-any",
) -> Path:
    """Write a wheel with one empty module and the given `files`. Its bytes are always the same."""
    folder.mkdir(parents=True, exist_ok=True)
    module = distribution.replace("-", "_")
    path = folder / f"{module}-{version}-{tag}.whl"
    needs = "".join(f"Requires-Dist: {requirement}\n" for requirement in requires)
    content: dict[str, str | bytes] = {
        f"{module}/__init__.py": f"__version__ = '{version}'\n",
        **(files or {}),
        f"{module}-{version}.dist-info/METADATA": f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n{needs}",
        f"{module}-{version}.dist-info/WHEEL": f"Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: {tag}\n",
    }
    record = "".join(f"{name},,\n" for name in [*content, f"{module}-{version}.dist-info/RECORD"])
    with zipfile.ZipFile(path, "w") as wheel:
        for name, text in {**content, f"{module}-{version}.dist-info/RECORD": record}.items():
            wheel.writestr(zipfile.ZipInfo(name), text)
    return path


def only_from(wheels: Path, cache: Path) -> dict[str, str]:
    """Return the environment variables with which uv installs from one folder."""
    return {"UV_OFFLINE": "1", "UV_CACHE_DIR": str(cache), "UV_FIND_LINKS": str(wheels)}


def write_script(path: Path, text: str) -> Path:
    """Write an executable script that is not Python."""
    path.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
    path.chmod(0o755)
    return path


def _metadata(distribution: str, version: str) -> str:
    return f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n"
