"""A result that is known, with all that it was made of."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from epbuild.plan.steps import Action, SessionGroup


@dataclass(frozen=True)
class Made:
    """An action whose result the store keeps, with what it came to: its key, the document behind the key, and its result."""

    action: Action
    """With the files that come from what it needs."""
    key: str
    document: Mapping[str, Any]
    result: Mapping[str, Any]
    needed: tuple[Made, ...] = ()
    """What it was made of, in the order of the action's `needs`."""

    @property
    def group(self) -> SessionGroup:
        """The session group that it is. Raises TypeError where it is another kind of action."""
        if not isinstance(self.action, SessionGroup):
            raise TypeError(f"{self.action.id} is no session group")
        return self.action

    def prepared(self, member: str) -> tuple[Made, ...]:
        """What made the model that a member of a session group was compiled from, in order; nothing where it was compiled as it is."""
        last = next(item.prepared for item in self.group.members if item.name == member)
        found: list[Made] = []
        made = next((made for made in self.needed if made.action.id == last), None)
        while made is not None:
            found.append(made)
            made = made.needed[0] if made.needed else None
        return tuple(reversed(found))

    def artifacts(self) -> Iterator[tuple[str, str, int]]:
        """The name, the digest and the size in bytes of each of its files."""
        for name, blob in self.result["artifacts"].items():
            yield name, blob["digest"], blob["size"]
