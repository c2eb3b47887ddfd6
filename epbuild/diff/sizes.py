"""Sizes of the files that belong to the models of two artifacts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Literal

from msgspec import Struct

from epbuild.core.safepath import BadReference, locate
from epbuild.verify.facts import Model

SizedKind = Literal["model", "context binary", "external data"]


class FileSizes(Struct, frozen=True):
    """Sizes of a model and of its files, by POSIX path below the artifact's folder."""

    label: str
    """Name of the model."""
    size: int | None
    """Bytes of the model, or None if the model cannot be read."""
    references: tuple[str | None, ...]
    """Context binary of each EPContext node, in order. None for a node without a context binary."""
    binaries: Mapping[str, int]
    data: Mapping[str, int]


class SizeChange(Struct, frozen=True):
    """Change of a file's size. `before` or `after` is None if only the other side has the file.

    `name` is the file's name, or the model's name in its manifest. `artifact` is the folder below the compared paths if
    the paths contain several artifacts.
    """

    kind: SizedKind
    name: str
    before: int | None
    after: int | None
    artifact: str = ""


def read_model_sizes(model: Model, label: str) -> FileSizes:
    """Return the sizes of a model and of its files. Missing and unreadable files are omitted."""
    if isinstance(model.header, str):
        return FileSizes(label, None, (), {}, {})
    references = tuple(map(model.find_binary, model.nodes))
    named = zip(references, model.contexts, strict=True)
    binaries = {name: found.payload.size for name, found in named if name is not None and found.payload is not None}
    data = {}
    weights = (context.weights for context in model.contexts if context.weights is not None)
    for location in (*model.header.external_locations, *weights):
        with suppress(BadReference, OSError):
            data[model.resolve_beside(location)] = locate(model.path.parent, location).stat().st_size
    size = None
    with suppress(OSError):
        size = model.size
    return FileSizes(label, size, references, binaries, data)


def compare_sizes(pairs: Sequence[tuple[FileSizes | None, FileSizes | None]]) -> Iterator[SizeChange]:
    """Yield the sizes of all files in pairs of models. A file that several models use appears once.

    Files are paired by name. Context binaries are also paired if the same node of a model refers to them.
    """
    renamed: dict[str, str] = {}
    for old, new in pairs:
        if old is not None and new is not None:
            yield SizeChange("model", old.label, old.size, new.size)
            for before, after in zip(old.references, new.references, strict=False):
                if before is not None and after is not None:
                    renamed.setdefault(before, after)
        elif old is not None:
            yield SizeChange("model", old.label, old.size, None)
        elif new is not None:
            yield SizeChange("model", new.label, None, new.size)
    sides = [old for old, _ in pairs if old is not None], [new for _, new in pairs if new is not None]
    binaries = [{name: size for files in side for name, size in files.binaries.items()} for side in sides]
    data = [{name: size for files in side for name, size in files.data.items()} for side in sides]
    yield from _pair_sizes("context binary", binaries[0], binaries[1], renamed)
    yield from _pair_sizes("external data", data[0], data[1], {})


def _pair_sizes(
    kind: SizedKind, old: Mapping[str, int], new: Mapping[str, int], renamed: Mapping[str, str]
) -> Iterator[SizeChange]:
    met = set[str]()
    for name, size in old.items():
        now = name if name in new else renamed.get(name, "")
        if now in new and now not in met and (now == name or now not in old):
            met.add(now)
            yield SizeChange(kind, name if now == name else f"{name} -> {now}", size, new[now])
        else:
            yield SizeChange(kind, name, size, None)
    for name, size in new.items():
        if name not in met:
            yield SizeChange(kind, name, None, size)
