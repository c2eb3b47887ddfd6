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
"""Paths of libraries on this machine, by their names in manifests."""


class NoLibrary(Exception):
    """Error for a missing library of custom operators. The text completes a sentence that begins with a target."""


def find_libraries(custom_ops: Sequence[CustomOps], places: Places) -> tuple[str, ...]:
    """Return the paths of the libraries of custom operators. Raises NoLibrary."""
    return tuple(_find_library(ops, places) for ops in custom_ops)


def register(options: SessionOptions, custom_ops: Sequence[CustomOps], libraries: Sequence[str]) -> None:
    """Register custom operators in session options. `libraries` are the paths of their libraries. Raises OpenError (EPB636)."""
    for ops, library in zip(custom_ops, libraries, strict=True):
        try:
            options.register_custom_ops_library(library)
        except Exception as error:  # ONNX Runtime's exceptions have no common base class
            raise OpenError(
                "EPB636", f"the custom operators of {ops.name} cannot be registered from {library}: {error}"
            ) from error


def _find_library(ops: CustomOps, places: Places) -> str:
    if ops.name in places:
        path = os.fspath(places[ops.name])
        if not is_file(path):
            raise NoLibrary(f"needs the custom operators of {ops.name}, but the file in custom_ops= does not exist: {path}")
        return os.path.abspath(path)  # noqa: PTH100 - the loader would search system folders for a bare name
    if ops.module is None:
        example = f"custom_ops={{{json.dumps(ops.name)}: <path>}}"
        raise NoLibrary(f"needs the custom operators of {ops.name}; pass the path of the library on this machine with {example}")
    try:
        return str(importlib.import_module(ops.module).get_library_path())
    except Exception as error:  # a module may raise anything while it is imported
        package = f"the package {ops.package or ops.module}"
        raise NoLibrary(f"needs the custom operators of {package}, which cannot be imported: {error}") from error


def is_file(path: str | Path) -> bool:
    try:
        return Path(path).is_file()
    except (OSError, ValueError):  # the file name is invalid on this system
        return False
