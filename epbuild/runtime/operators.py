"""Libraries of custom operators."""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from .variants import CustomOps, OpenError

if TYPE_CHECKING:
    from onnxruntime import SessionOptions

Places = Mapping[str, "str | os.PathLike[str]"]
"""Where libraries are on this machine, by the names that manifests have for them."""


class NoLibrary(Exception):
    """There is no library with custom operators, as the rest of a sentence that begins with a target."""


def libraries(custom_ops: Sequence[CustomOps], places: Places) -> tuple[str, ...]:
    """The path of the library of each. Raises NoLibrary."""
    return tuple(_library(ops, places) for ops in custom_ops)


def register(options: SessionOptions, custom_ops: Sequence[CustomOps], found: Sequence[str]) -> None:
    """Let sessions with these options know the operators of the libraries that were `found`. Raises OpenError (EPB636)."""
    for ops, library in zip(custom_ops, found, strict=True):
        try:
            options.register_custom_ops_library(library)
        except Exception as error:  # ORT's exceptions have no base of their own
            raise OpenError(
                "EPB636", f"the custom operators of {ops.name} cannot be registered from {library}: {error}"
            ) from error


def _library(ops: CustomOps, places: Places) -> str:
    if ops.name in places:
        path = os.fspath(places[ops.name])
        if not is_file(path):
            raise NoLibrary(f"needs the custom operators of {ops.name}, and custom_ops= leads to no file: {path}")
        return os.path.abspath(path)  # noqa: PTH100 - a name alone would be looked for in the system's folders
    if ops.module is None:
        example = f"custom_ops={{{json.dumps(ops.name)}: <path>}}"
        raise NoLibrary(f"needs the custom operators of {ops.name}: name its path on this machine, with {example}")
    try:
        return str(importlib.import_module(ops.module).get_library_path())
    except Exception as error:  # whatever the module does while it is imported
        package = f"the package {ops.package or ops.module}"
        raise NoLibrary(f"needs the custom operators of {package}, which cannot be imported: {error}") from error


def is_file(path: str | Path) -> bool:
    try:
        return Path(path).is_file()
    except (OSError, ValueError):  # a name that no file can have here
        return False
