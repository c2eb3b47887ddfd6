"""The scope of a survey: the part of a recipe that has to be looked at again.

A snapshot has each step and each action with what it needs and its files, and the recipe in pieces lies beside it. So the part that a
changed file concerns can be planned alone: the groups and targets that read the file, what is made of them, and whatever shares an output
with them. A recipe whose text has changed is planned as a whole.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

from msgspec import Struct

from epbuild.core.errors import Problem
from epbuild.plan.steps import Action, Emission, Plan, SessionGroup, Step, StepKind
from epbuild.plan.verification import Verification
from epbuild.recipe.model import Recipe
from epbuild.survey.pieces import Pieces, Place
from epbuild.survey.snapshot import look_again, view_of
from epbuild.survey.snapshot_file import Snapshot, place_of


class KnownStep(NamedTuple):
    """A step as a snapshot has it; `action` is the number of its action."""

    id: str
    kind: StepKind
    needs: tuple[str, ...]
    action: int
    outputs: tuple[str, ...]


class KnownAction(NamedTuple):
    """An action as a snapshot has it, with the numbers of its files."""

    id: str
    key: str | None
    needs: tuple[str, ...]
    places: tuple[Place, ...]
    files: tuple[int, ...]
    warnings: tuple[tuple[Any, ...], ...]
    """As `Problem.plain` has them."""


class KnownPlan(Struct, frozen=True):
    """The steps and actions of a snapshot, each after those that it needs."""

    steps: Sequence[KnownStep]
    actions: Sequence[KnownAction]

    @classmethod
    def of(cls, look: Snapshot) -> KnownPlan:
        """Those that were written with a snapshot."""
        steps, actions = look.steps
        return cls([KnownStep(*step) for step in steps], [KnownAction(*action) for action in actions])

    @property
    def plain(self) -> tuple[Any, Any]:
        """As marshal takes them."""
        return [tuple(step) for step in self.steps], [tuple(action) for action in self.actions]

    def numbers(self) -> dict[str, int]:
        """The number of each action, by its id."""
        return {action.id: number for number, action in enumerate(self.actions)}

    def matching(self, globs: Sequence[str]) -> list[set[int]]:
        """The actions of the steps whose ids match, of each glob."""
        return [{step.action for step in self.steps if fnmatchcase(step.id, glob)} for glob in globs]

    def with_what_follows(self, numbers: Collection[int]) -> set[int]:
        """These actions, and all that is made of them."""
        found = {self.actions[number].id for number in numbers}
        for action in self.actions:
            if not found.isdisjoint(action.needs):
                found.add(action.id)
        return {number for number, action in enumerate(self.actions) if action.id in found}

    def with_what_they_need(self, numbers: Collection[int]) -> set[int]:
        """These actions, and all that they are made of."""
        by_id, waiting, found = self.numbers(), list(numbers), set[int]()
        while waiting:
            number = waiting.pop()
            if number not in found:
                found.add(number)
                waiting += (by_id[need] for need in self.actions[number].needs)
        return found

    def results_asked_for(self, numbers: Collection[int]) -> set[int]:
        """Return those of the actions whose results are asked for themselves, since no other of them needs these.

        A result lies in the store alone, which no snapshot watches.
        """
        needed = {need for number in numbers for need in self.actions[number].needs}
        emissions = {step.action for step in self.steps if step.kind == "emit"}
        return {number for number in numbers if number not in emissions and self.actions[number].id not in needed}

    def places(self, numbers: Collection[int]) -> set[Place]:
        """What these actions are about."""
        return {place for number in numbers for place in self.actions[number].places}

    def with_what_shares_an_output(self, places: set[Place]) -> set[Place]:
        """These places, and those that an output has beside one of them: a part of an output cannot be planned alone."""
        found, before = set(places), -1
        shared = [action.places for action in self.actions if len(action.places) > 1]
        while found and len(found) > before:
            before = len(found)
            for together in shared:
                if not found.isdisjoint(together):
                    found.update(together)
        return found


class Scope(Struct, frozen=True):
    """A part of a recipe to look at, and what is known of the rest."""

    recipe: Recipe
    """The part, as a recipe of its own."""
    again: frozenset[int]
    """The numbers of the actions that are looked at; with them, whatever they need is."""
    asked: frozenset[int]
    """The numbers of the actions that the answer is about."""
    known: KnownPlan
    look: Snapshot

    @property
    def selection(self) -> tuple[str, ...]:
        """Ids of the actions to look at."""
        return tuple(self.known.actions[number].id for number in sorted(self.again))

    def warnings(self, plan: Plan) -> tuple[Problem, ...]:
        """The warnings about all that was asked for, of which `plan` is the part that is looked at."""
        found: dict[Problem, None] = {}
        for number in sorted(self.asked):
            action = self.known.actions[number]
            warned = plan.warned.get(action.id, ()) if number in self.again else map(Problem.from_plain, action.warnings)
            found.update(dict.fromkeys(warned))
        return tuple(found)

    def steps(self) -> Iterator[tuple[Step, str | None, tuple[str, ...]]]:
        """All steps that were asked for, in the plan's order, each with its key and its outputs."""
        actions = self.known.actions
        for step in self.known.steps:
            if step.action in self.asked:
                action = actions[step.action]
                yield Step(step.id, step.kind, step.needs, action.id), action.key, step.outputs

    def rest(self, plan: Plan) -> list[str]:
        """The ids of those that are not in `plan`, the part that is looked at."""
        actions = self.known.actions
        looked_at = {number for number in self.asked if actions[number].id in plan.actions} if plan.actions else set()
        rest = self.asked - looked_at
        return [step.id for step in self.known.steps if step.action in rest]


class LastLook(Struct, frozen=True):
    """A snapshot of a whole recipe that holds but for some files, and the recipe in pieces."""

    look: Snapshot
    known: KnownPlan
    pieces: Pieces

    @classmethod
    def at(cls, recipe: Path, settings: Sequence[str]) -> LastLook | None:
        """That of a recipe, read with `settings`, the texts of `--set`; None where all has to be looked at."""
        look = look_again(str(recipe), settings)
        if look is None or look.facts.view != view_of(str(recipe)) or look.facts.lock == "doubted":
            return None
        pieces = Pieces.read(str(place_of(str(recipe), settings, ())), (look.facts.identity, look.facts.recipe))
        return cls(look, KnownPlan.of(look), pieces) if pieces is not None else None

    @property
    def has_shared_changes(self) -> bool:
        """Return whether a file that concerns every action has changed: the recipe's text, the lock, a catalog, a toolchain."""
        return any(number < self.look.facts.shared for number in self.look.changed)

    def scope(self, selection: Sequence[str] = (), wanted: Sequence[str] = ()) -> Scope | None:
        """Return what has to be looked at for the steps that match `selection`; steps that match `wanted` are looked at in any case.

        None: all has to be looked at.
        """
        known = self.known
        asked = set(range(len(known.actions)))
        if selection:
            matching = known.matching(selection)
            if not all(matching):
                return None  # what is wrong with that is found where the whole recipe is read
            asked = known.with_what_they_need(set().union(*matching))
        results = known.results_asked_for(asked)
        again = known.with_what_follows(results.union(self._changed, *known.matching(wanted))) & asked
        part = self.pieces.part(known.with_what_shares_an_output(known.places(again)))
        return Scope(part, frozenset(again), frozenset(asked), known, self.look) if part is not None else None

    @property
    def _changed(self) -> set[int]:
        """The actions whose files have changed, or that were not settled."""
        changed = set(self.look.changed)
        found = {number for number, action in enumerate(self.known.actions) if not changed.isdisjoint(action.files)}
        return {*self.look.facts.unsettled, *found}


def places_of(action: Action) -> tuple[Place, ...]:
    """What an action is about; nothing for one that several groups may need."""
    match action:
        case SessionGroup() | Verification():
            return ((action.group, action.target.name),)
        case Emission():
            return tuple((part.group, part.target.name) for part in action.parts)
        case _:
            return ()
