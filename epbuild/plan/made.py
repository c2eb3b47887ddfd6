"""Keyed actions, and actions with results, each with the results that it needs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from epbuild.cache.blobs import BlobStore
from epbuild.plan.member import ModelFiles
from epbuild.plan.preparing import Preparation
from epbuild.plan.result import ActionResult, CompileResult, PreparationResult, PreparedModel
from epbuild.plan.steps import Action, SessionGroup


class KeyedAction(Struct, frozen=True):
    """Action with all its files, the results that it needs, and its key document."""

    action: Action
    key: str
    document: Mapping[str, Any]
    """Key document."""
    needed: Sequence[Made]


class Made(Struct, frozen=True):
    """Action whose result is in the store: its key, the document behind the key, and the result."""

    action: Action
    """The action, with the files that the results in `needed` provide."""
    key: str
    document: Mapping[str, Any]
    result: ActionResult
    needed: tuple[Made, ...] = ()
    """Results that the action depends on, in the order of its `needs`."""

    @property
    def group(self) -> SessionGroup:
        """The action as a session group. Raises TypeError if the action has another type."""
        if not isinstance(self.action, SessionGroup):
            raise TypeError(f"{self.action.id} is not a session group")
        return self.action

    @property
    def compiled(self) -> CompileResult:
        """The result as the result of a session group. Raises TypeError if the action has another type."""
        if not isinstance(self.result, CompileResult):
            raise TypeError(f"{self.action.id} is not a session group")
        return self.result

    def prepared(self, member: str) -> tuple[Made, ...]:
        """Return the preparations of a member's model in order, or an empty tuple if the source model was compiled unchanged."""
        last = self.group.member(member).prepared
        found: list[Made] = []
        made = next((made for made in self.needed if made.action.id == last), None)
        while made is not None:
            found.append(made)
            made = made.needed[0] if made.needed else None
        return tuple(reversed(found))

    @property
    def source(self) -> Mapping[str, Any]:
        """Digests of the files of a preparation's source model, and the sizes that the recipe sets for the model's inputs.

        The source model of `make` is its result.
        """
        source: Mapping[str, Any]
        if self.makes_source:
            model, digests = self.prepared_model, self.result.digests
            return {"graph": digests[model.file], "external": {location: digests[location] for location in model.external}}
        [source] = self.document["source"].values()
        return source

    @property
    def makes_source(self) -> bool:
        """True for the result of `make`."""
        return isinstance(self.action, Preparation) and self.action.is_make

    @property
    def prepared_model(self) -> PreparedModel:
        """Model that a preparation wrote. Raises TypeError if the action has another type."""
        if not isinstance(self.result, PreparationResult):
            raise TypeError(f"{self.action.id} is not a preparation")
        return self.result.model


def list_prepared_files(made: Made, store: BlobStore) -> ModelFiles:
    """Return the store paths of the files of a prepared model. The files may no longer be in the store."""
    model, result = made.prepared_model, made.result
    places = {name: store.place(result.artifacts[name].digest) for name in result.names}
    external = {location: places[location] for location in model.external}
    return ModelFiles(places[model.file], external, frozenset(model.subgraph_data))


def find_blobs(store: BlobStore, needed: Iterable[Made]) -> dict[Path, str]:
    """Return the SHA-256 of each blob of the `needed` results, by path in the store."""
    return {store.place(digest): digest for made in needed for digest in made.result.digests.values()}


def describe_preparations(made: Sequence[Made]) -> dict[str, Any]:
    """Return the manifest entry of a model's preparations: the source model, and the settings of each preparation in order.

    If a command makes the source model, the entry contains the command and its files.
    """
    if not made:
        return {}
    source, first = made[0].source, made[0].document
    maker = {"made": {"command": first["prepare"]["command"], "files": first["staged"]}} if made[0].makes_source else {}
    # Keep the recipe's settings, without staged names and derived settings.
    kept = ("kind", "command", "options")
    return {
        "prepared": {
            "from": {"sha256": source["graph"], "external_data": source["external"], **_describe_sizes(source), **maker},
            "by": [
                {
                    **{name: value for name, value in item.document["prepare"].items() if name in kept},
                    **(_describe_sizes(item.source) if number else {}),
                }
                for number, item in enumerate(made)
                if not item.makes_source
            ],
        }
    }


def _describe_sizes(source: Mapping[str, Any]) -> dict[str, Any]:
    return {"sizes": source["inputs"]} if "inputs" in source else {}
