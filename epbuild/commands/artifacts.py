"""`inspect`, `diff`, `relink` and `merge`: commands on artifacts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from epbuild.archive.members import UnsoundArchive
from epbuild.archive.opened import open_artifact
from epbuild.catalog.catalog import find_source_entry
from epbuild.core.defaults import MANIFEST
from epbuild.core.errors import ChangeRefused, Problem
from epbuild.core.safepath import is_folder, resolve_links
from epbuild.core.shown import ProgressLines, format_path
from epbuild.core.summary import Summarized, Summary
from epbuild.core.units import format_count
from epbuild.diff.difference import Comparison, compare
from epbuild.diff.facts import Incomparable
from epbuild.onnxfile.edit.packaging import Packaging, Repackaged, repackage
from epbuild.onnxfile.merge.connection import read_connections
from epbuild.onnxfile.merge.merge import Merged, merge_models, read_members
from epbuild.output.existing import read_listed_files
from epbuild.verify.inspection import inspect_files, inspect_model

if TYPE_CHECKING:
    from epbuild.verify.inspected import BrokenModel, InspectedModel, Inspection, SharedFile


class Inspected(Summarized, Struct, frozen=True):
    """Result of inspecting one or several files."""

    document: InspectedModel | Inspection
    """JSON document of `inspect --json`: the contents of one file, or the keys `models` and `shared` for several files."""
    models: tuple[InspectedModel | BrokenModel, ...]
    shared: tuple[SharedFile, ...] = ()

    @property
    def several(self) -> bool:
        """True if several files were inspected."""
        return "models" in self.document

    @property
    def sound(self) -> bool:
        """True if all model files are complete, and all files that they refer to exist."""
        problems = [model.get("problem") for model in self.models]
        problems += [node["problem"] for model in self.models if "problem" not in model for node in model["ep_context_nodes"]]
        return not any(problems)

    def summarize(self) -> Summary:
        """Return the models with their nodes."""
        rows = [
            (model["file"], str(len(model["ep_context_nodes"])), str(sum(model["other_operators"].values())), "")
            if "problem" not in model
            else (model["file"], "", "", str(model.get("problem")))
            for model in self.models
        ]
        return Summary(format_count(len(rows), "model"), ("file", "EPContext nodes", "other nodes", "problem"), rows)


def inspect(files: Sequence[Path]) -> Inspected:
    """Inspect one file, or several files and folders, and return their contents. Raises VerifyError (EPB600, EPB602)."""
    if len(files) == 1 and not is_folder(files[0]):
        model = inspect_model(files[0])
        return Inspected(model, (model,))
    found = inspect_files(files)
    return Inspected(found, tuple(found["models"]), tuple(found["shared"]))


def diff(a: Path, b: Path, lines: ProgressLines) -> Comparison:
    """Compare the artifacts at `a` and `b`, which may be archives, and return their differences.

    `lines` receives progress messages, and the paths of archives in the artifacts, which are not compared.

    Raises NothingToVerify (EPB600) if a path has no artifact, and Incomparable (EPB630) if an artifact cannot be read.
    """
    try:
        with open_artifact(a, lines) as old, open_artifact(b, lines) as new:
            found = compare(old.place, new.place)
    except UnsoundArchive as error:  # The verdict is unknown: neither `same` nor `different`.
        raise Incomparable(*error.problems) from error
    for received in (old, new):
        for place in received.find_skipped():
            lines(f"{place.as_posix()}: skipped; name it on the command line to compare it")
    return found


def find_models(paths: Iterable[Path]) -> list[Path]:
    """Return the models at `paths`. A folder stands for all models in it. Raises ChangeRefused (EPB620) for a folder without models."""
    found = []
    for path in paths:
        models = sorted(path.glob("*.onnx")) if path.is_dir() else [path]
        if not models:
            raise ChangeRefused(Problem("EPB620", f"no .onnx file in the folder {format_path(path)}"))
        found += models
    return found


def relink(models: Sequence[Path], packaging: Packaging, binary: str | None, output: Path | None) -> Repackaged:
    """Embed, extract or rename the context binary of models, and return the changed files.

    If `output` is None, the models are changed in place. Raises ChangeRefused, with code EPB625 for an in-place change to an emitted
    output.
    """
    listed = cache(read_listed_files)
    for model in models if output is None else ():
        place = resolve_links(model)
        for folder in place.parents:
            if place.relative_to(folder).as_posix() in listed(folder):
                message = f"{model} is listed in {folder / MANIFEST}: the next build would undo an in-place change"
                raise ChangeRefused(Problem("EPB625", message, None, "Write the result to another path with -o."))
    return repackage(models, packaging, binary=binary, destination=output, find_ep=find_source_entry)


def merge(models: Sequence[Path], prefixes: Sequence[str], connections: Sequence[str], output: Path) -> Merged:
    """Merge models, in the order in which they run, into `output`. Return a summary of the merge. Raises ChangeRefused.

    `prefixes` is empty or has one prefix for each model.
    """
    wanted = None
    if connections:
        wanted = read_connections(connections, read_members(models))
    named = list(zip(models, prefixes or [""] * len(models), strict=True))
    return merge_models(named, wanted, output, find_source_entry)
