"""Pairs of artifacts that belong together, at two paths."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import PurePosixPath

from epbuild.verify.artifact import ArtifactFolder

Pair = tuple[ArtifactFolder | None, ArtifactFolder | None]


def paired_artifacts(old: Sequence[ArtifactFolder], new: Sequence[ArtifactFolder]) -> list[Pair]:
    """Each artifact with the one that it belongs to; one that has no other is alone.

    They belong together by their group and target and their place below the two paths; then by group and target alone, where each side
    has these once; then by their place alone. One each belong together whatever they are and wherever they lie.
    """
    if len(old) == len(new) == 1:
        return [(old[0], new[0])]
    found: list[Pair] = []
    before, after = list(old), list(new)
    for name_of in (lambda item: (item.place, _group_and_target(item)), _group_and_target, lambda item: item.place):
        met = _once(name_of, before) & _once(name_of, after)
        partners = {name_of(item): item for item in after if name_of(item) in met}
        found += [(item, partners[name_of(item)]) for item in before if name_of(item) in met]
        before, after = ([item for item in side if name_of(item) not in met] for side in (before, after))
    found += [*((item, None) for item in before), *((None, item) for item in after)]
    return sorted(found, key=lambda pair: PurePosixPath(place_of(pair)).parts)


def place_of(pair: Pair) -> str:
    """Where the artifact lies now, as seen from the path that was asked for; where it lay, if it is gone."""
    old, new = pair
    item = new or old
    return item.place if item is not None else ""


def _once(name_of: Callable[[ArtifactFolder], object], side: Sequence[ArtifactFolder]) -> set[object]:
    return {name for name, count in Counter(map(name_of, side)).items() if count == 1 and name is not None}


def _group_and_target(artifact: ArtifactFolder) -> object:
    """The group and the target that it was made for; None without a manifest."""
    if artifact.manifest is None:
        return None
    return artifact.manifest.group, artifact.manifest.target
