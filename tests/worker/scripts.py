"""Scripts of the worker as modules, loaded by path as in production. They import nothing of epbuild."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import epbuild

FOLDER = Path(epbuild.__file__).parent / "worker"


def load(name: str) -> ModuleType:
    specification = importlib.util.spec_from_file_location(f"worker_{name}", FOLDER / f"{name}.py")
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module
