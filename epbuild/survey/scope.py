"""The scope of a survey: the part of a recipe that has to be looked at again.

What a snapshot was taken of is kept in pieces: each step and each action with what it needs and its files, and the recipe itself, a pickle
for each of its models, targets and groups. So the part that a change concerns can be planned alone: the groups and targets whose files
have changed, what is made of them, and whatever shares an output with them.
"""

from __future__ import annotations

import marshal
import pickle
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

from epbuild.core.atomic import write_file
from epbuild.core.errors import Problem
from epbuild.plan.steps import Action, Emission, Plan, SessionGroup, Step, StepKind
from epbuild.plan.verification import Verification
from epbuild.recipe.model import GroupSpec, Recipe
from epbuild.survey.snapshot import look_again, view_of
from epbuild.survey.snapshot_file import PIECES, Snapshot, place_of

Place = tuple[str, str]
"""A group and a target: what the parts of a plan are about."""


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


@dataclass(frozen=True)
class KnownPlan:
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

    def matching(self, globs: Sequence[str]) -> set[int]:
        """The actions of the steps whose ids match a glob."""
        return {step.action for step in self.steps if any(fnmatchcase(step.id, glob) for glob in globs)}

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

    def with_what_shares_an_output(self, places: set[Place]) -> set[Place]:
        """These places, and those that an output has beside one of them: a part of an output cannot be planned alone."""
        before = -1
        while places and len(places) > before:
            before = len(places)
            for action in self.actions:
                if len(action.places) > 1 and not places.isdisjoint(action.places):
                    places = places.union(action.places)
        return places


@dataclass(frozen=True)
class Scope:
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
        """The ids of the actions that are looked at."""
        return tuple(self.known.actions[number].id for number in sorted(self.again))

    @property
    def is_locked(self) -> bool:
        """Whether the recipe has a lock, and everything was as it has it."""
        return self.look.facts.lock == "held"

    def warnings(self, plan: Plan) -> tuple[Problem, ...]:
        """The warnings about all that was asked for, of which `plan` is the part that is looked at."""
        found: dict[Problem, None] = {}
        for number in sorted(self.asked):
            action = self.known.actions[number]
            warned = plan.warned.get(action.id, ()) if number in self.again else map(Problem.from_plain, action.warnings)
            found.update(dict.fromkeys(warned))
        return tuple(found)

    def rest(self, plan: Plan) -> list[tuple[Step, str | None, tuple[str, ...]]]:
        """The steps that are not in `plan`, the part that is looked at: each with its key and its outputs."""
        actions = self.known.actions
        return [
            (Step(step.id, step.kind, step.needs, actions[step.action].id), actions[step.action].key, step.outputs)
            for step in self.known.steps
            if step.action in self.asked and actions[step.action].id not in plan.actions
        ]

    def order(self) -> list[str]:
        """The ids of all steps that were asked for, in the plan's order."""
        return [step.id for step in self.known.steps if step.action in self.asked]


def find_scope(recipe: Path, settings: Sequence[str], selection: Sequence[str] = (), wanted: Sequence[str] = ()) -> Scope | None:
    """What of a recipe has to be looked at for the steps that match `selection`, where those that match `wanted` are in any case.

    `settings` are the texts of `--set`. None where that is not known, and all has to be looked at.
    """
    look = look_again(str(recipe), settings)
    place = place_of(str(recipe), settings, ())
    if look is None or look.facts.view != view_of(str(recipe)) or look.facts.lock == "doubted":
        return None
    if any(number < look.facts.shared for number in look.changed):
        return None
    known = KnownPlan.of(look)
    asked = set(range(len(known.actions)))
    if selection:
        if not all(known.matching([glob]) for glob in selection):
            return None  # what is wrong with that is found where the whole recipe is read
        asked = known.with_what_they_need(known.matching(selection))
    changed = set(look.changed)
    again = {*look.facts.unsettled, *known.matching(wanted)}
    again |= {number for number, action in enumerate(known.actions) if not changed.isdisjoint(action.files)}
    again = known.with_what_follows(again) & asked
    places = known.with_what_shares_an_output({place for number in again for place in known.actions[number].places})
    part = _part(f"{place}{PIECES}", (look.facts.identity, look.facts.recipe), places)
    return Scope(part, frozenset(again), frozenset(asked), known, look) if part is not None else None


def places_of(action: Action) -> tuple[Place, ...]:
    """What an action is about; nothing for one that several groups may need."""
    match action:
        case SessionGroup() | Verification():
            return ((action.group, action.target.name),)
        case Emission():
            return tuple((part.group, part.target.name) for part in action.parts)
        case _:
            return ()


def keep_recipe(place: str, identity: tuple[Any, ...], recipe: Recipe) -> None:
    """Write a recipe in pieces, for the snapshot at `place`. Where that fails, all has to be looked at the next time."""
    pieces = [
        {name: pickle.dumps(value) for name, value in section.items()}
        for section in (recipe.models, recipe.targets, recipe.groups)
    ]
    base = pickle.dumps(replace(recipe, models={}, targets={}, groups={}))
    try:
        Path(place).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_file(Path(f"{place}{PIECES}"), marshal.dumps(((identity, recipe.digest), base, *pieces)), durable=False, mode=0o600)
    except OSError:
        return


def _part(place: str, written_for: tuple[Any, ...], places: Collection[Place]) -> Recipe | None:
    """The recipe of these groups for these targets; None where the pieces are gone, or are those of another snapshot."""
    try:
        written, base, *pieces = marshal.loads(Path(place).read_bytes())  # noqa: S302 - as trusted as the program
        if written != written_for:
            return None
        recipe: Recipe = pickle.loads(base)  # noqa: S301 - likewise
        models, targets, groups = pieces
        wanted = {group for group, _ in places}
        found: dict[str, GroupSpec] = {name: pickle.loads(groups[name]) for name in groups if name in wanted}  # noqa: S301
    except (OSError, ValueError, EOFError, TypeError, LookupError, AttributeError, ImportError, pickle.PickleError):
        return None
    found = {
        name: group._replace(targets=tuple(target for target in group.targets if (name, target.name) in places))
        for name, group in found.items()
    }
    compiled = {member.model.name for group in found.values() for member in group.members}
    aimed = {target for _, target in places}
    return replace(
        recipe,
        models={name: pickle.loads(piece) for name, piece in models.items() if name in compiled},  # noqa: S301
        targets={name: pickle.loads(piece) for name, piece in targets.items() if name in aimed},  # noqa: S301
        groups=found,
    )
