"""Toolchains of a plan: existing environments, and records of other toolchains.

The identity of a toolchain comes from the first of these that exists: its environment, its records (`toolchain.identity`) in the store, or
its records in a remote cache. Otherwise, the toolchain is provisioned (`session.provisioning`). Some toolchains cannot be provisioned on
this machine, because the recipe names other platforms or the EP cannot compile here. They are identified by the records of a locked
platform, so that results compiled there are found here.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from msgspec import Struct

from epbuild.cache.records import ActionRecords
from epbuild.core.digest import hash_file
from epbuild.core.installer import UvListener
from epbuild.plan.possible import find_obstacle
from epbuild.plan.steps import Action, Emission, InTarget, Plan, ToolchainNeeds
from epbuild.survey.jobs import list_possible_platforms
from epbuild.toolchain.environment import Environment, Toolchains
from epbuild.toolchain.fingerprint import NotProbed
from epbuild.toolchain.identity import (
    Identified,
    RecordedToolchain,
    build_record_documents,
    compute_record_key,
    find_recorded_toolchain,
    make_records,
)
from epbuild.toolchain.lock import LockedEnvironment
from epbuild.toolchain.platforms import get_own_platform, read_drivers

if TYPE_CHECKING:
    from epbuild.session.lock import HeldLock

Place = tuple[str, str]
"""Names of a toolchain and a platform. The platform is empty for this machine if epbuild has no name for its platform."""


class SharedRecords(Protocol):
    """Toolchain records in a remote cache."""

    def toolchains(self, wanted: Mapping[str, str]) -> Mapping[str, Mapping[str, Any]]:
        """Return the usable records by key. `wanted` has the toolchain's name for each key to look up."""


class ToolchainSources(Struct, frozen=True):
    """Sources of toolchain identities."""

    environments: Toolchains
    records: ActionRecords
    remote: SharedRecords | None = None


class UnknownToolchain(Struct, frozen=True):
    """Locked toolchain whose identity on a platform is unknown, with an action that needs it and the keys of the toolchain's records."""

    action: Action
    platform: str
    needs: ToolchainNeeds
    locked: LockedEnvironment
    records: frozenset[str]


class PlanToolchains:
    """Toolchains of a plan, with their known identities. `base` is the recipe's folder. Only the `remember` methods write files."""

    def __init__(self, plan: Plan, base: Path, lock: HeldLock, sources: ToolchainSources) -> None:
        self.needs = plan.toolchains()
        self._base = base
        self._lock = lock
        self._sources = sources
        self._here = lock.platform or ""
        self._possible: dict[tuple[str, str], tuple[Place, ...]] = {}
        """Places where an action can run, by the names of its toolchain and target."""
        self._used = {
            action.target.name: action.identity_parts[0] for action in plan.actions.values() if isinstance(action, InTarget)
        }.values()
        used = {place for action in plan.actions.values() for place in self._find_places(action)}
        self.environments: dict[str, Environment] = {}
        """Existing environments by name. Others are added when they are provisioned."""
        for name in self.needs:
            if (name, self._here) in used and self.is_ready(name):
                with suppress(NotProbed):
                    self.environments[name] = self.prepare(name)
        self._documents = {
            place: documents
            for place in sorted(used)
            if (locked := self._find_locked(place)) is not None
            and (
                documents := build_record_documents(locked, place[1], self.needs[place[0]].entries, self.needs[place[0]].packages)
            )
        }
        self._records = dict(self._read({place for place in self._documents if place[0] not in self.environments}))
        self._recorded = dict(self._identify())

    def of(self, action: Action) -> Identified | None:
        """Return the identity of an action's toolchain; None if it is unknown."""
        for name, platform in self._find_places(action):
            found = self.environments.get(name) if platform == self._here else None
            recorded = found or self._recorded.get((name, platform))
            if recorded is not None and (platform == self._here or not _depends_on_host(action)):
                return recorded
        return None

    def identify(self, plan: Plan) -> dict[str, Identified | str]:
        """Return the identity of each action's toolchain, by action. If it is unknown, return the reason instead."""
        stored = [action for action in plan.actions.values() if not isinstance(action, Emission)]
        return {action.id: self.of(action) or self._explain_unknown(action) for action in stored}

    def find_locked_environment(self, action: Action) -> tuple[str, LockedEnvironment | None]:
        """Return the platform for which an action's key is computed, and the toolchain's locked environment for it, or None."""
        places = self._find_places(action)
        known = (place for place in places if place[1] == self._here or place in self._recorded)
        place = next(known, (places or (("", self._here),))[0])
        return place[1] or get_own_platform() or "", self._find_locked(place) if place[0] else None

    def list_unidentified(self, actions: Iterable[Action]) -> dict[Place, UnknownToolchain]:
        """Return the locked toolchains with an unknown identity, each with the first action that needs it."""
        found: dict[Place, UnknownToolchain] = {}
        for action in actions:
            if self.of(action) is not None:
                continue
            for place in self._find_places(action):
                locked = self._find_locked(place)
                is_asked = place in self._documents and (place[1] == self._here or not _depends_on_host(action))
                if is_asked and locked is not None and place not in found:
                    keys = frozenset(map(compute_record_key, self._documents[place].values()))
                    found[place] = UnknownToolchain(
                        action, place[1] or get_own_platform() or "", self.needs[place[0]], locked, keys
                    )
        return found

    def reread_records(self, places: Iterable[Place]) -> None:
        """Read the records of `places` again, as they may have been published in the meantime."""
        self._records |= dict(self._read({*places}))
        self._recorded |= dict(self._identify())

    def _explain_unknown(self, action: Action) -> str:
        """Return why the toolchain of an action is unknown."""
        name = action.runs_in.toolchain.name if action.runs_in is not None else ""
        if self.is_for_here(action) and not self._sources.environments.may_run and self.is_ready(name):
            return f"the identity of the toolchain '{name}' is unknown, because --no-exec starts no programs"
        if self.is_for_here(action):
            return f"the toolchain '{name}' is not provisioned yet"
        return self.explain_obstacle(action)

    def is_for_here(self, action: Action) -> bool:
        """Return whether an action can run on this machine, as far as is known."""
        return any(platform == self._here for _, platform in self._find_places(action))

    def explain_obstacle(self, action: Action) -> str:
        """Return why an action cannot run on this machine, as a clause."""
        reason = find_obstacle(action.target, sys.platform) if isinstance(action, InTarget) else None
        if reason is not None:
            return reason.removesuffix(".")
        name = action.runs_in.toolchain.name if action.runs_in is not None else ""
        return f"the toolchain '{name}' is for {', '.join(self._lock.elsewhere.get(name, ()))}, but this machine is {self._here}"

    def is_ready(self, name: str) -> bool:
        """Return whether the environment of a toolchain exists."""
        return self._sources.environments.is_ready(self.needs[name].toolchain, self._base, self._lock.environments.get(name))

    def prepare(self, name: str, listener: UvListener | None = None) -> Environment:
        """Return the environment of a toolchain. Provision it if it is missing. Raises ToolchainError."""
        toolchain, entries, packages = self.needs[name]
        locked = self._lock.environments.get(name)
        return self._sources.environments.prepare(toolchain, self._base, entries, locked, packages, listener)

    def recorded(self, name: str) -> RecordedToolchain | None:
        """Return the record that was used for a toolchain without an environment, or None if no record was used."""
        return self._recorded.get((name, self._here))

    def records(self, name: str, environment: Environment) -> dict[str, dict[str, Any]]:
        """Return the records, by key, of a toolchain whose environment matches the lock."""
        return dict(make_records(environment, self._documents.get((name, self._here), {}).values()))

    def remember(self, records: Mapping[str, Mapping[str, Any]]) -> None:
        """Store records that are new or different. Raises StoreError."""
        for key, record in records.items():
            if self._sources.records.get(key) != record:
                self._sources.records.put(key, record)

    def remember_known(self) -> None:
        """Store the records that came from a remote cache. Raises StoreError."""
        for records in self._records.values():
            self.remember({compute_record_key(record["document"]): record for record in records.values()})

    def watched(self) -> dict[Path, str]:
        """Return the files and folders that identities came from, with their SHA-256, or "" if it is unknown. Raises OSError."""
        files = [path for environment in self.environments.values() for path in environment.list_watched()]
        keys = {
            compute_record_key(document)
            for place in self._recorded
            if not self._is_replaced(place)
            for document in self._documents[place].values()
        }
        kept = [self._sources.records.place(key) for key in sorted(keys)]
        return {**dict.fromkeys(files, ""), **{path: hash_file(path) if path.is_file() else "" for path in kept}}

    def drivers(self) -> Mapping[Any, str]:
        """Return the versions of the drivers that identities depend on, by arguments of `read_driver_version`."""
        return read_drivers(entry for uses in self._used for entry in uses)

    def list_absent_files(self) -> list[Path]:
        """Return a path for each toolchain that is known only from a record.

        The path will exist once the environment is complete. The environment then replaces the record.
        """
        missing = [name for name, platform in self._recorded if platform == self._here and name not in self.environments]
        return [
            self._sources.environments.place(self.needs[name].toolchain, self._base, self._lock.environments.get(name))
            for name in missing
        ]

    def _is_replaced(self, place: Place) -> bool:
        """Return whether a toolchain that was known only from a record now has an environment."""
        return place[1] == self._here and place[0] in self.environments

    def _find_places(self, action: Action) -> tuple[Place, ...]:
        """Return the places where an action can run, each a toolchain and a platform: only this platform if possible, or else all."""
        needs = action.runs_in
        if needs is None:
            return ()
        name = needs.toolchain.name
        asked = (name, action.target.name if isinstance(action, InTarget) else "")
        found = self._possible.get(asked)
        if found is None:
            platforms = list_possible_platforms(action, self._here, sys.platform, self._lock.elsewhere.get(name, {}))
            chosen = (self._here,) if self._here in platforms else platforms
            found = self._possible[asked] = tuple((name, platform) for platform in chosen)
        return found

    def _find_locked(self, place: Place) -> LockedEnvironment | None:
        name, platform = place
        if platform == self._here:
            return self._lock.environments.get(name)
        return self._lock.elsewhere[name][platform]

    def _read(self, places: set[Place]) -> Iterator[tuple[Place, Mapping[str, Mapping[str, Any]]]]:
        """Yield each place with its records by Python package. A record that the store lacks is read from the remote cache."""
        keys = {
            place: {module: compute_record_key(document) for module, document in self._documents[place].items()}
            for place in places
        }
        wanted = {key: name for (name, _), of in keys.items() for key in of.values()}
        found: dict[str, Mapping[str, Any]] = {}
        for key in wanted:
            record = self._sources.records.get(key)
            if record is not None:
                found[key] = record
        if self._sources.remote is not None:
            found |= self._sources.remote.toolchains({key: name for key, name in wanted.items() if key not in found})
        for place, of in keys.items():
            yield place, {module: found[key] for module, key in of.items() if key in found}

    def _identify(self) -> Iterator[tuple[Place, RecordedToolchain]]:
        for place, records in self._records.items():
            found = find_recorded_toolchain(records) if records.keys() == self._documents[place].keys() else None
            if found is not None:
                yield place, found


def _depends_on_host(action: Action) -> bool:
    return isinstance(action, InTarget) and any(entry.output_depends_on_host for entry in action.identity_parts[0])
