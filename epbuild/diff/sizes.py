"""Sizes of the files that belong to the models of two artifacts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Literal

from msgspec import Struct

from epbuild.catalog.catalog import find_source_entry
from epbuild.core.safepath import BadReference, locate
from epbuild.onnxfile.read.context_parts import PartKind, SizePart, label_graphs, list_context_parts
from epbuild.onnxfile.read.weights_files import list_weights_parts
from epbuild.verify.facts import Model

_Parts = Mapping[tuple[PartKind, str], int]
"""Sizes of the parts of a file, by kind and name."""
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
    parts: Mapping[str, tuple[SizePart, ...]] = {}
    """Parts of each context binary and weights file that lists parts. Graphs have the names in the context."""
    nodes: Mapping[tuple[str, str], str] = {}
    """EPContext node of each graph, by context binary and name in the context: `, node 2`, or empty if the model has only one node."""


class PartChange(Struct, frozen=True):
    """Change of the size of a part. `before` or `after` is None if only the other side has the part."""

    kind: PartKind | Literal["headers and padding"]
    name: str
    before: int | None
    after: int | None


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
    parts: tuple[PartChange, ...] = ()
    """Parts of a file on both sides whose sizes differ, largest change first. Empty if the parts of one side are unknown."""

    @property
    def changed(self) -> bool:
        """True if both sides have the file, with different sizes."""
        return self.before is not None and self.after is not None and self.before != self.after


def read_model_sizes(model: Model, label: str) -> FileSizes:
    """Return the sizes of a model and of its files. Missing and unreadable files are omitted."""
    if isinstance(model.header, str):
        return FileSizes(label, None, (), {}, {})
    references = tuple(map(model.find_binary, model.nodes))
    named = [*zip(references, model.contexts, strict=True)]
    titles = label_graphs("", model.nodes)
    binaries = {name: found.payload.size for name, found in named if name is not None and found.payload is not None}
    parts: dict[str, tuple[SizePart, ...]] = {}
    nodes: dict[tuple[str, str], str] = {}
    for name, context in named:
        entry = find_source_entry(context.node.source)
        with suppress(BadReference, OSError):
            if name is not None and context.payload is not None:
                parts[name] = list_context_parts(context.payload, entry)
                nodes |= {(name, graph): title for graph, title in titles.items()}
            if context.weights is not None:
                listed = list_weights_parts(model.path, context.node, entry)
                parts[model.resolve_beside(context.weights)] = tuple(
                    SizePart("weights", ", ".join(part.names), part.size) for part in listed
                )
    data = {}
    weights = (context.weights for context in model.contexts if context.weights is not None)
    places = [
        *((model.data_folder, location) for location in model.header.external_locations),
        *((model.path.parent, name) for name in weights),
    ]
    for folder, location in places:
        with suppress(BadReference, OSError):
            data[model.resolve_beside(location)] = locate(folder, location).stat().st_size
    size = None
    with suppress(OSError):
        size = model.size
    return FileSizes(label, size, references, binaries, data, parts, nodes)


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
    # Graphs are named after their models, because an EP may derive its own names from the content of a model.
    titles = {id(files): (old or files).label for old, new in pairs for files in (old, new) if files is not None}
    parts = [_collect_parts(side, titles) for side in sides]
    kinds: tuple[tuple[SizedKind, list[dict[str, int]], Mapping[str, str]], ...] = (
        ("context binary", [{name: size for files in side for name, size in files.binaries.items()} for side in sides], renamed),
        ("external data", [{name: size for files in side for name, size in files.data.items()} for side in sides], {}),
    )
    for kind, sizes, names in kinds:
        for before, after in _pair_names(sizes[0], sizes[1], names):
            old_size, new_size = sizes[0].get(before or ""), sizes[1].get(after or "")
            yield SizeChange(
                kind,
                " -> ".join(dict.fromkeys(filter(None, (before, after)))),
                old_size,
                new_size,
                parts=tuple(_compare_parts(old_size, new_size, parts[0].get(before or "", {}), parts[1].get(after or "", {}))),
            )


def _pair_names(
    old: Iterable[str], new: Collection[str], renamed: Mapping[str, str]
) -> Iterator[tuple[str, None] | tuple[None, str] | tuple[str, str]]:
    met = set[str]()
    for name in old:
        now = name if name in new else renamed.get(name, "")
        if now in new and now not in met and (now == name or now not in old):
            met.add(now)
            yield name, now
        else:
            yield name, None
    for name in new:
        if name not in met:
            yield None, name


def _collect_parts(side: Iterable[FileSizes], titles: Mapping[int, str]) -> dict[str, _Parts]:
    """Return the sizes of the parts of each file. `titles` has the name of each model, by the `id` of its `FileSizes`."""
    labels = {key: f"{titles[id(files)]}{node}" for files in side for key, node in files.nodes.items()}
    found: dict[str, _Parts] = {}
    for files in side:
        for file, parts in files.parts.items():
            sizes = Counter[tuple[PartKind, str]]()
            for part in parts:
                sizes[part.kind, labels.get((file, part.name), part.name)] += part.size
            found[file] = sizes
    return found


def _compare_parts(before: int | None, after: int | None, old: _Parts, new: _Parts) -> list[PartChange]:
    """Return the parts whose sizes differ. They are paired by name, and then by size, because an EP may generate other names."""
    if before is None or after is None or before == after or not old or not new:
        return []
    lone = Counter((key[0], size) for key, size in new.items() if key not in old)
    changes = [PartChange(*key, old[key], new[key]) for key in old if key in new and old[key] != new[key]]
    for key, size in old.items():
        if key not in new:
            if lone[key[0], size]:
                lone[key[0], size] -= 1
            else:
                changes.append(PartChange(*key, size, None))
    for key, size in new.items():
        if key not in old and lone[key[0], size]:
            lone[key[0], size] -= 1
            changes.append(PartChange(*key, None, size))
    rest = before - sum(old.values()), after - sum(new.values())
    if rest[0] != rest[1]:
        changes.append(PartChange("headers and padding", "", *rest))
    return sorted(changes, key=lambda item: (-abs((item.after or 0) - (item.before or 0)), item.name))
