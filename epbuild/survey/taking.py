"""The taking of a snapshot, at the end of a run."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from stat import S_ISDIR, S_ISLNK, S_ISREG
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field

from epbuild.core.changetime import changed_ns
from epbuild.core.digest import digest_of
from epbuild.core.safepath import links_on_the_way
from epbuild.plan.steps import Plan
from epbuild.recipe.model import Recipe
from epbuild.survey.pieces import Pieces
from epbuild.survey.scope import KnownAction, KnownPlan, KnownStep, Scope, places_of
from epbuild.survey.snapshot import clock, environment_of, identity_of, is_settled, view_of
from epbuild.survey.snapshot_file import PART, Facts, place_of, write

if TYPE_CHECKING:
    from epbuild.survey.snapshot_file import PlainProblem, Snapshot, Stat

Moment = tuple[int, int]
"""What `snapshot.clock` gives."""

_SMALL_BYTES = 1 << 20
"""What is no larger is read again at the end of a run, where its times could not be trusted when it was written."""


class Ended(Struct, frozen=True):
    """How an action stands at the end of a run: its key, whether it is current, and its files with their SHA-256 where it is known."""

    key: str | None
    settled: bool
    files: Mapping[str | Path, str]


class Looked(Struct, frozen=True):
    """What a run has looked at, and what came of it."""

    recipe: Recipe
    plan: Plan
    """Of all that was asked for, or of the part that was looked at again: the `scope`."""
    scope: Scope | None
    began: Moment
    variables: Mapping[str, str | None]
    """Those of the environment that the recipe read."""
    lock: str
    """As `snapshot_file.Facts` has it."""
    shared: Mapping[Path, str]
    """Files that concern every action, with their SHA-256 where it is known. Empty with a scope: none of them has changed."""
    absent: Sequence[Path]
    actions: Mapping[str, Ended]
    """How the actions of the plan stand."""
    outputs: Mapping[str, tuple[str, ...]]
    """What people look for in the outputs of its steps, by id."""
    drivers: Mapping[Any, str] = field(default_factory=dict)
    """The versions of the drivers that it depends on, by how each is read."""


def take(looked: Looked, settings: Sequence[str], selection: Sequence[str]) -> None:
    """Leave a snapshot of what a run has `looked` at, read with `settings`, of the steps that match `selection`.

    There is none where a file that concerns everything is too young to be trusted and its content is not known, or where the snapshot
    cannot be written: it only saves time.
    """
    recipe, scope = str(looked.recipe.file), looked.scope
    # With a scope it is that of the whole recipe, of which this is a part.
    place, identity = place_of(recipe, settings, selection if scope is None else ()), identity_of(recipe)
    if place is None or identity is None or (scope is not None and identity != scope.look.facts.identity):
        return  # a memory that was found damaged and set aside in the meantime knows nothing of the rest
    if scope is not None and not looked.plan.actions:
        if scope.look.stats:
            scope.look.refresh(place)
        return
    files = _WatchedFiles(recipe, looked.began, scope.look if scope is not None else None)
    if scope is None and files.added(looked.shared, shared=True) is None:
        return
    known, unsettled = _known(looked, files)
    absent = [files.absolute(path) for path in looked.absent]
    links = {files.name_of(link): target for link, target in links_on_the_way([*files.new, *absent]).items()}
    if any(map(os.path.lexists, absent)):
        return
    facts = Facts(
        identity=identity,
        recipe=looked.recipe.digest,
        environment=environment_of(looked.variables),
        absent=tuple(dict.fromkeys((*(scope.look.facts.absent if scope is not None else ()), *map(files.name_of, absent)))),
        links=tuple({**(dict(scope.look.facts.links) if scope is not None else {}), **links}.items()),
        view=view_of(recipe),
        drivers=tuple({**dict(scope.look.facts.drivers if scope is not None else ()), **looked.drivers}.items()),
        lock=looked.lock,
        warnings=tuple(dict.fromkeys((*(plain for action in known.actions for plain in action.warnings), *_plain(looked)))),
        steps=len(known.steps),
        unsettled=tuple(unsettled),
        shared=files.shared,
        fresh=tuple(sorted(files.fresh)),
    )
    if scope is None:
        Pieces.of(looked.recipe).write(place, (identity, looked.recipe.digest))
    write(place, facts, files.stats, files.digests, known.plain, files.same)


def _plain(looked: Looked) -> Iterator[PlainProblem]:
    """The warnings that were given, but for those about actions, which these have."""
    if looked.scope is None:  # else there is no doubt about a lock, which all others are about
        warned = {problem for found in looked.plan.warned.values() for problem in found}
        yield from (warning.plain for warning in looked.plan.warnings if warning not in warned)


def _known(looked: Looked, files: _WatchedFiles) -> tuple[KnownPlan, list[int]]:
    """All steps and actions, with the numbers of their files; and the numbers of the actions that are not settled."""
    scope, plan = looked.scope, looked.plan
    unsettled: set[str] = set()

    def ended(ident: str) -> KnownAction:
        action, now = plan.actions[ident], looked.actions[ident]
        numbers = files.added(now.files)
        if numbers is None or not now.settled:
            unsettled.add(ident)
        warnings = tuple(problem.plain for problem in plan.warned.get(ident, ()))
        return KnownAction(ident, now.key, action.needs, places_of(action), tuple(numbers or ()), warnings)

    if scope is None:
        actions = [ended(ident) for ident in plan.actions]
        numbers = {ident: number for number, ident in enumerate(plan.actions)}
        steps = [KnownStep(step.id, step.kind, step.needs, numbers[step.action], looked.outputs[step.id]) for step in plan.steps]
    else:
        unsettled |= {scope.known.actions[number].id for number in scope.look.facts.unsettled} - plan.actions.keys()
        actions = [ended(action.id) if action.id in plan.actions else action for action in scope.known.actions]
        actions = files.without_unused(actions)
        now = looked.outputs
        steps = [step._replace(outputs=now[step.id]) if step.id in now else step for step in scope.known.steps]
    known = KnownPlan(steps, actions)
    return known, [number for number, action in enumerate(actions) if action.id in unsettled]


class _WatchedFiles:
    """The files of a snapshot, each once, as they are numbered: those of the one before, and those that were looked at since."""

    def __init__(self, recipe: str, began: Moment, before: Snapshot | None) -> None:
        self.stats, self.digests = before.files() if before is not None else ([], [])
        self.fresh = set(before.facts.fresh) if before is not None else set[int]()
        self.shared = before.facts.shared if before is not None else 0
        """How many, the first ones, concern everything."""
        self.same = dict(enumerate(before.parts)) if before is not None else dict[int, memoryview]()
        """The parts of the stats that are as they were written before."""
        for number in before.stats if before is not None else ():
            self.same.pop(number // PART, None)
        self.new: list[str] = []
        """The absolute paths of those that were looked at."""
        # A shorter way to a file is a faster one: names below the recipe's folder are looked up from there.
        self._here = os.getcwd()  # noqa: PTH109
        self._below = os.path.join(os.path.dirname(self.absolute(recipe)), "")  # noqa: PTH118, PTH120
        self._recipe = recipe
        self._began = began
        self._now: Moment | None = None
        self._numbers = {stat[0]: number for number, stat in enumerate(self.stats)}
        self._looked_at: set[int] = set()

    def absolute(self, path: str | Path) -> str:
        """The path from the root: not shortened, as `link/..` is the folder above the one that the link leads to."""
        return os.path.join(self._here, str(path))  # noqa: PTH118

    def name_of(self, path: str) -> str:
        """An absolute path as the snapshot has it."""
        return path.removeprefix(self._below)

    def added(self, files: Mapping[Any, str], *, shared: bool = False) -> list[int] | None:
        """The numbers of files; None where one is gone, or cannot be trusted and is not known by its SHA-256.

        Those that are `shared` concern everything; they are added before any others.
        """
        found: list[int | None] = []
        for path, digest in files.items():
            absolute = self.absolute(path)
            name = self.name_of(absolute)
            number = self._numbers.get(name)
            if number is None or (number not in self._looked_at and number >= self.shared):
                self.new.append(absolute)
                number = self._add(absolute, name, digest)
            found.append(number)
        if shared:
            self.shared = len(self.stats)
        complete = [number for number in found if number is not None]
        return complete if len(complete) == len(found) else None

    def without_unused(self, actions: list[KnownAction]) -> list[KnownAction]:
        """The actions, with numbers of files that leave none out, where the one before had files that no action has any more."""
        used = {*range(self.shared), *(number for action in actions for number in action.files)}
        if len(used) == len(self.stats):
            return actions
        self.same.clear()
        numbers = {old: new for new, old in enumerate(sorted(used))}
        self.stats = [self.stats[number] for number in numbers]
        self.digests = [self.digests[number] for number in numbers]
        self.fresh = {numbers[number] for number in self.fresh if number in numbers}
        return [action._replace(files=tuple(numbers[number] for number in action.files)) for action in actions]

    def _add(self, absolute: str, name: str, digest: str) -> int | None:
        try:
            seen = os.lstat(absolute)
            if S_ISLNK(seen.st_mode):  # the links on the way are watched as such
                absolute = os.path.realpath(absolute)
                name, seen = self.name_of(absolute), os.lstat(absolute)
            if not (S_ISREG(seen.st_mode) or S_ISDIR(seen.st_mode)):
                return None
            ctime_ns = changed_ns(absolute, seen)
            settled = is_settled(seen, ctime_ns, self._began)
            if not settled and digest and seen.st_size <= _SMALL_BYTES:
                settled = self._is_settled_by_now(absolute, seen, ctime_ns, digest)
        except OSError:
            return None
        if not settled and not digest:
            return None
        return self._put((name, seen.st_size, seen.st_mtime_ns, ctime_ns, seen.st_ino), bytes.fromhex(digest), fresh=not settled)

    def _is_settled_by_now(self, absolute: str, seen: os.stat_result, ctime_ns: int, digest: str) -> bool:
        """Whether a file that was written in this run is old enough by now, and still holds what was written."""
        if self._now is None:
            self._now = clock(self._recipe) or (0, 0)
        if not is_settled(seen, ctime_ns, self._now):
            return False
        with open(absolute, "rb", buffering=0) as file:  # noqa: PTH123 - each of tens of thousands of files, once
            return digest_of(file.readall()) == digest

    def _put(self, stat: Stat, digest: bytes, *, fresh: bool) -> int:
        number = self._numbers.setdefault(stat[0], len(self.stats))
        if number == len(self.stats):
            self.stats.append(stat)
            self.digests.append(digest)
        self.stats[number], self.digests[number] = stat, digest
        self.same.pop(number // PART, None)
        self._looked_at.add(number)
        (self.fresh.add if fresh else self.fresh.discard)(number)
        return number
