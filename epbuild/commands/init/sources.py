"""Models that a first recipe is for: files, folders and globs, with their headers."""

from __future__ import annotations

import glob
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from msgspec import Struct

from epbuild.core.errors import PlanError, Position
from epbuild.onnxfile.read.model_header import ModelHeader
from epbuild.plan.sources import find_source
from epbuild.recipe.model import ModelSpec

_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")  # two letters at least: one is a drive
_ENDING = ".onnx"


class FoundModel(Struct, frozen=True):
    """A model as it was named; `size` has its external data. Of one at an address, or that cannot be read, nothing is known."""

    path: str
    size: int | None = None
    header: ModelHeader | None = None

    @property
    def is_open(self) -> bool:
        shapes = [value.shape for value in self.header.inputs] if self.header else []
        return any(shape is None or not all(isinstance(size, int) for size in shape) for shape in shapes)


class LeftOut(Struct, frozen=True):
    """What was found and cannot be compiled, with the reason as a sentence."""

    path: str
    why: str


def find_models(places: Sequence[str], *, sure: bool = False) -> tuple[list[FoundModel], list[LeftOut]]:
    """The models at `places`: files, folders (their `*.onnx`), globs and addresses, each once; and what is there and is none.

    Where they are `sure` to be meant, single files are not judged: the planner refuses them, with a code.
    """
    found: dict[object, FoundModel] = {}
    left: dict[object, LeftOut] = {}
    for place in places:
        if is_address(place):
            found.setdefault(place, FoundModel(place))
            continue
        files = list(_named_files(place))
        if not files:
            left.setdefault(place, LeftOut(place, f"No file there ends in {_ENDING}."))
        for file in files:
            same = Path(file).resolve()
            if same not in found and same not in left:
                judged = _judged(file)
                if isinstance(judged, FoundModel):
                    found[same] = judged
                elif sure and file == place:
                    found[same] = FoundModel(file)
                else:
                    left[same] = judged
    return list(found.values()), list(left.values())


def is_address(place: str) -> bool:
    """Whether a model is named by an address or a package, and not by a path."""
    return _ADDRESS.match(place) is not None


def _named_files(place: str) -> Iterator[str]:
    path = Path(place)
    if path.is_dir():
        yield from (str(file) for file in sorted(path.glob(f"*{_ENDING}")) if file.is_file())
    elif path.exists() or not glob.has_magic(place):
        yield place
    else:
        yield from sorted(file for file in glob.glob(place, recursive=True) if Path(file).is_file())  # noqa: PTH207 - as it was named


def _judged(file: str) -> FoundModel | LeftOut:
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
