"""Status of every step, based on the store, the workspace and the disk."""

from __future__ import annotations

import os
import stat
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from epbuild.actions.types import get_action_type, is_stored, read_result, reject_reasons
from epbuild.cache.blobs import BlobSource, BlobStore
from epbuild.cache.digests import NONE_UNCHANGED, Counting, Digests, UnchangedFiles, uncounted
from epbuild.cache.errors import DamagedBlob, MissingBlob
from epbuild.cache.memo import NO_MEMO, Memo
from epbuild.cache.records import ActionRecords
from epbuild.cache.state import UNKNOWN, Configuration, OutputRecord, StepRecord
from epbuild.cache.workspace import Workspace
from epbuild.core.errors import BuildError
from epbuild.core.summary import Summarized, Summary
from epbuild.core.units import format_count
from epbuild.engine.events import DiskNeeded
from epbuild.output.existing import OwnedFiles
from epbuild.plan.key import KeyDocument, compute_action_key, describe_differences
from epbuild.plan.made import Made, find_blobs
from epbuild.plan.result import ActionResult, find_result
from epbuild.plan.source_problems import check_pins
from epbuild.plan.steps import Action, Emission, Plan, Step
from epbuild.plan.verification import is_real_device_needed
from epbuild.recipe.model import Recipe
from epbuild.survey.action_status import ActionStatus, StepState, Work, sort_into_waves
from epbuild.survey.disk import Folders, estimate_disk
from epbuild.survey.orphans import PLACE, Orphan, Outputs
from epbuild.survey.output_planner import OutputPlanner
from epbuild.survey.remembered import Failures
from epbuild.toolchain.identity import Identified

if TYPE_CHECKING:  # few builds use a remote cache
    from epbuild.survey.remote_results import RemoteResults

_LOST = "its result is no longer in the store"


Identities = Mapping[str, "Identified | str"]
"""Identity of each action's toolchain, by action, or the reason why it is unknown. Emissions have none."""


class _Keyed(Struct, frozen=True):
    """Action with a known key, and the result for the key on this machine."""

    action: Action
    key: str
    document: Mapping[str, Any]
    needed: tuple[Made, ...]
    is_here: bool
    """True if a build in this workspace had a result for this key."""
    result: ActionResult | None
    """Result in the store. None if the store has no result."""


class StepStatus(NamedTuple):
    """State of one step, for display. It is derived from the status of the step's action."""

    step: Step
    state: StepState
    reasons: tuple[str, ...]
    key: str | None
    outputs: tuple[str, ...]
    remote: bool = False
    """True if only the remote cache has the result."""
    on_real_device: bool = False
    """True if the step runs only on a real device."""


class Survey(Summarized, Struct, frozen=True, dict=True):
    """Status of every action of a plan, the actions that have to run, and the orphans."""

    plan: Plan
    actions: Mapping[str, ActionStatus]
    todo: tuple[str, ...]
    orphans: tuple[Orphan, ...] = ()
    configuration: Configuration = UNKNOWN
    """Recipe and settings of the plan."""
    disk: tuple[DiskNeeded, ...] = ()
    """File systems on which the build needs much of the free space."""
    recorded: tuple[StepStatus, ...] = ()
    """Status of every step from a snapshot, if nothing has changed. The plan then has no steps, but only its warnings and defaults."""

    @property
    def up_to_date(self) -> bool:
        """True if there is no action to run and no orphan to remove."""
        return not self.todo and not self.orphans

    @property
    def unmade(self) -> tuple[str, ...]:
        """Ids of actions that have to run, except emissions, actions whose results can be fetched, and actions that may fail."""
        stored = (ident for ident in self.todo if is_stored(self.plan.actions[ident]) and not self.actions[ident].remote)
        return tuple(ident for ident in stored if ident not in self.plan.may_fail)

    @property
    def nothing_to_try(self) -> bool:
        """True if a build would succeed without running any action.

        In that case, every action in `todo` is allowed to fail and has failed before, or needs such an action.
        """
        failed = {ident for ident in self.todo if self.actions[ident].state == "failed" and ident in self.plan.may_fail}
        for ident in self.todo:  # in dependency order
            if failed.intersection(self.plan.actions[ident].needs):
                failed.add(ident)
        return not self.orphans and failed == set(self.todo)

    def summarize(self) -> Summary:
        """Return the steps that are not current, with their reasons."""
        steps = self.steps()
        states = Counter(status.state for status in steps)
        head = f"{format_count(len(steps), 'step')}: {', '.join(f'{number} {state}' for state, number in states.items())}"
        rows = [(status.step.id, status.state, "; ".join(status.reasons)) for status in steps if status.state != "current"]
        return Summary(head, ("step", "state", "reasons"), rows)

    def steps(self) -> list[StepStatus]:
        """Return the status of every requested step, in order."""
        return list(self.recorded) or [self._get_step_status(step) for step in self.plan.steps]

    def _get_step_status(self, step: Step) -> StepStatus:
        status = self.actions[step.action]
        outputs: tuple[str, ...] = ()
        if step.action in self.plan.emissions:
            outputs = self.plan.emissions[step.action].main_files
        on_device = is_real_device_needed(self.plan, step)
        return StepStatus(step, status.state, status.reasons, status.key, outputs, status.remote, on_device)


class Surveyor:
    """Comparison of a plan with the store, the workspace and the disk. It writes only digests of files to the workspace."""

    def __init__(
        self,
        workspace: Workspace,
        store: BlobStore,
        records: ActionRecords,
        recipe: Recipe,
        configuration: Configuration,
        remote: RemoteResults | None = None,
        counting: Counting = uncounted,
    ) -> None:
        self.recipe = recipe
        self.workspace = workspace
        self.memory = workspace.memory(configuration)
        self.outputs = Outputs(workspace, self.memory)
        self.failures = Failures(workspace, configuration.recipe)
        self.store = store
        self.records = records
        self.remote = remote
        """Results in the remote cache. None if no remote cache is read."""
        self.digests = Digests(workspace.files, counting)
        self.output_planner = OutputPlanner(recipe, self.digests)
        self._is_first = False
        """True if the workspace had no results when the survey began. In that case, the survey looks up no actions in the workspace."""
        self._last_keys: Mapping[str, str] = {}
        """Last key of each action in this workspace, read in bulk when a survey begins."""
        self._last_outputs: Mapping[str, OutputRecord] = {}
        """Last output at each path, read in bulk when a survey begins."""

    def survey(
        self, plan: Plan, toolchains: Identities, memo: Memo = NO_MEMO, unchanged: UnchangedFiles = NONE_UNCHANGED
    ) -> Survey:
        """Return the status of every action of a plan, using the identities of `toolchains` that are known so far.

        The digests of `unchanged` files are not looked up. Raises PlanError if a model differs from its pin in the recipe, and StoreError
        if a file cannot be read.
        """
        self._is_first = self.memory.is_empty
        read = (str(path) for action in plan.actions.values() if is_stored(action) for path in action.files)
        digests = self.digests.of_many(read, unchanged.digests)
        check_pins(plan, digests)
        self._last_keys = {} if self._is_first else self.memory.read_verified_keys(plan.actions)
        places = (self.outputs.place(emission.path) for emission in plan.emissions.values())
        self._last_outputs = {} if self._is_first else self.memory.read_outputs_at(places)
        found: dict[str, ActionStatus] = {}
        for wave in sort_into_waves(plan.actions):
            keyed: list[_Keyed] = []
            for action in wave:
                if isinstance(action, Emission):
                    found[action.id] = self._add_kept_files(action, self._get_emission_status(action, found, memo, unchanged))
                    continue
                known = self._compute_key(action, found, toolchains, digests, memo)
                if isinstance(known, _Keyed):
                    keyed.append(known)
                else:
                    found[action.id] = known
            remote = self._find_remote(keyed)
            found |= {known.action.id: self._get_status(known, remote.get(known.key)) for known in keyed}
        found = {ident: found[ident] for ident in plan.actions}
        found = self._restore_from_remote(plan, found)
        found |= {ident: replace(found[ident], state="out of date") for ident in _find_without_results(plan, found)}
        work = Work.of(plan, found)
        # An action whose result the store has lost is still current if everything built from the result is in place.
        settled = {
            ident: replace(status, state="current", reasons=())
            if status.state == "out of date" and status.made is not None and ident not in work.wanted
            else status
            for ident, status in found.items()
        }
        folders = Folders(self.store.root, self.workspace.base)
        disk = estimate_disk(plan, settled, work.todo, folders, self._get_previous_result)
        return Survey(plan, settled, work.todo, configuration=self.memory.configuration, disk=disk)

    def result(self, action: Action, key: str) -> ActionResult | None:
        """Return the result of an action from the store, or None if the store lacks the result or any of its blobs."""
        return find_result(self.records, self.store, key, get_action_type(action).result)

    def stored(self, found: Survey) -> dict[str, Made]:
        """Return the results in a survey that the store has and that meet the recipe's expectations, by action id."""
        known = {ident: status.made for ident, status in found.actions.items() if status.made is not None and not status.remote}
        return {ident: made for ident, made in known.items() if self.result(made.action, made.key) is not None}

    def result_here(self, action: Action, key: str) -> ActionResult | None:
        """Return the result of an action that was built in this workspace, even if the store has lost the result's blobs."""
        here = self.memory.result(key)
        return read_result(action, here) if here is not None else None

    def keyed(
        self,
        action: Action,
        needed: Sequence[Made],
        toolchain: Identified,
        digests: Mapping[str, str] = MappingProxyType({}),
        memo: Memo = NO_MEMO,
    ) -> tuple[Action, str, Mapping[str, Any]]:
        """Return an action with all its files, its key, and its key document. `needed` has the results that the action needs.

        Needed results are identified by digest, so that the store may lack their blobs. Files in `digests` are not read.
        Raises StoreError if a file cannot be read.
        """
        kind = get_action_type(action)
        action = kind.resolve_inputs(action, needed, self.store)
        identity, blobs = kind.identity(action, toolchain), find_blobs(self.store, needed)
        # Select only the action's own files, because a plan may have ten thousand times as many.
        known = {name: digests[name] for name in map(str, action.files) if name in digests}
        unknown = [path for path in action.files if str(path) not in known and path not in blobs]

        def build() -> Mapping[str, Any]:
            found = {path: known[name] for path in action.files if (name := str(path)) in known}
            return kind.key_document(action, {**found, **blobs, **self.digests.of_many(unknown)}, identity)

        document, fingerprint = KeyDocument(build), kind.fingerprint(action)
        # The memo has only the key, because the documents of 100,000 steps would exceed the size limit of a memo.
        inputs = (fingerprint, identity, list(known.values())) if fingerprint and not unknown and not needed else None
        key = memo.value("key", inputs, lambda: compute_action_key(document.content), str)
        return action, key, document if inputs is not None else document.content

    def blobs_of(self, made: Sequence[Made]) -> BlobSource:
        """Return a source of the blobs of results: the store, and the remote cache if one is read."""
        return self.store if self.remote is None else self.remote.blobs_of(made)

    def is_whole(self, made: Made) -> bool:
        """Return whether the store has undamaged copies of all blobs of a result. Quarantine damaged blobs. Raises StoreError."""
        for blob in made.result.artifacts.values():
            if not self.store.has(blob.digest, blob.size):
                return False
            if not self.store.has_written(blob.digest) and self.digests.of(self.store.place(blob.digest)) != blob.digest:
                with suppress(MissingBlob, DamagedBlob):
                    self.store.check(blob.digest)
                return False
        return True

    def _compute_key(
        self,
        action: Action,
        found: Mapping[str, ActionStatus],
        toolchains: Identities,
        digests: Mapping[str, str],
        memo: Memo,
    ) -> _Keyed | ActionStatus:
        """Return an action with its key and its result in the store. If the key is unknown, return the action's status instead."""

        def pending(*reasons: str) -> ActionStatus:
            return ActionStatus("out of date" if self._was_done(action) else "new", reasons)

        unknown = get_action_type(action).unknown_inputs(action)
        if unknown:
            return pending(*unknown)
        needed = [made for ident in action.needs if (made := found[ident].made) is not None]
        if len(needed) < len(action.needs):
            return pending(*(f"needs {ident}" for ident in action.needs if found[ident].made is None))
        toolchain = toolchains[action.id]
        if isinstance(toolchain, str):
            return pending(toolchain)
        action, key, document = self.keyed(action, needed, toolchain, digests, memo)
        # A result that was built here counts even if the store has lost it, because its outputs may be in place.
        is_here = self._last_keys.get(action.id) == key or (not self._is_first and self.memory.result(key) is not None)
        return _Keyed(action, key, document, tuple(needed), is_here, self.result(action, key))

    def _get_previous(self, action: Action) -> StepRecord | None:
        """Return the record of an action's last build in this workspace, whatever its key was."""
        return None if self._is_first else self.memory.previous(action.id)

    def _get_previous_result(self, action: Action) -> ActionResult | None:
        """Return the result of an action's last build in this workspace, or None if it is unknown."""
        before = self._get_previous(action)
        return read_result(action, before.result) if before is not None else None

    def _was_done(self, action: Action) -> bool:
        return action.id in self._last_keys or self._get_previous(action) is not None

    def _find_remote(self, keyed: Sequence[_Keyed]) -> Mapping[str, Mapping[str, Any]]:
        """Return the results that only the remote cache has, by key."""
        if self.remote is None:
            return {}
        return self.remote.find({known.key: known.action.id for known in keyed if known.result is None and not known.is_here})

    def _restore_from_remote(self, plan: Plan, found: dict[str, ActionStatus]) -> dict[str, ActionStatus]:
        """Return `found` with actions marked as restorable if the store has lost their results but the remote cache has them."""
        if self.remote is None:
            return found
        todo = (found[ident].made for ident in Work.of(plan, found).todo if is_stored(plan.actions[ident]))
        lost = [made for made in todo if made is not None and found[made.action.id].state == "out of date"]
        there = self.remote.find({made.key: made.action.id for made in lost})
        return found | {
            made.action.id: replace(found[made.action.id], state="restorable", reasons=(), remote=True)
            for made in lost
            if made.key in there and read_result(made.action, there[made.key]) == made.result
        }

    def _get_status(self, keyed: _Keyed, remote: Mapping[str, Any] | None) -> ActionStatus:
        """Return the status of an action with a known key. `remote` is its result in the remote cache, or None."""
        action, key, document, result = keyed.action, keyed.key, keyed.document, keyed.result
        known = result
        if known is None and keyed.is_here:
            known = self.result_here(action, key)
        elif known is None and remote is not None:
            known = read_result(action, remote)
        if known is None and keyed.is_here:
            return ActionStatus("out of date", (_LOST,), key, document)
        if known is not None and (lacking := reject_reasons(action, known)):
            lost = (_LOST,) if result is None and keyed.is_here else ()
            return ActionStatus("out of date", (*lacking, *lost), key, document)
        made = Made(action, key, document, known, keyed.needed) if known is not None else None
        if keyed.is_here:
            return ActionStatus("current" if result else "out of date", () if result else (_LOST,), key, document, made)
        before = self._get_previous(action)
        reasons = tuple(describe_differences(before.key_document, document)) if before else ()
        if self.remote is not None and (why := self.remote.refused.get(key)) is not None:
            reasons = (*reasons, f"its result in the remote cache cannot be used: {why}")
        if made is not None:
            return ActionStatus("restorable", reasons, key, document, made, remote=result is None)
        if (failure := self.failures.of(action.id, key)) is not None:
            return ActionStatus("failed", tuple(problem.message for problem in failure.problems), key, document)
        return ActionStatus("out of date" if before else "new", reasons, key, document)

    def _get_emission_status(
        self, emission: Emission, found: Mapping[str, ActionStatus], memo: Memo, unchanged: UnchangedFiles
    ) -> ActionStatus:
        made = [made for ident in emission.needs if (made := found[ident].made) is not None]
        if len(made) < len(emission.needs):
            reasons = tuple(f"needs {ident}" for ident in emission.needs if found[ident].made is None)
            return ActionStatus("out of date" if self._was_done(emission) else "new", reasons)
        try:
            key, document = self.output_planner.plan_key(emission, made, memo)
        except BuildError as error:  # a build reports the complete error
            state: StepState = "out of date" if self._was_done(emission) else "new"
            return ActionStatus(state, tuple(problem.message for problem in error.problems))
        place = self.outputs.place(emission.path)
        there = self._last_outputs.get(place)
        if there is not None and there.action_key == key:
            damage = self.damage(emission.root, there.files, unchanged)
            return ActionStatus("restorable" if damage else "current", tuple(damage), key, document)
        before = self._get_previous(emission)
        writer = self.outputs.writer(there) if there is not None else None
        reasons = (f"{writer} wrote a different output to this path",) if writer else ()
        if before is None:
            return ActionStatus("new", reasons, key, document)
        if before.action_key != key:
            return ActionStatus("out of date", (*describe_differences(before.key_document, document), *reasons), key, document)
        elsewhere = (
            f"the output is at another path: {before.result[PLACE]}"
            if before.result.get(PLACE) != place
            else "the output no longer exists"
        )
        return ActionStatus("restorable", reasons or (elsewhere,), key, document)

    def _add_kept_files(self, emission: Emission, status: ActionStatus) -> ActionStatus:
        """Return the status of an emission, with a reason for each file that a build will keep because users changed it."""
        if status.state == "current" or not (emission.is_file or emission.path.exists()):
            return status  # a folder that does not exist has no changed files
        changed = self.written(emission, self.outputs.last(emission.path)).list_changed(emission.path)
        reported = {f"{name} was changed" for name in changed}
        kept = (f"{name} was changed after epbuild wrote it, and will be kept" for name in changed)
        return replace(status, reasons=(*(reason for reason in status.reasons if reason not in reported), *kept))

    def written(self, emission: Emission, there: OutputRecord | None) -> OwnedFiles:
        """Return the files that epbuild wrote at the path of an emission, or announced in the workspace before it started to write.

        `there` is the record of the last output at this path.
        """
        known = {name: str(file["digest"]) for name, file in there.files.items()} if there is not None else {}
        return OwnedFiles.of(self.workspace, self.outputs.place(emission.path), known, self.digests)

    def damage(
        self, folder: Path, files: Mapping[str, Mapping[str, Any]], unchanged: UnchangedFiles = NONE_UNCHANGED
    ) -> list[str]:
        """Return a clause for each emitted file that is missing or has changed."""
        sentences = []
        there: dict[str, str] = {}
        root = os.path.join(folder, "")  # noqa: PTH118 - called for tens of thousands of files
        for name, file in files.items():
            path = f"{root}{name.replace('/', os.sep)}"
            if unchanged.digests.get(path) == file["digest"]:
                continue
            size = _get_size(path)
            if size is None:
                sentences.append(f"{name} is missing")
            elif size != file["size"]:
                sentences.append(f"{name} has {size} bytes instead of {file['size']}")
            else:
                there[name] = path
        digests = self.digests.of_many(there.values())
        return sentences + [f"{name} was changed" for name, path in there.items() if digests[path] != files[name]["digest"]]


def _find_without_results(plan: Plan, found: Mapping[str, ActionStatus]) -> list[str]:
    """Return the ids of restorable emissions that need the result of an action that has to run."""
    return [
        ident
        for ident, emission in plan.emissions.items()
        if found[ident].state == "restorable"
        and any(found[need].state not in ("current", "restorable") for need in emission.needs)
    ]


def _get_size(path: str) -> int | None:
    """Return the size of a regular file in bytes, or None if the file does not exist or is not regular."""
    try:
        found = os.lstat(path)
    except OSError:  # the step that rewrites the file reports the error
        return None
    return found.st_size if stat.S_ISREG(found.st_mode) else None
