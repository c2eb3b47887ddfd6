"""Pairs of artifacts at two paths, and of models in two artifacts."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import partial
from itertools import chain
from operator import attrgetter
from pathlib import PurePosixPath

from msgspec import Struct

from epbuild.core.differences import facts
from epbuild.diff.traits import ACTION_KEY, SOURCE_FILE, ModelTraits
from epbuild.verify.artifact import ArtifactFolder

ArtifactPair = tuple[ArtifactFolder | None, ArtifactFolder | None]
ModelPair = tuple[ModelTraits | None, ModelTraits | None]
Matches = Iterator[tuple[ModelTraits, ModelTraits]]


def pair_artifacts(old: Sequence[ArtifactFolder], new: Sequence[ArtifactFolder]) -> list[ArtifactPair]:
    """Pair the artifacts of two sides; one without a partner is paired with None.

    Partners have the same group, target and place below the two paths; else the same group and target, if each side has these once; else
    the same place. If each side has one artifact only, the two are partners.
    """
    if len(old) == len(new) == 1:
        return [(old[0], new[0])]
    found: list[ArtifactPair] = []
    before, after = list(old), list(new)
    for name_of in (lambda item: (item.place, _group_and_target(item)), _group_and_target, lambda item: item.place):
        met = _once(name_of, before) & _once(name_of, after)
        partners = {name_of(item): item for item in after if name_of(item) in met}
        found += [(item, partners[name_of(item)]) for item in before if name_of(item) in met]
        before, after = ([item for item in side if name_of(item) not in met] for side in (before, after))
    found += [*((item, None) for item in before), *((None, item) for item in after)]
    return sorted(found, key=lambda pair: PurePosixPath(place_of(pair)).parts)


def place_of(pair: ArtifactPair) -> str:
    """Return the new place of an artifact below the path that was compared, or the old one if it is gone."""
    old, new = pair
    item = new or old
    return item.place if item is not None else ""


def _once(name_of: Callable[[ArtifactFolder], object], side: Sequence[ArtifactFolder]) -> set[object]:
    return {name for name, count in Counter(map(name_of, side)).items() if count == 1 and name is not None}


def _group_and_target(artifact: ArtifactFolder) -> object:
    """Return the group and the target of an artifact; None without a manifest."""
    if artifact.manifest is None:
        return None
    return artifact.manifest.group, artifact.manifest.target


def pair_models(old: Sequence[ModelTraits], new: Sequence[ModelTraits]) -> list[ModelPair]:
    """Pair the models of two artifacts: by name, else by file name, else by their facts. One model left on each side makes a pair."""
    found: dict[int, ModelTraits] = {}
    taken: set[int] = set()
    for match in (partial(_in_order, attrgetter("name")), partial(_in_order, attrgetter("file")), _alike_but_for_names):
        left = [model for model in old if id(model) not in found]
        for first, second in match(left, [model for model in new if id(model) not in taken]):
            found[id(first)] = second
            taken.add(id(second))
    alone = [model for model in old if id(model) not in found], [model for model in new if id(model) not in taken]
    if len(alone[0]) == len(alone[1]) == 1:
        found[id(alone[0][0])] = alone[1].pop()
    return [*((first, found.get(id(first))) for first in old), *((None, second) for second in alone[1])]


def _in_order(name_of: Callable[[ModelTraits], str | None], old: Sequence[ModelTraits], new: Sequence[ModelTraits]) -> Matches:
    """Pair the models of each name, in their order."""
    named: dict[str | None, deque[ModelTraits]] = {}
    for model in new:
        named.setdefault(name_of(model), deque()).append(model)
    for model in old:
        name = name_of(model)
        if name is not None and named.get(name):
            yield model, named[name].popleft()


def _alike_but_for_names(old: Sequence[ModelTraits], new: Sequence[ModelTraits]) -> Matches:
    """Pair each model with the first that is alike. Only models of the same facts are compared with each other."""
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
    """Return all facts of a model except names and those of its manifest; of external data, the digests."""
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
    """Names and digests that distinguish models of the same facts."""

    inside: Hashable
    data: dict[str, str]
    sha256: str

    @classmethod
    def of(cls, model: ModelTraits) -> _Names:
        return cls(frozenset(facts(model.inside.get("names", {})).items()), dict(model.data["external data"]), model.sha256)

    def alike(self, other: _Names) -> bool:
        """Return whether only names differ. Other names, also of external data, explain that the files differ."""
        if self.data.keys() != other.data.keys():
            return True
        return self.data == other.data and (self.sha256 == other.sha256 or self.inside != other.inside)
