"""Wheels for an installer that has nothing else: no network, and nothing that it kept."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path


def write_wheel(
    folder: Path,
    distribution: str,
    version: str,
    *requires: str,
    files: Mapping[str, bytes] | None = None,
    tag: str = "py3-none-any",
) -> Path:
    """A wheel with one module that does nothing, and such `files`; the same bytes whenever it is written."""
    folder.mkdir(parents=True, exist_ok=True)
    module = distribution.replace("-", "_")
    path = folder / f"{module}-{version}-{tag}.whl"
    needs = "".join(f"Requires-Dist: {requirement}\n" for requirement in requires)
    content: dict[str, str | bytes] = {
        **(files or {}),
        f"{module}/__init__.py": f"__version__ = '{version}'\n",
        f"{module}-{version}.dist-info/METADATA": f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n{needs}",
        f"{module}-{version}.dist-info/WHEEL": f"Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: {tag}\n",
    }
    record = "".join(f"{name},,\n" for name in [*content, f"{module}-{version}.dist-info/RECORD"])
    with zipfile.ZipFile(path, "w") as wheel:
        for name, text in {**content, f"{module}-{version}.dist-info/RECORD": record}.items():
            wheel.writestr(zipfile.ZipInfo(name), text)
    return path


def only_from(wheels: Path, cache: Path) -> dict[str, str]:
    """The environment of an uv that installs from one folder."""
    return {"UV_OFFLINE": "1", "UV_CACHE_DIR": str(cache), "UV_FIND_LINKS": str(wheels)}
