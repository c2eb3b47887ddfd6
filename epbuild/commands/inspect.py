"""`epbuild inspect`: the contents of ONNX files, as plain data."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from epbuild.verify.inspection import inspect_files, inspect_model


class Inspected(NamedTuple):
    """What was found in one file, or in several; `sound`: every reference resolves."""

    document: dict[str, Any]
    several: bool
    sound: bool


def inspect(files: Sequence[Path]) -> Inspected:
    """The contents of a file, or of several and of those in folders. Raises VerifyError (EPB600, EPB602)."""
    several = len(files) != 1 or files[0].is_dir()
    found = inspect_files(files) if several else inspect_model(files[0])
    models = found["models"] if several else [found]
    problems = [model.get("problem") for model in models]
    problems += [node["problem"] for model in models for node in model.get("ep_context_nodes", ())]
    return Inspected(found, several, not any(problems))
