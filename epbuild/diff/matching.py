"""Pairing of artifacts at two paths, and of models in two artifacts."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import partial
from itertools import chain
from operator import attrgetter
from pathlib import PurePosixPath

from msgspec import Struct

from epbuild.core.differences import list_facts
from epbuild.diff.facts import ACTION_KEY, SOURCE_FILE, ModelFacts
from epbuild.verify.artifact import ArtifactFolder

ArtifactPair = tuple[ArtifactFolder | None, ArtifactFolder | None]
ModelPair = tuple[ModelFacts | None, ModelFacts | None]
Matches = Iterator[tuple[ModelFacts, ModelFacts]]


def pair_artifacts(old: Sequence[ArtifactFolder], new: Sequence[ArtifactFolder]) -> list[ArtifactPair]:
    """Return pairs of the artifacts of two sides. An artifact without a partner is paired with None.

    If each side has only one artifact, the two artifacts are a pair. Otherwise, artifacts are paired by group, target and place
    below the compared paths, then by group and target, and then by place. Each name must be unique on both sides.
    """
    if len(old) == len(new) == 1:
        return [(old[0], new[0])]
    pairs: list[ArtifactPair] = []
    old_rest, new_rest = list(old), list(new)
    for name_of in (lambda item: (item.place, _get_group_and_target(item)), _get_group_and_target, lambda item: item.place):
        names = _find_unique_names(name_of, old_rest) & _find_unique_names(name_of, new_rest)
        partners = {name_of(item): item for item in new_rest if name_of(item) in names}
        pairs += [(item, partners[name_of(item)]) for item in old_rest if name_of(item) in names]
        old_rest = [item for item in old_rest if name_of(item) not in names]
        new_rest = [item for item in new_rest if name_of(item) not in names]
    pairs += [*((item, None) for item in old_rest), *((None, item) for item in new_rest)]
    return sorted(pairs, key=lambda pair: PurePosixPath(get_place(pair)).parts)


def get_place(pair: ArtifactPair) -> str:
    """Return the artifact's new place below the compared path, or its old place if it was removed."""
    old, new = pair
    item = new or old
    return item.place if item is not None else ""


def _find_unique_names(name_of: Callable[[ArtifactFolder], object], artifacts: Sequence[ArtifactFolder]) -> set[object]:
    return {name for name, count in Counter(map(name_of, artifacts)).items() if count == 1 and name is not None}


def _get_group_and_target(artifact: ArtifactFolder) -> object:
    """Return the group and the target of an artifact, or None if it has no manifest."""
    if artifact.manifest is None:
        return None
    return artifact.manifest.group, artifact.manifest.target


def pair_models(old: Sequence[ModelFacts], new: Sequence[ModelFacts]) -> list[ModelPair]:
    """Return pairs of the models of two artifacts. A model without a partner is paired with None.

    Models are paired by name, then by file name, and then by facts. If one model is left on each side, the two are a pair.
    """
    partners: dict[int, ModelFacts] = {}
    old_rest, new_rest = list(old), list(new)
    for match in (partial(_pair_by_name, attrgetter("name")), partial(_pair_by_name, attrgetter("file")), _pair_by_facts):
        matches = list(match(old_rest, new_rest))
        partners |= {id(first): second for first, second in matches}
        paired = {id(model) for pair in matches for model in pair}
        old_rest = [model for model in old_rest if id(model) not in paired]
        new_rest = [model for model in new_rest if id(model) not in paired]
    if len(old_rest) == len(new_rest) == 1:
        partners[id(old_rest[0])] = new_rest.pop()
    return [*((model, partners.get(id(model))) for model in old), *((None, model) for model in new_rest)]


def _pair_by_name(name_of: Callable[[ModelFacts], str | None], old: Sequence[ModelFacts], new: Sequence[ModelFacts]) -> Matches:
    """Yield pairs of models with the same name, in order."""
    named: dict[str | None, deque[ModelFacts]] = {}
    for model in new:
        named.setdefault(name_of(model), deque()).append(model)
    for model in old:
        name = name_of(model)
        if name is not None and named.get(name):
            yield model, named[name].popleft()


def _pair_by_facts(old: Sequence[ModelFacts], new: Sequence[ModelFacts]) -> Matches:
    """Yield pairs of an old model and the first unpaired new model that differs from it only in names."""
    candidates: dict[Hashable, dict[int, _Names]] = {}
    for number, model in enumerate(new):
        candidates.setdefault(_collect_facts(model), {})[number] = _Names.of(model)
    for model in old:
        others = candidates.get(_collect_facts(model), {})
        names = _Names.of(model)
        match = next((number for number, other in others.items() if names.matches(other)), None)
        if match is not None:
            del others[match]
            yield model, new[match]


def _collect_facts(model: ModelFacts) -> Hashable:
    """Return all facts of a model except its names, the digest of its source and its action key."""
    inside = (
        ((sense, *place), value)
        for sense, known in model.inside.items()
        if sense != "names"
        for place, value in list_facts(known).items()
    )
    outside = (
        ((sense, *place), value)
        for sense, known in model.outside.items()
        for place, value in list_facts(known).items()
        if place[0] not in (SOURCE_FILE, ACTION_KEY)
    )
    return frozenset(chain(inside, outside)), tuple(sorted(model.data["external data"].values()))


class _Names(Struct, frozen=True):
    """Names and digests that distinguish models with the same facts."""

    inside: Hashable
    data: dict[str, str]
    sha256: str

    @classmethod
    def of(cls, model: ModelFacts) -> _Names:
        return cls(frozenset(list_facts(model.inside.get("names", {})).items()), dict(model.data["external data"]), model.sha256)

    def matches(self, other: _Names) -> bool:
        """Return whether the models are equal or differ only in names of values or of external data."""
        if self.data.keys() != other.data.keys():
            return True
        return self.data == other.data and (self.sha256 == other.sha256 or self.inside != other.inside)
