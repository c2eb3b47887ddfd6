"""A recipe in pieces: a pickle for each of its models, targets and groups.

The pieces lie beside a snapshot, in this user's cache. With them, the part of a recipe that a changed file concerns is planned without
reading the recipe again.
"""

from __future__ import annotations

import copyreg
import io
import marshal
import pickle
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any

from msgspec import Struct

from epbuild.core.errors import Position
from epbuild.recipe.model import GroupSpec, Recipe
from epbuild.survey.snapshot_file import PIECES, read_own, write_own

Place = tuple[str, str]
"""A group and a target: what the parts of a plan are about."""

_LENGTH = 8  # bytes of the number of the byte with which the sections begin
_SECTIONS = ("models", "targets", "groups")
_UNUSABLE = (OSError, ValueError, EOFError, TypeError, LookupError, AttributeError, ImportError, pickle.PickleError)


class Pieces(Struct, frozen=True, dict=True):
    """Pieces of a recipe, by section and name, and the pickle of the rest of the recipe."""

    base: bytes
    written: bytes | memoryview
    """The sections as `marshal` writes them: many commands have no need of them."""

    @cached_property
    def sections(self) -> Mapping[str, Mapping[str, bytes]]:
        """Pieces by section and name. Raises ValueError, EOFError or TypeError."""
        read: Mapping[str, Mapping[str, bytes]] = marshal.loads(self.written)  # noqa: S302 - as trusted as the program
        return read

    @classmethod
    def of(cls, recipe: Recipe) -> Pieces:
        """Return the pieces of a recipe."""
        pickles = _Pickles()
        sections = {
            section: {name: pickles.of(value) for name, value in getattr(recipe, section).items()} for section in _SECTIONS
        }
        return cls(pickles.of(replace(recipe, models={}, targets={}, groups={})), marshal.dumps(sections))

    @classmethod
    def read(cls, place: str, written_for: tuple[Any, ...]) -> Pieces | None:
        """Those beside the snapshot at `place`; None where they are gone, or are those of another snapshot."""
        try:
            data = memoryview(read_own(f"{place}{PIECES}"))
            begin = int.from_bytes(data[:_LENGTH], "big")
            known, base = marshal.loads(data[_LENGTH:begin])  # noqa: S302 - as trusted as the program
            return cls(base, data[begin:]) if known == written_for else None
        except _UNUSABLE:
            return None

    def write(self, place: str, written_for: tuple[Any, ...]) -> None:
        """Write them beside the snapshot at `place`. Where that fails, all has to be looked at the next time."""
        head = marshal.dumps((written_for, self.base))
        begin = (_LENGTH + len(head)).to_bytes(_LENGTH, "big")
        write_own(f"{place}{PIECES}", b"".join([begin, head, self.written]))

    def part(self, places: Collection[Place]) -> Recipe | None:
        """The recipe of these groups for these targets; None where the pieces cannot be read."""
        try:
            base: Recipe = pickle.loads(self.base)  # noqa: S301 - as trusted as the program
            if not places:
                return base
            models, targets, groups = (_Section(self.sections[section]) for section in _SECTIONS)
            return part_of(replace(base, models=models, targets=targets, groups=groups), places)
        except _UNUSABLE:
            return None


class _Section(Mapping[str, Any]):
    """A section of a recipe, of which a piece is read when it is asked for."""

    def __init__(self, pieces: Mapping[str, bytes]) -> None:
        self._pieces = pieces

    def __getitem__(self, name: str) -> Any:
        return pickle.loads(self._pieces[name])  # noqa: S301 - as trusted as the program

    def __iter__(self) -> Iterator[str]:
        return iter(self._pieces)

    def __len__(self) -> int:
        return len(self._pieces)


def part_of(recipe: Recipe, places: Collection[Place]) -> Recipe:
    """The recipe of these groups for these targets, and of the models that they compile, in the recipe's order."""
    wanted, aimed = {group for group, _ in places}, {target for _, target in places}
    groups: dict[str, GroupSpec] = {name: recipe.groups[name] for name in recipe.groups if name in wanted}
    groups = {
        name: group._replace(targets=tuple(target for target in group.targets if (name, target.name) in places))
        for name, group in groups.items()
    }
    compiled = {member.model.name for group in groups.values() for member in group.members}
    return replace(
        recipe,
        groups=groups,
        models={name: recipe.models[name] for name in recipe.models if name in compiled},
        targets={name: recipe.targets[name] for name in recipe.targets if name in aimed},
    )


class _Pickles:
    """Pickler of many values, each as if it were the first."""

    def __init__(self) -> None:
        self._data = io.BytesIO()
        self._pickler = pickle.Pickler(self._data)
        self._pickler.dispatch_table = _REDUCERS

    def of(self, value: object) -> bytes:
        self._data.seek(0)
        self._data.truncate()
        self._pickler.clear_memo()
        self._pickler.dump(value)
        return self._data.getvalue()


_REDUCERS = copyreg.dispatch_table.copy()
_REDUCERS[Position] = lambda position: (Position, tuple(position))  # half the time of what a named tuple does by itself
