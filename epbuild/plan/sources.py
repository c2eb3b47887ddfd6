"""Finder of the files of source models: graphs and external data."""

from __future__ import annotations

import importlib.util
import os
import posixpath
import re
import stat
import time
from collections.abc import Callable
from functools import cached_property
from importlib.machinery import PathFinder
from pathlib import Path, PurePosixPath, PureWindowsPath

from msgspec import Struct

from epbuild.cache.digests import NONE_UNCHANGED, StatKey, UnchangedFiles
from epbuild.cache.memo import NO_MEMO, Memo
from epbuild.core.errors import PlanError, Problem
from epbuild.core.safepath import (
    find_unportable_part,
    has_parent_part,
    is_anchored,
    is_file,
    is_inside,
    is_outside,
    resolve_links,
)
from epbuild.core.shown import format_path
from epbuild.onnxfile.read.headers import read_header
from epbuild.onnxfile.read.model_header import ModelHeader
from epbuild.onnxfile.read.wire import MalformedModel
from epbuild.plan.member import ModelFiles
from epbuild.recipe.model import ModelSpec

_DIRECT = re.compile(r"[^/\\:]+")
"""Names that are a file's name on every platform, without a folder or a drive."""


class SourceModel(Struct, frozen=True, dict=True):
    """Files and header of a source model."""

    model: ModelSpec
    files: ModelFiles
    known_header: ModelHeader | None
    """Header of the model. None if it was not read because a memo contained the model's references."""
    stats: tuple[tuple[str, StatKey | None], ...] | None
    """Stats of all files before they were read, which identify the content of the files in a memo.

    None if a file is too new for its stat to be trusted.
    """

    @cached_property
    def header(self) -> ModelHeader:
        """Header of the model, read on first access. Raises PlanError if the file has since been damaged."""
        return self.known_header or _read_header(self.model, self.files.graph)


class SourceReferences(Struct, frozen=True):
    """Part of a model's header that planning always needs. It is small, so that a memo can store it for every model."""

    context_sources: tuple[str, ...]
    """Values of `source` in the EPContext nodes."""
    external: tuple[str, ...]
    """Locations of external data, and references of context binaries."""
    subgraph_data: tuple[str, ...]
    """Locations of external data that a subgraph refers to."""


Locate = Callable[[ModelSpec], Path | None]
"""Function that returns the path of a remote model's graph on this machine, or None if the model has not been fetched."""


def find_source(
    model: ModelSpec,
    base: Path,
    locate: Locate,
    memo: Memo = NO_MEMO,
    unchanged: UnchangedFiles = NONE_UNCHANGED,
    *,
    may_be_compiled: bool = False,
) -> SourceModel | None:
    """Find the files of `model`, relative to the recipe's folder `base`. Return None for a remote model that has not been fetched.

    Raises PlanError with every problem if the model is missing or damaged, or if its external data is missing or in a folder from which
    ONNX Runtime refuses to read. Unless `may_be_compiled`, a model with EPContext nodes is a problem too.
    """
    graph = locate(model) if model.is_remote else _find_graph(model, base)
    if graph is None:
        return None
    now = time.time_ns()
    graph_key = unchanged.get_key(str(graph)) or _get_graph_key(model, graph)
    references, header = _read_references(model, graph, graph_key, now, memo)
    if references.context_sources and (model.is_remote or not may_be_compiled):
        raise PlanError(make_compiled_problem(model))
    folder = _find_data_folder(model, base, graph) if references.external else graph.parent
    external: dict[str, Path] = {}
    keys: list[StatKey | None] = [graph_key]
    problems: list[Problem] = []
    for location in references.external:
        path = external[location] = folder / location
        key = _get_direct_key(path, location, unchanged)
        if key is None and (problem := _find_location_problem(model, graph, folder, location)) is not None:
            problems.append(problem)
            continue  # a location outside the folder may be on another machine
        try:
            keys.append(key or StatKey.of(path))
        except (OSError, ValueError):  # reported as a problem, or removed in this moment
            keys.append(None)
    if problems:
        raise PlanError(*problems)
    files = ModelFiles(graph, external, frozenset(references.subgraph_data), references.context_sources)
    is_settled = all(key is not None and key.is_settled(now) for key in keys)
    return SourceModel(model, files, header, tuple(zip(map(str, files.all), keys, strict=True)) if is_settled else None)


def make_compiled_problem(model: ModelSpec, hint: str = "") -> Problem:
    """Return the problem of a model that is already compiled. `hint` is one more sentence of advice."""
    message = f"the model '{model.name}' is already compiled: it contains EPContext nodes"
    return Problem("EPB205", message, model.path_where, f"Use the model that it was compiled from. {hint}".rstrip())


def _get_graph_key(model: ModelSpec, graph: Path) -> StatKey:
    """Return the stat of a model's graph. Raises PlanError if the graph is not a file."""
    try:
        seen = os.stat(graph)  # noqa: PTH116 - a recipe has thousands of models
    except (OSError, ValueError):
        seen = None
    if seen is None or not stat.S_ISREG(seen.st_mode):
        what = "is not a file" if os.path.exists(graph) else "does not exist"  # noqa: PTH110 - accepts any name
        raise _make_error("EPB201", model, f"the model '{model.name}' {what}: {model.path}", "Paths are relative to the recipe.")
    return StatKey.of(graph, seen)


def _read_references(
    model: ModelSpec, graph: Path, key: StatKey, now: int, memo: Memo
) -> tuple[SourceReferences, ModelHeader | None]:
    """Return the references in a model's graph, and the header or None if not read.

    `key` is the stat of the graph, and `now` the current time in nanoseconds. Raises PlanError.
    """
    header = None

    def read() -> SourceReferences:
        nonlocal header
        header = _read_header(model, graph)
        nodes = header.ep_context_nodes
        binaries = [node.reference for node in nodes if node.reference is not None]
        locations = tuple(dict.fromkeys((*header.external_locations, *binaries)))
        sources = tuple(dict.fromkeys(node.source or "" for node in nodes))
        return SourceReferences(sources, locations, tuple(sorted(header.subgraph_data)))

    inputs = (str(graph), key) if key.is_settled(now) else None
    references = memo.value("files of a model", inputs, read, SourceReferences)
    return references, header


def _read_header(model: ModelSpec, graph: Path) -> ModelHeader:
    """Read the header of a model. Raises PlanError."""
    try:
        return read_header(graph)
    except MalformedModel as error:
        message = f"the model '{model.name}' is not a complete ONNX file: {error}"
        raise _make_error("EPB202", model, message, "Export or copy it again.") from error
    except OSError as error:
        raise _make_error("EPB202", model, f"the model '{model.name}' cannot be read: {error.strerror}", None) from error


def _find_graph(model: ModelSpec, base: Path) -> Path:
    if model.package_file is None:
        return base / model.path
    package, file = model.package_file
    folder = _find_package(package)
    if folder is None:
        place = f"the model '{model.name}' is in the Python package '{package}'"
        message = f"{place}, which is not installed in epbuild's environment"
        hint = f"Install {package} in that environment, or write package:<name>==<version>/<file> to fetch it."
        raise _make_error("EPB206", model, message, hint)
    if not file or is_anchored(file) or has_parent_part(file):
        raise _make_error("EPB206", model, f"'{model.path}' does not name a file inside the package '{package}'", None)
    return folder / file


def _find_package(package: str) -> Path | None:
    """Return the folder of a package in epbuild's environment, or None. Do not import the package or its parent packages."""
    first, *others = package.split(".")
    try:
        # For a dotted name, `importlib.util.find_spec` would run the code of parent packages.
        found = importlib.util.find_spec(first) if first else None
        for number, name in enumerate(others, 2):
            places = found.submodule_search_locations if found is not None else None
            dotted = ".".join([first, *others][:number])
            found = PathFinder.find_spec(dotted, places) if name and places else None
    except (ImportError, ValueError):
        return None
    places = found.submodule_search_locations if found is not None else None
    return Path(next(iter(places))) if places else None


def _find_data_folder(model: ModelSpec, base: Path, graph: Path) -> Path:
    """Return the base folder for the locations of a model's external data. Raises PlanError (EPB249)."""
    named = model.external_data
    if named is None:
        return graph.parent
    folder = base / named.name
    try:
        if folder.is_dir():
            return folder
        what = "is not a folder" if folder.exists() else "does not exist"
    except (OSError, ValueError):
        what = "is not a valid path"
    message = f"the external data folder of the model '{model.name}' {what}: {named.name}"
    raise PlanError(Problem("EPB249", message, named.where, "Paths are relative to the recipe."))


def _find_location_problem(model: ModelSpec, graph: Path, folder: Path, location: str) -> Problem | None:
    data, named = folder / location, model.external_data
    where = model.path_where if named is None else named.where
    outside = PureWindowsPath(location).is_absolute() or PurePosixPath(location).is_absolute() or is_outside(location)
    if not outside and not is_file(data):
        place = "beside the model" if named is None else f"in {named.name}"
        message = f"the model '{model.name}' refers to the external data file {location}, which does not exist {place}"
        hint = f"Put the file into {format_path(folder)}" + (
            ", or set 'external_data' to the folder that contains it." if named is None else "."
        )
        if (part := find_unportable_part(posixpath.normpath(location))) is not None:
            hint = f"'{part}' is not a valid name on Windows. Save the model with another name for its external data."
        return Problem("EPB203", message, where, hint)
    # ONNX Runtime resolves links and refuses targets outside the folder. Perform the same check before a process is started.
    if outside or not (is_inside(data, folder) or (named is None and _is_beside_link(graph, location))):
        own = "its own folder" if named is None else f"the folder {named.name}"
        message = f"the model '{model.name}' has external data outside {own}: {location}"
        hint = "Move the data beside the model and refer to it by a relative path."
        if named is not None:
            hint = "Move the data into the folder, and refer to it by a path relative to the folder."
        elif not PureWindowsPath(location).anchor:
            hint = f"{hint} Or set 'external_data' to another folder, and refer to the data by a path inside it."
        return Problem("EPB204", message, where, hint)
    return None


def _get_direct_key(path: Path, location: str, unchanged: UnchangedFiles) -> StatKey | None:
    """Return the stat of a regular file directly in a model's folder, or None. In this common case, no links have to be resolved."""
    if not _DIRECT.fullmatch(location):
        return None
    if (known := unchanged.get_key(str(path))) is not None:
        return known
    try:
        status = os.lstat(path)
        return StatKey.of(path, status) if stat.S_ISREG(status.st_mode) else None
    except (OSError, ValueError):  # an invalid file name
        return None


def _is_beside_link(graph: Path, location: str) -> bool:
    """Return whether the graph and its data are links to files in the same folder, as in content stores."""
    return resolve_links(graph.parent / location).parent == resolve_links(graph).parent


def _make_error(code: str, model: ModelSpec, message: str, hint: str | None) -> PlanError:
    return PlanError(Problem(code, message, model.path_where, hint))
