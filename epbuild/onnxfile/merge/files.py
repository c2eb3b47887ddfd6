"""Context binaries and external data beside a merged model, under unique names."""

from __future__ import annotations

import itertools
import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any

from epbuild.catalog.entries import EpEntry
from epbuild.core.digest import hash_file
from epbuild.core.errors import ChangeRefused, Problem
from epbuild.onnxfile.edit.compiled import find_binary, find_context_weights, find_data
from epbuild.onnxfile.edit.staging import stage
from epbuild.onnxfile.merge.connection import ConnectedModel
from epbuild.onnxfile.merge.naming import GraphPart
from epbuild.onnxfile.read.epcontext import EPContextNode
from epbuild.onnxfile.read.weights_files import name_weights


def stage_files(
    members: Sequence[ConnectedModel], parts: Sequence[GraphPart], folder: Path, destination: Path
) -> tuple[list[str], list[str]]:
    """Stage the models' external files in `folder`, and update the references in the models' nodes.

    Return the names of all staged files, and the names of those that do not yet exist beside `destination`.
    """
    names = _FreeNames(destination)
    for member, part in zip(members, parts, strict=True):
        references: dict[str, str] = {}
        for node in member.header.ep_context_nodes:
            if node.reference is not None and node.reference not in references:
                name = references[node.reference] = names.place(node.reference, find_binary(member.path, node))
                _place_weights(names, member, node, name, part.find_ep(node.source))
        for proto_node in part.contexts:
            _set_reference(proto_node, references)
        for location in member.header.external_data:
            if names.place(location, find_data(member.path, location)) != str(PurePosixPath(location)):
                raise _make_taken_error(f"the external data of {member.label}", location)
    _raise_max_sizes([node for part in parts for node in part.contexts])
    new = []
    for name, source in names.placed.values():
        exists = (destination.parent / name).exists()
        stage(source, folder / name, link=exists)
        if not exists:
            new.append(name)
    return [name for name, _ in names.placed.values()], new


def _place_weights(names: _FreeNames, member: ConnectedModel, node: EPContextNode, binary: str, ep: EpEntry | None) -> None:
    """Place the weights of a node's context beside the context, whose new name is `binary`."""
    weights, new = find_context_weights(member.path, node, ep), name_weights(binary, ep)
    if weights is not None and new is not None and names.place(new, member.path.parent / weights) != str(PurePosixPath(new)):
        raise _make_taken_error(f"the weights of a context of {member.label}", new)


def _make_taken_error(what: str, name: str) -> ChangeRefused:
    message = f"{what} cannot be written to {name}: another file has this name"
    return ChangeRefused(Problem("EPB624", message, None, "Merge into another folder, or rename the data."))


class _FreeNames:
    """Unique names for files beside the merged model `destination`. Files share a name if and only if their contents are equal.

    A file is read only if another file of the same size has the same name, and only once.
    """

    def __init__(self, destination: Path) -> None:
        self.placed: dict[str, tuple[str, Path]] = {}
        """Names with their files, by the case-folded name, because some file systems ignore case."""
        self._destination = destination
        self._tried = defaultdict[str, list[tuple[str, Path | None]]](list)
        """Names that were tried for a reference, each with a file that has the content of this name. None if no file can have the name."""
        self._size = cache(lambda path: path.stat().st_size)
        self._digest = cache(hash_file)

    def place(self, reference: str, file: Path) -> str:
        """Return the name for a file: `reference`, plus a number if a different file has this name."""
        path, tried = PurePosixPath(reference), self._tried[reference]
        for number in itertools.count(1):
            if number > len(tried):
                new = str(path if number == 1 else path.with_name(f"{path.stem}_{number}{path.suffix}"))
                tried.append((new, self._find_owner(new, file)))
            name, owner = tried[number - 1]
            if owner is not None and self._are_equal(owner, file):
                self.placed.setdefault(name.casefold(), (name, file))
                return name
        raise AssertionError("unreachable: the numbers are unlimited")

    def _find_owner(self, name: str, file: Path) -> Path | None:
        """Return the file that has a name on disk or among the placed files, or else `file`. Return None if the name is unusable."""
        target = self._destination.parent / name
        owners = [target] if os.path.lexists(target) else []
        if name.casefold() in self.placed:
            owners.append(self.placed[name.casefold()][1])
        is_usable = target != self._destination and all(owner.is_file() and self._are_equal(owner, owners[0]) for owner in owners)
        return next(iter(owners), file) if is_usable else None

    def _are_equal(self, one: Path, other: Path) -> bool:
        return one == other or (self._size(one) == self._size(other) and self._digest(one) == self._digest(other))


def _raise_max_sizes(nodes: Sequence[Any]) -> None:
    """Set the max_size of each context binary to the largest of all nodes that refer to it.

    For a shared context, EPs write the full size only into the last model of the group.
    """
    written: dict[bytes, list[Any]] = {}
    for node in nodes:
        found = {attribute.name: attribute for attribute in node.attribute}
        if "max_size" in found and "ep_cache_context" in found:
            written.setdefault(found["ep_cache_context"].s, []).append(found["max_size"])
    for attributes in written.values():
        size = max(attribute.i for attribute in attributes)
        for attribute in attributes:
            attribute.i = size


def _set_reference(node: Any, names: Mapping[str, str]) -> None:
    for attribute in node.attribute:
        if attribute.name == "ep_cache_context" and (reference := names.get(attribute.s.decode("utf-8", "replace"))) is not None:
            attribute.s = reference.encode()
