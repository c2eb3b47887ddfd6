"""Models and EPs for a first recipe."""

from __future__ import annotations

import glob
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

from msgspec import Struct

from epbuild.catalog.catalog import entries_for, known_eps
from epbuild.catalog.entries import EpEntry
from epbuild.catalog.facts import Limitation, Start
from epbuild.commands.init.exports import ExportScript
from epbuild.core.errors import PlanError, Position
from epbuild.onnxfile.read.model_header import ModelHeader
from epbuild.plan.known_patterns import count_patterns, describe_dynamic_nodes
from epbuild.plan.sources import find_source
from epbuild.recipe.model import ModelSpec

_CONDITIONS = ("compile without", "be installed")
_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")  # Require two letters, because a single letter is a Windows drive.
_SUFFIX = ".onnx"


class StarterKind(Struct, frozen=True):
    """EP in one packaging, with the catalog's information for a first recipe."""

    entry: EpEntry
    start: Start

    @property
    def asks(self) -> bool:
        return self.start.option is not None or self.start.metadata is not None

    @property
    def static(self) -> bool:
        return self.entry.static_shapes is not None

    def obstacle(self) -> str | None:
        """Return the known reason why the EP cannot compile on this platform, as a clause, or None."""
        return next((f"cannot {row.what} here: {row.why}" for row in _find_limits(self) if row.stops), None)

    def condition(self) -> str | None:
        """Return what the machine must have, as a clause such as `cannot compile without a GPU: ...`, or None."""
        rows = (row for row in _find_limits(self) if not row.stops and row.during is None and row.what.startswith(_CONDITIONS))
        return next((f"cannot {row.what}: {row.why}" for row in rows), None)

    def runs_here(self, value: str) -> bool:
        """Return whether models compiled for a target are expected to run on this platform."""
        options = {**self.start.options, **({self.start.option: value} if self.start.option else {})}
        rows = (row for row in _find_limits(self, options) if row.during == "load" and row.when)
        return self.obstacle() is None and not any(rows)


def _find_limits(kind: StarterKind, options: Mapping[str, str] | None = None) -> Iterator[Limitation]:
    device = kind.start.device.get("type")
    for row in kind.entry.cannot:
        if row.limit_of == "machine" and row.holds(sys.platform, str(device) if device else None, options or kind.start.options):
            yield row


@cache
def list_starter_kinds() -> Mapping[str, StarterKind]:
    """Return each EP that `init` can write a recipe for, once per packaging, by its value of `--ep`."""
    found = {entry.start.name: StarterKind(entry, entry.start) for ep in known_eps() for entry in entries_for(ep) if entry.start}
    # Sort EPs that compile on any machine first, and then by name.
    return dict(sorted(found.items(), key=lambda item: (item[1].entry.output_depends_on_host, item[0])))


def find_eps_without_recipe() -> dict[str, list[str]]:
    """Return the EPs that `init` cannot write a recipe for, by reason. Reasons are clauses."""
    found: dict[str, list[str]] = {}
    for ep in known_eps():
        entries = entries_for(ep)
        if not any(entry.start for entry in entries):
            rows = [row for entry in entries for row in entry.cannot if row.stops and not row.platforms]
            why = f"cannot {rows[0].what}" if rows else "its recipe must be written by hand"
            found.setdefault(why, []).append(ep)
    return found


class FoundModel(Struct, frozen=True):
    """Model at a path or address, as written by the user. `size` includes external data.

    `size` and `header` are None for a remote or unreadable model, and for a model that a script makes.
    """

    path: str
    size: int | None = None
    header: ModelHeader | None = None
    export: ExportScript | None = None
    """Script that makes the model, whose path is then only a name. None if the model exists."""

    @property
    def is_open(self) -> bool:
        shapes = [value.shape for value in self.header.inputs] if self.header else []
        return any(shape is None or not all(isinstance(size, int) for size in shape) for shape in shapes)


class Remedy(Struct, frozen=True):
    """Preparation that a model needs, as YAML, and the reason as sentences."""

    step: str
    why: str


class LeftOut(Struct, frozen=True):
    """File that cannot be compiled, with the reason as a sentence."""

    path: str
    why: str


def find_models(places: Sequence[str], *, sure: bool = False) -> tuple[list[FoundModel], list[LeftOut]]:
    """Return the models at `places` without duplicates, and the files that are not models.

    Places are files, folders, globs and addresses. If `sure` is set, invalid files that are themselves in `places` are kept,
    because the planner rejects them with an error code.
    """
    found: dict[object, FoundModel] = {}
    left: dict[object, LeftOut] = {}
    for place in places:
        if is_address(place):
            found.setdefault(place, FoundModel(place))
            continue
        files = list(_list_files(place))
        if not files:
            left.setdefault(place, LeftOut(place, f"There is no {_SUFFIX} file."))
        for file in files:
            same = Path(file).resolve()
            if same not in found and same not in left:
                judged = _check_model(file)
                if isinstance(judged, FoundModel):
                    found[same] = judged
                elif sure and file == place:
                    found[same] = FoundModel(file)
                else:
                    left[same] = judged
    return list(found.values()), list(left.values())


def find_remedies(model: FoundModel, kind: StarterKind) -> tuple[Remedy, ...]:
    """Return the preparations that replace nodes on which the EP is known to fail. A model without a header needs none."""
    if model.header is None:
        return ()
    entry, found = kind.entry, []
    if (nodes := describe_dynamic_nodes(model.header, entry)) is not None:
        found.append(Remedy("{dequantize: {}}", f"The model has {nodes}."))
    if patterns := count_patterns(Path(model.path), entry.rewrites):
        why = f"The model contains {' and '.join(patterns)}. {entry.ep} fails on such models."
        found.append(Remedy(f"{{rewrite: {entry.short}}}", why))
    return tuple(found)


def is_address(place: str) -> bool:
    """Return whether a model's place is an address or a package, not a path."""
    return _ADDRESS.match(place) is not None


def _list_files(place: str) -> Iterator[str]:
    path = Path(place)
    if path.is_dir():
        yield from (str(file) for file in sorted(path.glob(f"*{_SUFFIX}")) if file.is_file())
    elif path.exists() or not glob.has_magic(place):
        yield place
    else:
        yield from sorted(file for file in glob.glob(place, recursive=True) if Path(file).is_file())  # noqa: PTH207 - keep spelling


def _check_model(file: str) -> FoundModel | LeftOut:
    where = Position(file, 1, 1)
    path = Path(file).absolute()
    try:
        source = find_source(ModelSpec(path.stem, where, str(path), where), path.parent, lambda model: None)
    except PlanError as error:
        problem = error.problems[0]
        return LeftOut(file, problem.text[:1].upper() + problem.text[1:])
    if source is None:
        return FoundModel(file)
    size = sum(each.stat().st_size for each in source.files.all)
    return FoundModel(file, size, source.header)
