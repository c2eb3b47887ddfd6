"""A recipe in pieces: a pickle for each of its models, targets and groups.

They lie beside a snapshot, in this user's cache, so that the part of a recipe that a change concerns can be had without reading the recipe
again; and where its text has changed, so that the parts that mean something else now can be found.
"""

from __future__ import annotations

import copyreg
import io
import marshal
import pickle
from collections.abc import Collection, Iterator, Mapping
from dataclasses import fields, replace
from functools import cached_property
from typing import Any

from epbuild.core.digest import digest_of
from epbuild.core.errors import Position
from epbuild.core.values import dataclass
from epbuild.recipe import model
from epbuild.recipe.model import GroupSpec, Recipe
from epbuild.survey.snapshot_file import PIECES, read_own, write_own

Place = tuple[str, str]
"""A group and a target: what the parts of a plan are about."""

_LENGTH = 8  # bytes of the number of the byte with which the sections begin
_SECTIONS = ("models", "targets", "groups")
_UNUSABLE = (OSError, ValueError, EOFError, TypeError, LookupError, AttributeError, ImportError, pickle.PickleError)


@dataclass(frozen=True)
class Pieces:
    """The pieces of a recipe, by section and name, and what each means, wherever it is written: a digest."""

    base: bytes
    base_meaning: str
    written: bytes | memoryview
    """The sections as `marshal` writes them: many commands have no need of them."""

    @cached_property
    def sections(self) -> Mapping[str, Mapping[str, tuple[bytes, str]]]:
        """The pieces by section and name. Raises ValueError, EOFError or TypeError."""
        read: Mapping[str, Mapping[str, tuple[bytes, str]]] = marshal.loads(self.written)  # noqa: S302 - as trusted as the program
        return read

    @classmethod
    def of(cls, recipe: Recipe) -> Pieces:
        """Those of a recipe."""
        base = replace(recipe, models={}, targets={}, groups={})
        plain = replace(base, digests={}, digest="")
        whole, meant = _Pickles(_WITH_PLACES), _Pickles(_WITHOUT_PLACES)
        sections = {
            section: {name: (whole.of(value), digest_of(meant.of(value))) for name, value in getattr(recipe, section).items()}
            for section in _SECTIONS
        }
        return cls(whole.of(base), digest_of(meant.of(plain)), marshal.dumps(sections))

    @classmethod
    def read(cls, place: str, written_for: tuple[Any, ...]) -> Pieces | None:
        """Those beside the snapshot at `place`; None where they are gone, or are those of another snapshot."""
        try:
            data = memoryview(read_own(f"{place}{PIECES}"))
            begin = int.from_bytes(data[:_LENGTH], "big")
            known, base, meaning = marshal.loads(data[_LENGTH:begin])  # noqa: S302 - as trusted as the program
            return cls(base, meaning, data[begin:]) if known == written_for else None
        except _UNUSABLE:
            return None

    def write(self, place: str, written_for: tuple[Any, ...]) -> None:
        """Write them beside the snapshot at `place`. Where that fails, all has to be looked at the next time."""
        head = marshal.dumps((written_for, self.base, self.base_meaning))
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

    def changed(self, now: Pieces) -> dict[str, set[str]] | None:
        """The names in each section that mean something else `now`; None where more has changed than that."""
        if self.base_meaning != now.base_meaning or any(
            self.sections[section].keys() != now.sections[section].keys() for section in _SECTIONS
        ):
            return None
        return {
            section: {name for name, (_, meaning) in self.sections[section].items() if now.sections[section][name][1] != meaning}
            for section in _SECTIONS
        }


class _Section(Mapping[str, Any]):
    """A section of a recipe, of which a piece is read when it is asked for."""

    def __init__(self, pieces: Mapping[str, tuple[bytes, str]]) -> None:
        self._pieces = pieces

    def __getitem__(self, name: str) -> Any:
        return pickle.loads(self._pieces[name][0])  # noqa: S301 - as trusted as the program

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
    """Pickles of many values by one pickler, each as if it were the first."""

    def __init__(self, table: dict[Any, Any]) -> None:
        self._data = io.BytesIO()
        self._pickler = pickle.Pickler(self._data)
        self._pickler.dispatch_table = table

    def of(self, value: object) -> bytes:
        self._data.seek(0)
        self._data.truncate()
        self._pickler.clear_memo()
        self._pickler.dump(value)
        return self._data.getvalue()


def _nowhere() -> None:
    """What stands for the place of something."""


def _as_written(value: Any) -> tuple[Any, ...]:
    """How a dataclass is pickled without what it has found out about itself."""
    return type(value), tuple(getattr(value, field.name) for field in fields(value))


_WITH_PLACES = copyreg.dispatch_table.copy()
_WITH_PLACES[Position] = lambda position: (Position, tuple(position))  # in half the time of what a named tuple gives by itself
_WITHOUT_PLACES = copyreg.dispatch_table.copy()
_WITHOUT_PLACES[Position] = lambda position: (_nowhere, ())
for _kind in vars(model).values():
    if isinstance(_kind, type) and any(isinstance(attribute, cached_property) for attribute in vars(_kind).values()):
        _WITHOUT_PLACES[_kind] = _as_written
