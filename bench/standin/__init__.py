"""Toolchain that compiles nothing, to measure the costs of epbuild itself in recipes with thousands of steps."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

_RUNTIME = Path(__file__).with_name("runtime.py")
_MODULES = {
    "onnxruntime": _RUNTIME.read_text(encoding="utf-8"),
    "onnxruntime_qnn": 'def get_library_path():\n    return "none"\n',
}


_RELEASES = {"onnxruntime": "1.31.1", "onnxruntime_qnn": "2.7.0"}
PACKAGES = tuple(f"{module.replace('_', '-')}=={version}" for module, version in _RELEASES.items())
"""Requirements of a recipe whose stand-in comes from `make_wheels`. The catalog supports these releases."""
SECONDS = "STANDIN_SECONDS"
"""Environment variable with the seconds that the stand-in takes for a model. The default is 0."""


def make_wheels(folder: Path) -> Path:
    """Write the stand-in as wheels into `folder`. Any machine can install a toolchain from them."""
    folder.mkdir()
    for module, code in _MODULES.items():
        release = _RELEASES[module]
        information = f"{module}-{release}.dist-info"
        files = {
            f"{module}/__init__.py": code,
            f"{information}/METADATA": f"Metadata-Version: 2.1\nName: {module.replace('_', '-')}\nVersion: {release}\n",
            f"{information}/WHEEL": "Wheel-Version: 1.0\nGenerator: bench\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        }
        record = "".join(f"{name},,\n" for name in (*files, f"{information}/RECORD"))
        with zipfile.ZipFile(folder / f"{module}-{release}-py3-none-any.whl", "w") as wheel:
            for name, text in {**files, f"{information}/RECORD": record}.items():
                wheel.writestr(name, text)
    return folder


def make_toolchain(folder: Path) -> Path:
    """Create a virtual environment with the stand-in in `folder`, and return its interpreter."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    paths = sysconfig.get_paths("venv", {"base": str(folder), "platbase": str(folder)})
    site = Path(paths["purelib"])
    for module, code in _MODULES.items():
        (site / module).mkdir()
        (site / module / "__init__.py").write_text(code, encoding="utf-8")
        metadata = site / f"{module}-1.0.0.dist-info"
        metadata.mkdir()
        name = module.replace("_", "-")
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0.0\n", encoding="utf-8")
    return Path(paths["scripts"]) / ("python.exe" if os.name == "nt" else "python")
