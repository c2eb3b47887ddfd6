"""Sessions of a group: the members that one process compiles together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal

from msgspec import Struct

from epbuild.core.errors import Problem, suggest_nearest
from epbuild.recipe.model import GroupMember, GroupSpec, Reference


class Session(Struct, frozen=True):
    """Members that one process compiles, in the order of the group."""

    members: tuple[GroupMember, ...]
    share: bool = False
    """True if the members share weights."""
    set_name: str = ""
    """Name of the sharing set: its first member. Empty if the group has only one set."""

    @property
    def compiled(self) -> bool:
        """False if the session emits its only model without compiling it."""
        return self.members[0].compiled

    @property
    def step_kind(self) -> Literal["compile", "copy"]:
        return "compile" if self.compiled else "copy"


def list_sessions(group: GroupSpec) -> list[Session]:
    """Return the sessions of a group, in the order of their first members. Members that share no weights are alone."""
    members = {member.name: member for member in group.members}
    sets = _list_sharing_sets(group, members)
    set_of = {name: names for names in sets for name in names}
    found: list[Session] = []
    for member in members.values():
        names = set_of.get(member.name)
        if names is None:
            found.append(Session((member,)))
        elif member.name == names[0]:
            set_name = names[0] if len(sets) > 1 else ""
            found.append(Session(tuple(members[name] for name in names), share=True, set_name=set_name))
    return found


def _list_sharing_sets(group: GroupSpec, members: dict[str, GroupMember]) -> list[list[str]]:
    """Return the names of the compiled members of each sharing set, in the order of the group."""
    if not group.share_weights:
        return []
    sets = [{reference.name for reference in names} for names in group.sharing_sets] or [set(members)]
    listed = ([name for name, member in members.items() if member.compiled and name in names] for names in sets)
    return [names for names in listed if names]


def find_sharing_set_problems(group: GroupSpec) -> Iterator[Problem]:
    """Yield a problem for each name in a sharing set that is unknown, repeated, or the name of a member that is not compiled."""
    members = {member.name: member for member in group.members}
    seen: dict[str, Reference] = {}
    for reference in (reference for names in group.sharing_sets for reference in names):
        name = reference.name
        if name not in members:
            message = f"'share_weights' names '{name}', which is not a model of the group '{group.name}'"
            hint = suggest_nearest(name, members) or f"Models of the group: {', '.join(members)}."
            yield Problem("EPB230", message, reference.where, hint)
        elif not members[name].compiled:
            message = f"the model '{name}' is not compiled and cannot share a context binary"
            yield Problem("EPB230", message, reference.where, "Remove it from 'share_weights', or remove its 'compile: none'.")
        elif seen.setdefault(name, reference) is not reference:
            message = f"'share_weights' names the model '{name}' twice"
            yield Problem("EPB230", message, reference.where, "List each model in one set only.")


def find_size_limit_problems(sessions: Iterable[Session]) -> Iterator[Problem]:
    """Yield a problem for each member of a sharing set whose size limits differ from those of the set's first member."""
    for session in sessions:
        first = session.members[0].expect
        for member in session.members:
            if member.expect.size_limits != first.size_limits:
                message = f"the model '{member.name}' has size limits of its own, but it shares a context binary"
                hint = (
                    "Write 'max_bytes' and 'max_growth' in the group's own 'expect'. They apply to each sharing set as a whole."
                )
                yield Problem("EPB230", message, member.expect.where or member.model.where, hint)
