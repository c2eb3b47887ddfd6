"""Differences between two artifacts, by category.

Each fact about an artifact belongs to a `Category`, such as its graph, settings or toolchain. Options, toolchain and source
models are known only from manifests. If one artifact has no manifest, these facts are not compared, and
`Comparison.without_manifest` lists the artifact.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args

from msgspec import Struct
from msgspec.structs import replace

from epbuild.core.differences import Kind, Place, compare_facts
from epbuild.core.errors import Problem
from epbuild.diff.facts import ACTION_KEY, SOURCE_FILE, ArtifactFacts, Category, Facts, Incomparable, ModelFacts, read_facts
from epbuild.diff.matching import get_place, pair_artifacts, pair_models
from epbuild.diff.sizes import SizeChange, compare_sizes, read_model_sizes
from epbuild.onnxfile.read.payload import Payload
from epbuild.verify.artifact import ArtifactFolder, find_artifacts

CATEGORIES: tuple[Category, ...] = get_args(Category)
_FROM_MANIFESTS = frozenset[Category]({"graph or weights", "weights", "settings", "toolchain"})
"""Categories whose equality can be determined only with manifests."""
_EFFECTS = frozenset[Category]({"context", "names"})
"""Categories whose differences never cause different contexts."""
_ONE_SIDED_ARTIFACT = ("artifact",)

Side = Literal["A", "B"]


class Difference(Struct, frozen=True):
    """Fact in which two artifacts differ. `old` or `new` is None if the artifact lacks the fact.

    `artifact` is the folder below the compared paths, if the paths contain several artifacts.
    """

    sense: Category
    kind: Kind
    place: Place
    old: Any
    new: Any
    artifact: str = ""

    @property
    def is_one_sided(self) -> bool:
        """True if the difference is one or several models that only one artifact has."""
        return self.place == _ONE_SIDED_ARTIFACT or (len(self.place) == 2 and self.place[0] == "models")

    @property
    def is_one_sided_artifact(self) -> bool:
        return self.place == _ONE_SIDED_ARTIFACT

    @property
    def is_only_bytes(self) -> bool:
        """True if only the bytes of a context differ. The size of a context is a separate fact."""
        return self.sense == "context" and self.place[-1] == "context" and None not in (self.old, self.new)

    @property
    def what(self) -> str:
        where = self.artifact.rstrip("/")
        return f"{where}: {_format_subject(self.place)}" if where else _format_subject(self.place)


class Comparison(Struct, frozen=True):
    """Differences between two artifacts, most important category first."""

    differences: tuple[Difference, ...]
    models: int
    """Number of models that both artifacts have."""
    without_manifest: tuple[Side, ...] = ()
    """Artifacts without a manifest. Their options, toolchain and source models are unknown and not compared."""
    explained: bool = True
    """True if another difference explains why contexts differ."""
    sizes: tuple[SizeChange, ...] = ()
    """Sizes of all models, context binaries and external data files, even if the sizes are equal."""
    accepted: bool = False
    """True if only bytes of contexts differ, and the recipes of both artifacts accept such differences."""
    artifacts: tuple[str, ...] = ("",)
    """Folders, below the two paths, of the artifacts that have models on both sides."""

    @property
    def senses(self) -> tuple[Category, ...]:
        found = {difference.sense for difference in self.differences}
        return tuple(sense for sense in CATEGORIES if sense in found)

    @property
    def same(self) -> tuple[Category, ...]:
        """Categories in which the artifacts are known to be equal. Empty if one artifact has a model that the other lacks."""
        if any(difference.is_one_sided for difference in self.differences):
            return ()
        unknown = {*self.senses, "graph or weights"}
        if self.without_manifest:
            unknown |= _FROM_MANIFESTS
        if "graph or weights" in self.senses:
            unknown |= {"graph", "weights"}
        return tuple(sense for sense in CATEGORIES if sense not in unknown)

    @property
    def verdict(self) -> str:
        if not self.differences:
            return f"No difference: {self.models} model{'' if self.models == 1 else 's'}, identical byte for byte."
        if self.senses == ("names",):
            return "The artifacts differ only in names."
        if self.accepted:
            return "The artifacts are equal except for bytes of contexts, and the recipe accepts such differences."
        if self.explained:
            *most, last = self.senses
            return f"The artifacts differ in {' and '.join(filter(None, (', '.join(most), last)))}."
        if self.without_manifest:
            return "The contexts differ because of weights, or because of options that only manifests list."
        return "The contexts differ although all inputs and settings are equal."


def compare(old: Path, new: Path) -> Comparison:
    """Compare the artifacts at two paths. Each path is a folder, a manifest or a model.

    Raises NothingToVerify (EPB600) if a path has no artifact, and Incomparable (EPB630) if a file cannot be read.
    """
    sha256 = cache(Payload.sha256)
    pairs = pair_artifacts(find_artifacts(old), find_artifacts(new))
    parts = []
    for pair in pairs:
        first, second = pair
        _refuse_encrypted(first, second)
        part = (
            _compare_one_sided(first, second)
            if first is None or second is None
            else compare_artifacts(read_facts(first, sha256), read_facts(second, sha256))
        )
        parts.append(part if len(pairs) == 1 else _add_place(part, first, second, get_place(pair) or "."))
    shared = tuple(get_place(pair) or "." for pair in pairs if None not in pair and any(item.models for item in pair if item))
    return Comparison(
        differences=_sort_differences(item for part in parts for item in part.differences),
        models=sum(part.models for part in parts),
        without_manifest=tuple(side for side in get_args(Side) if any(side in part.without_manifest for part in parts)),
        explained=all(part.explained for part in parts),
        accepted=any(part.accepted for part in parts) and all(part.accepted or not part.differences for part in parts),
        sizes=tuple(size for part in parts for size in part.sizes),
        artifacts=shared if len(pairs) > 1 else ("",),
    )


def _refuse_encrypted(old: ArtifactFolder | None, new: ArtifactFolder | None) -> None:
    """Raise Incomparable if one of two artifacts is encrypted, unless both have the same encrypted files."""
    digests = [{name: file.sha256 for name, file in item.encrypted.items()} if item is not None else {} for item in (old, new)]
    if digests[0] != digests[1]:
        sides = [side for side, found in zip(get_args(Side), digests, strict=True) if found]
        message = f"cannot compare the artifacts: {' and '.join(sides)} {'have' if len(sides) > 1 else 'has'} encrypted files"
        raise Incomparable(Problem("EPB630", message, None, "Run `epbuild decrypt` first, and compare the results."))


def compare_artifacts(old: ArtifactFacts, new: ArtifactFacts) -> Comparison:
    """Compare the facts of two artifacts without reading files."""
    manifests = old.has_manifest and new.has_manifest
    found = list(_compare_facts(old.whole, new.whole)) if manifests else []
    pairs = pair_models(old.models, new.models)
    for first, second in pairs:
        found += _compare_models(first, second, manifests=manifests)
    both = {id(second): first.label for first, second in pairs if first is not None and second is not None}
    orders = list(both.values()), [both[id(model)] for model in new.models if id(model) in both]
    if manifests and orders[0] != orders[1]:
        found.append(Difference("settings", "changed", ("model order",), *orders))
    causes = [item for item in found if item.sense not in _EFFECTS and item.place[-1] != ACTION_KEY]
    contexts = [item for item in found if item.sense == "context"]
    if causes or not contexts:
        # Show a changed action key only if contexts differ and no other fact explains the difference.
        found = [item for item in found if item.place[-1] != ACTION_KEY]
    return Comparison(
        differences=_sort_differences(found),
        models=len(both),
        without_manifest=tuple(side for side, items in zip(get_args(Side), (old, new), strict=True) if not items.has_manifest),
        explained=not contexts or any(item.sense not in _EFFECTS for item in found),
        accepted=bool(found)
        and old.accepts_other_bytes
        and new.accepts_other_bytes
        and all(item.is_only_bytes for item in found),
        sizes=tuple(
            compare_sizes([(first.files if first else None, second.files if second else None) for first, second in pairs])
        ),
    )


def _compare_models(old: ModelFacts | None, new: ModelFacts | None, *, manifests: bool) -> Iterator[Difference]:
    if old is None or new is None:
        if old is not None:
            yield Difference("graph", "removed", ("models", old.label), old.file, None)
        if new is not None:
            yield Difference("graph", "added", ("models", new.label), None, new.file)
        return
    place = ("models", old.label)
    names: list[dict[str, Any]] = [{"file": model.file, **({"name": model.name} if manifests else {})} for model in (old, new)]
    inside = list(_compare_facts(old.inside, new.inside, place))
    outside = list(_compare_facts(old.outside, new.outside, place))
    for kind_of_data in old.data if manifests else ("external data",):
        before, after = _align_digests(old.data[kind_of_data], new.data[kind_of_data])
        outside += _compare_facts({"weights": {kind_of_data: before}}, {"weights": {kind_of_data: after}}, place)
        if before.keys() != old.data[kind_of_data].keys():
            for model, facts in zip((old, new), names, strict=True):
                facts[f"{kind_of_data} files"] = ", ".join(sorted(model.data[kind_of_data]))
    if not manifests:
        outside = [item for item in outside if item.place[2] not in (SOURCE_FILE, ACTION_KEY)]
    yield from inside
    yield from outside
    yield from _compare_facts({"names": names[0]}, {"names": names[1]}, place)
    embedded = (old.embeds or new.embeds) and any(item.sense == "context" for item in outside)
    renamed = old.data["external data"].keys() != new.data["external data"].keys()
    if old.sha256 != new.sha256 and not (inside or embedded or renamed):
        sense: Category = "graph or weights" if old.holds_weights or new.holds_weights else "graph"
        yield Difference(sense, "changed", (*place, "other parts of the file"), old.sha256, new.sha256)


def _compare_facts(old: Facts, new: Facts, place: Place = ()) -> Iterator[Difference]:
    for sense in CATEGORIES:
        for kind, found, before, after in compare_facts(old.get(sense, {}), new.get(sense, {})):
            # The number of nodes already reports nodes that only one model has.
            if found and (found[0] != "nodes" or kind == "changed"):
                yield Difference(sense, kind, (*place, *found), before, after)


def _align_digests(old: Mapping[str, str], new: Mapping[str, str]) -> tuple[Mapping[str, str], Mapping[str, str]]:
    """Return both mappings of locations to digests. If only the locations differ, replace the locations with numbers."""
    if old.keys() == new.keys() or sorted(old.values()) != sorted(new.values()):
        return old, new
    numbered = {str(number): digest for number, digest in enumerate(sorted(old.values()))}
    return numbered, numbered


def _add_place(part: Comparison, old: ArtifactFolder | None, new: ArtifactFolder | None, place: str) -> Comparison:
    """Return the comparison of two artifacts with `place` added to each difference and size."""
    found = list(part.differences)
    if old is not None and new is not None and old.place != new.place:
        found.append(Difference("names", "changed", ("folder",), old.title.rstrip("/"), new.title.rstrip("/")))
    return replace(
        part,
        accepted=part.accepted and all(item.is_only_bytes for item in found),
        differences=tuple(replace(item, artifact=place) for item in found),
        sizes=tuple(replace(item, artifact=place) for item in part.sizes),
    )


def _compare_one_sided(old: ArtifactFolder | None, new: ArtifactFolder | None) -> Comparison:
    kind: Kind = "added" if old is None else "removed"
    before, after = (", ".join(model.file for model in item.models) if item is not None else None for item in (old, new))
    files = [
        [read_model_sizes(model, item.get_label(model)) for model in item.models] if item is not None else []
        for item in (old, new)
    ]
    pairs = [*((each, None) for each in files[0]), *((None, each) for each in files[1])]
    return Comparison((Difference("graph", kind, _ONE_SIDED_ARTIFACT, before, after),), 0, sizes=tuple(compare_sizes(pairs)))


def _sort_differences(found: Any) -> tuple[Difference, ...]:
    return tuple(sorted(found, key=lambda item: CATEGORIES.index(item.sense)))


def _format_subject(place: Place) -> str:
    if place == _ONE_SIDED_ARTIFACT:
        return "models"
    match place:
        case ("models", label):
            return f"model {label}"
        case ("models", label, "nodes", number, *rest):
            node = f"node {int(number) + 1}, " if int(number) else ""
            return f"{label}: {node}{' '.join(rest)}"
        case ("models", label, "compatibility", _, field):
            return f"{label}: compatibility, {field.replace('_', ' ')}"
        case ("models", label, "source data", location):
            return f"{label}: source data {location}"
        case ("models", label, "operators outside the EP", operator):
            return f"{label}: nodes of {operator}"
        case ("models", label, "initializers kept", name):
            return f"{label}: location of initializer {name}"
        case ("models", label, ("inputs" | "outputs" | "initializers" | "opsets") as kind, name):
            return f"{label}: {kind[:-1]} {name}"
        case ("models", label, *rest):
            return f"{label}: {' '.join(rest)}"
        case ("eps", ep, "options", name):
            return f"{ep}: option {name}"
        case ("eps", ep, *rest):
            return " ".join((f"{ep}:", *rest))
        case ("distributions", name):
            return f"package {name}"
        case ("environment", name):
            return f"environment variable {name}"
        case ("session_options", name):
            return f"session key {name}"
        case ("run_options", name):
            return f"run option {name}"
        case ("recipe" | "group" | "target",):
            return f"name of the {place[0]}"
    return " ".join(place).replace("_", " ")
