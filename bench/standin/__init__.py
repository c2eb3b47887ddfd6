"""A toolchain that compiles nothing: for measuring what epbuild itself costs when a recipe has thousands of steps."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

_RUNTIME = Path(__file__).with_name("runtime.py")
_MODULES = {
    "onnxruntime": _RUNTIME.read_text(encoding="utf-8"),
    "onnxruntime_qnn": 'def get_library_path():\n    return "none"\n',
}


def make_toolchain(folder: Path) -> Path:
    """Make a virtual environment in `folder` that holds the stand-in; returns its interpreter."""
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
