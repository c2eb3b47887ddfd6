"""Names that a room offers, and that are imported only when somebody asks for them: most commands need little of most rooms."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any


def late(package: str, places: Mapping[str, Sequence[str]]) -> Callable[[str], Any]:
    """The `__getattr__` of `package`, which offers the names that `places` has for each of its modules (PEP 562)."""
    modules = {name: module for module, names in places.items() for name in names}

    def find(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module '{package}' has no attribute '{name}'")
        value = getattr(importlib.import_module(f"{package}.{modules[name]}"), name)
        setattr(sys.modules[package], name, value)  # so that it is not asked for again
        return value

    return find
