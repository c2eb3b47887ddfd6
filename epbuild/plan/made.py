"""Results that are known, with all that they were made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from epbuild.cache.blobs import BlobStore
from epbuild.plan.member import ModelFiles
from epbuild.plan.result import ActionResult, CompileResult, PreparationResult
from epbuild.plan.steps import Action, SessionGroup


class Made(Struct, frozen=True):
    """An action whose result the store keeps, with what it came to: its key, the document behind the key, and its result."""

    action: Action
    """With the files that come from what it needs."""
    key: str
    document: Mapping[str, Any]
    result: ActionResult
    needed: tuple[Made, ...] = ()
    """What it was made of, in the order of the action's `needs`."""

    @property
    def group(self) -> SessionGroup:
        """The session group that it is. Raises TypeError where it is another kind of action."""
        if not isinstance(self.action, SessionGroup):
            raise TypeError(f"{self.action.id} is no session group")
        return self.action

    @property
    def compiled(self) -> CompileResult:
        """What a session group came to. Raises TypeError where it is another kind of action."""
        if not isinstance(self.result, CompileResult):
            raise TypeError(f"{self.action.id} is no session group")
        return self.result

    def prepared(self, member: str) -> tuple[Made, ...]:
        """What made the model that a member of a session group was compiled from, in order; nothing where it was compiled as it is."""
        last = self.group.member(member).prepared
        found: list[Made] = []
        made = next((made for made in self.needed if made.action.id == last), None)
        while made is not None:
            found.append(made)
            made = made.needed[0] if made.needed else None
        return tuple(reversed(found))

    @property
    def begins(self) -> Mapping[str, Any]:
        """Of a preparation: the digests of what it began with, and the sizes that this was given."""
        begins: Mapping[str, Any]
        [begins] = self.document["source"].values()
        return begins


def prepared_files(made: Made, store: BlobStore) -> ModelFiles:
    """The files of the model that a preparation made, in the store; they may be gone from there."""
    result = made.result
    if not isinstance(result, PreparationResult):
        raise TypeError(f"{made.action.id} is no preparation")
    model = result.model
    places = {name: store.place(result.artifacts[name].digest) for name in result.names}
    external = {location: places[location] for location in model.external}
    return ModelFiles(places[model.file], external, frozenset(model.subgraph_data))


def prepared_by(made: Sequence[Made]) -> dict[str, Any]:
    """What manifests record of preparations, in order: what they began with, and what each did, the same for the same work."""
    if not made:
        return {}
    begins = made[0].begins
    sizes = {"sizes": begins["inputs"]} if "inputs" in begins else {}
    kept = ("kind", "command", "options")
    documents = (item.document["prepare"] for item in made)
    return {
        "prepared": {
            "from": {"sha256": begins["graph"], "external_data": begins["external"], **sizes},
            "by": [{name: document[name] for name in kept if name in document} for document in documents],
        }
    }
