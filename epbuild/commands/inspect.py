"""`epbuild inspect`: the contents of ONNX files, as typed data."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from epbuild.core.safepath import is_folder
from epbuild.verify.inspection import inspect_files, inspect_model

if TYPE_CHECKING:
    from epbuild.verify.inspected import BrokenModel, InspectedModel, Inspection, SharedFile


class Inspected(Struct, frozen=True):
    """What was found in one file, or in several."""

    document: InspectedModel | Inspection
    """As `inspect --json` writes it: of one file, what is in it; of several, `models` and what they share."""
    models: tuple[InspectedModel | BrokenModel, ...]
    shared: tuple[SharedFile, ...] = ()

    @property
    def several(self) -> bool:
        """Whether it was asked for more than one file."""
        return "models" in self.document

    @property
    def sound(self) -> bool:
        """Whether every model is whole, and every reference in it resolves."""
        problems = [model.get("problem") for model in self.models]
        problems += [node["problem"] for model in self.models if "problem" not in model for node in model["ep_context_nodes"]]
        return not any(problems)


def inspect(files: Sequence[Path]) -> Inspected:
    """The contents of a file, or of several and of those in folders. Raises VerifyError (EPB600, EPB602)."""
    if len(files) == 1 and not is_folder(files[0]):
        model = inspect_model(files[0])
        return Inspected(model, (model,))
    found = inspect_files(files)
    return Inspected(found, tuple(found["models"]), tuple(found["shared"]))
