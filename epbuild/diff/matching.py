"""Pairs of models that belong together, in two artifacts."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from itertools import chain

from msgspec import Struct

from epbuild.core.differences import facts
from epbuild.diff.traits import ACTION_KEY, SOURCE_FILE, ModelTraits

ModelPair = tuple[ModelTraits | None, ModelTraits | None]


def paired_models(old: Sequence[ModelTraits], new: Sequence[ModelTraits]) -> list[ModelPair]:
    """Models of one name, else of one file name, else alike in all but names; one that is left on each side belongs to the other."""
    found: dict[int, ModelTraits] = {}
    taken: set[int] = set()
    for matches in (_of_one(lambda model: model.name), _of_one(lambda model: model.file), _alike_but_for_names):
        left = [model for model in old if id(model) not in found]
        for first, second in matches(left, [model for model in new if id(model) not in taken]):
            found[id(first)] = second
            taken.add(id(second))
    alone = [model for model in old if id(model) not in found], [model for model in new if id(model) not in taken]
    if len(alone[0]) == len(alone[1]) == 1:
        found[id(alone[0][0])] = alone[1].pop()
    return [*((first, found.get(id(first))) for first in old), *((None, second) for second in alone[1])]


def _of_one(
    name_of: Callable[[ModelTraits], str | None],
) -> Callable[[Sequence[ModelTraits], Sequence[ModelTraits]], Iterator[tuple[ModelTraits, ModelTraits]]]:
    """Pairs of one name; of several with that name, those in the same order."""

    def matches(old: Sequence[ModelTraits], new: Sequence[ModelTraits]) -> Iterator[tuple[ModelTraits, ModelTraits]]:
        named: dict[str | None, deque[ModelTraits]] = {}
        for model in new:
            named.setdefault(name_of(model), deque()).append(model)
        for model in old:
            name = name_of(model)
            if name is not None and named.get(name):
                yield model, named[name].popleft()

    return matches


def _alike_but_for_names(old: Sequence[ModelTraits], new: Sequence[ModelTraits]) -> Iterator[tuple[ModelTraits, ModelTraits]]:
    """Each model with the first other one that is alike. Facts decide first: few are then compared with each other."""
    with_facts: dict[Hashable, dict[int, _Names]] = {}
    for number, model in enumerate(new):
        with_facts.setdefault(_facts(model), {})[number] = _Names.of(model)
    for model in old:
        others = with_facts.get(_facts(model), {})
        own = _Names.of(model)
        match = next((number for number, other in others.items() if own.alike(other)), None)
        if match is not None:
            del others[match]
            yield model, new[match]


def _facts(model: ModelTraits) -> Hashable:
    """All that is known of a model but for names and what only its manifest has; of external data the digests."""
    inside = (
        ((sense, *place), value)
        for sense, known in model.inside.items()
        if sense != "names"
        for place, value in facts(known).items()
    )
    outside = (
        ((sense, *place), value)
        for sense, known in model.outside.items()
        for place, value in facts(known).items()
        if place[0] not in (SOURCE_FILE, ACTION_KEY)
    )
    return frozenset(chain(inside, outside)), tuple(sorted(model.data["external data"].values()))


class _Names(Struct, frozen=True):
    """What distinguishes models of the same facts."""

    inside: Hashable
    data: dict[str, str]
    sha256: str

    @classmethod
    def of(cls, model: ModelTraits) -> _Names:
        return cls(frozenset(facts(model.inside.get("names", {})).items()), dict(model.data["external data"]), model.sha256)

    def alike(self, other: _Names) -> bool:
        """Whether no more differs than names: these explain that files differ, and so do other names of external data."""
        if self.data.keys() != other.data.keys():
            return True
        return self.data == other.data and (self.sha256 == other.sha256 or self.inside != other.inside)
