"""`epbuild relink`: models changed in how they keep their contexts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path

from epbuild.core.defaults import MANIFEST
from epbuild.core.errors import ChangeRefused, Problem
from epbuild.core.safepath import real_path
from epbuild.onnxfile.edit.packaging import Packaging, Repackaged, repackage
from epbuild.output.existing import listed_files


def models_in(paths: Iterable[Path]) -> list[Path]:
    """The models that paths name, those in folders too. Raises ChangeRefused (EPB620) for a folder without any."""
    found = []
    for path in paths:
        models = sorted(path.glob("*.onnx")) if path.is_dir() else [path]
        if not models:
            raise ChangeRefused(Problem("EPB620", f"there is no .onnx file in the folder {path}"))
        found += models
    return found


def relink(models: Sequence[Path], packaging: Packaging, binary: str | None, output: Path | None) -> Repackaged:
    """Embed, extract or rename the context binary of models, in place where there is no `output`.

    Raises ChangeRefused, with EPB625 for a change in place of what a build published.
    """
    listed = cache(listed_files)
    for model in models if output is None else ():
        place = real_path(model)
        for folder in place.parents:
            if place.relative_to(folder).as_posix() in listed(folder):
                message = f"{model} is listed in {folder / MANIFEST}: the next build would undo a change in place"
                raise ChangeRefused(Problem("EPB625", message, None, "Write the result elsewhere with -o."))
    return repackage(models, packaging, binary=binary, destination=output)
