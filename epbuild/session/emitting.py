"""Emitter that writes, records or pushes outdated outputs."""

from __future__ import annotations

import posixpath
import threading
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from epbuild.actions.action_type import StepEnd
from epbuild.cache.digests import Digests
from epbuild.cache.errors import DamagedBlob, MissingBlob
from epbuild.cache.state import OutputRecord, StepRecord
from epbuild.core.directory import find_interrupted_swaps, recover_swaps
from epbuild.core.entries import HiddenFolders
from epbuild.core.errors import Problem, StoreError
from epbuild.core.shown import format_path
from epbuild.engine.events import Event, Progress, StepFinished, StepOutput, StepStarted, Warned
from epbuild.engine.leases import Leases
from epbuild.engine.ledger import Ledger
from epbuild.output.existing import OwnedFiles
from epbuild.output.tree import OutputTree
from epbuild.plan.key import compute_action_key
from epbuild.plan.made import Made
from epbuild.plan.steps import Emission
from epbuild.publish.emit import emit_output, materialize
from epbuild.publish.keys import Keys
from epbuild.publish.removal import Cleaned, EmittedFiles
from epbuild.publish.sizes import compare_outputs, read_last_files
from epbuild.session.events import OutputRemoved
from epbuild.survey.orphans import PLACE, RESULTS, Orphan, Outputs, get_lease_name
from epbuild.survey.status import Survey, Surveyor

_ATTEMPTS = 2


class Results(Protocol):
    """Results to emit, and leases that keep other builds from emitting the same output."""

    cancelled: threading.Event
    leases: Leases

    @property
    def made(self) -> Mapping[str, Made]:
        """Actions with a known result, by id."""

    def remake(self, ident: str) -> None:
        """Rebuild an action whose result the store has lost."""


class Emitter:
    """Emitter of the outputs of one build. Any number of threads may use it."""

    def __init__(self, found: Survey, surveyor: Surveyor, actions: Results, progress: Progress, ledger: Ledger) -> None:
        self._found = found
        self._surveyor = surveyor
        self._outputs = surveyor.outputs
        self._actions = actions
        self._progress = progress
        self._ledger = ledger
        self._hidden = HiddenFolders()
        self._keys = Keys(surveyor.workspace.base)
        self._left = {orphan.step: orphan for orphan in reversed(found.orphans)}

    def check_keys(self) -> None:
        """Read the keys of the outputs that have to be emitted. Raises EnvironmentFailure if a key cannot be read."""
        emissions = self._found.plan.emissions
        self._keys.check(emissions[ident] for ident in self._found.todo if ident in emissions)

    def adopt_current(self) -> None:
        """Record and report the outputs that are in place."""
        todo = set(self._found.todo)
        current = [emission for ident, emission in self._found.plan.emissions.items() if ident not in todo]
        statuses = [(emission, self._found.actions[emission.id]) for emission in current]
        self._outputs.adopt(
            self._make_emission_record(emission, status.key or compute_action_key(status.document), status.document)
            for emission, status in statuses
        )
        self._clear_away({emission.path: emission for emission in current})
        self._ledger.end_current(step for emission in current for step in self._ledger.steps[emission.id])

    def emit(self, emission: Emission) -> None:
        """Write an output if it is out of date. If the emission is push-only, push the output without writing it.

        Raises EpbuildError, and Cancelled if the build is being stopped.
        """
        if emission.push_only:
            self._push(emission)
            return
        self._progress.report(StepStarted(emission.steps[0], "emitting"))
        with self._actions.leases.hold(
            emission.id, emission.id, self._surveyor.workspace.directory, get_lease_name(self._outputs.place(emission.path))
        ):
            begin = time.monotonic()  # waiting for another build does not count as work
            recorded = self._outputs.last(emission.path)  # from this or another configuration, perhaps in another form
            tree = self._plan(emission)
            is_same = recorded is not None and recorded.action_key == tree.key
            if recorded is not None and is_same and not self._surveyor.damage(emission.root, recorded.files):
                # Another build has emitted it since the survey, or a new compile had the same result.
                with suppress(OSError):
                    recover_swaps(emission.path, self._surveyor.written(emission, recorded), self._hidden)
                self._outputs.adopt([self._make_emission_record(emission, tree.key, tree.key_document)])
                self._ledger.end_all(emission.id, "current")
                return
            last = read_last_files(emission.path, recorded.files if recorded is not None else self._find_moved_files(emission))
            written = self._surveyor.written(emission, recorded)
            if recorded is not None and emission.path.is_dir() == emission.is_file and emission.path.exists():
                # A rename cannot replace a file with a folder, or a folder with a file.
                remove_output(recorded, self._outputs.base, self._surveyor.digests, ())
            # A missing output may have been moved away by a build that was killed just now.
            hidden = self._hidden if recorded is None or emission.path.exists() else None
            tree, files = self._write(tree, written, hidden)
            self._outputs.record(
                self._make_emission_record(emission, tree.key, tree.key_document), files, settled=written.announcement
            )
        for problem in written.problems(emission):
            self._progress.report(Warned(problem))
        place = format_path(emission.path)
        note = f"{place}, pushed to {emission.registry}" if emission.registry is not None else place
        changed = compare_outputs(emission.id, place, last, files)
        self._end(emission, files, time.monotonic() - begin, note, changed)

    def _push(self, emission: Emission) -> None:
        """Push an image, with blobs from the store or the remote cache."""
        self._progress.report(StepStarted(emission.steps[0], "pushing"))
        begin = time.monotonic()
        tree, written = self._plan(emission), self._surveyor.written(emission, self._outputs.last(emission.path))
        _, files = self._write(tree, written, None)
        self._end(emission, files, time.monotonic() - begin, f"pushed to {emission.registry}")

    def _end(self, emission: Emission, files: Mapping[str, Any], seconds: float, note: str, changed: Event | None = None) -> None:
        *merged, emitted = find_ends(emission, files)
        for end in merged:
            self._ledger.end(StepFinished(end.step, "built", 0.0, end.note, end.size))
        if changed is not None:
            self._progress.report(changed)
        self._ledger.end(StepFinished(emission.id, "emitted", seconds, note, emitted.size))

    def _make_emission_record(self, emission: Emission, key: str, document: Mapping[str, Any]) -> StepRecord:
        """Return the step record of an emission: the path of the output, and the keys of the results in the output."""
        made = [self._actions.made.get(ident) or self._found.actions[ident].made for ident in emission.needs]
        results = sorted(item.key for item in made if item is not None)
        result = {PLACE: self._outputs.place(emission.path), RESULTS: results}
        return StepRecord(emission.id, key, document, result)

    def _find_moved_files(self, emission: Emission) -> Mapping[str, Mapping[str, Any]]:
        """Return the files that the emission wrote to its former path, by the names that they have at the current path."""
        left = self._left.get(emission.id)
        if left is None or not emission.is_file:
            return left.files if left is not None else {}
        # The names of an archive and its provenance file begin with the name of the output.
        return {f"{emission.path.name}{name.removeprefix(left.directory.name)}": file for name, file in left.files.items()}

    def _clear_away(self, current: Mapping[Path, Emission]) -> None:
        """Remove leftovers of killed builds beside current outputs, unless another build is working on these outputs."""
        for directory in find_interrupted_swaps(current):
            emission = current[directory]
            with suppress(OSError, StoreError), self._outputs.held_if_free(directory) as free:
                if free:
                    recover_swaps(emission.path, self._surveyor.written(emission, self._outputs.last(emission.path)))

    def _plan(self, emission: Emission) -> OutputTree:
        return self._surveyor.output_planner.plan(emission, [self._actions.made[ident] for ident in emission.needs])

    def _write(self, tree: OutputTree, written: OwnedFiles, hidden: HiddenFolders | None) -> tuple[OutputTree, dict[str, Any]]:
        """Write or push an output. If the store has lost results, rebuild them, but only once.

        `written` has the files that epbuild wrote to the output's path before. Return the tree that was written, and the tree's files.
        After a rebuild, the tree is a new one.
        """
        emission = tree.emission
        cancelled = self._actions.cancelled
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                if emission.push_only:
                    with self._surveyor.workspace.staging("push") as draft:
                        blobs = self._surveyor.blobs_of(tree.inputs.made)
                        return tree, materialize(tree, draft / "image", blobs, written, self._progress, cancelled, self._keys)
                return tree, emit_output(tree, self._surveyor.store, written, self._progress, cancelled, self._keys, hidden)
            except (MissingBlob, DamagedBlob) as error:
                if attempt == _ATTEMPTS:
                    raise
                self._progress.report(StepOutput(emission.id, f"{error.problems[0].message}; rebuilding it"))
                for ident in emission.needs:
                    self._actions.remake(ident)
                tree = self._plan(emission)
        raise AssertionError("the last attempt neither returned nor raised an error")


def find_ends(emission: Emission, files: Mapping[str, Any]) -> Iterator[StepEnd]:
    """Yield a `StepEnd` for each step of an emission that wrote `files`."""
    for part in emission.parts:
        if part.merging is not None:
            merged = files.get(posixpath.join(part.folder, part.models[part.merging.name]))
            yield StepEnd(part.merging.step, 0.0, f"{len(part.merging.members)} models", merged["size"] if merged else 0)
    yield StepEnd(emission.id, None, "", sum(file["size"] for file in files.values()))


def remove_orphans(found: Survey, surveyor: Surveyor, progress: Progress, cancelled: threading.Event) -> None:
    """Remove the outputs that the recipe no longer requests, and report them. Raises Cancelled."""
    outputs = surveyor.outputs
    for left in outputs.release(emission.path for emission in found.plan.emissions.values()):
        place = format_path(surveyor.workspace.base / left.place)
        message = f"the recipe no longer asks for {place}, which is kept because {outputs.writer(left)} also emits it"
        progress.report(
            Warned(
                Problem(
                    "EPB514",
                    message,
                    None,
                    "A build of the other recipe removes the output once that recipe no longer asks for it.",
                )
            )
        )
    hidden = HiddenFolders()
    claimed = outputs.claimed(orphan.directory for orphan in found.orphans) if found.orphans else ()
    for orphan in found.orphans:
        gone = remove_orphan(outputs, orphan, surveyor.digests, claimed, cancelled, hidden)
        if gone is not None:
            changed, foreign = (tuple(map(format_path, gone.kept_for(why))) for why in ("changed since", "not made by epbuild"))
            progress.report(
                OutputRemoved(orphan.step, format_path(orphan.directory), len(gone.removed), changed, foreign, gone.size)
            )


def remove_orphan(
    outputs: Outputs,
    orphan: Orphan,
    digests: Digests,
    claimed: Collection[Path],
    cancelled: threading.Event,
    hidden: HiddenFolders | None = None,
) -> Cleaned | None:
    """Remove an orphan's files, except the `claimed` ones, and its record. Return None if the output is gone or no longer an orphan.

    `hidden` is passed to `recover_swaps`. Raises EnvironmentFailure if the orphan's folder cannot be written. Raises StoreError if a file
    cannot be read or the workspace cannot be written. Raises Cancelled if `cancelled` is set while another build holds the lease.
    """
    with outputs.held(orphan.directory, cancelled=cancelled):
        output = outputs.recorded(orphan)
        if output is None:
            return None
        cleaned = remove_output(output, outputs.base, digests, claimed, hidden)
        if not cleaned.kept_for("in use"):  # the next run removes such files
            outputs.forget(output)
        return cleaned


def remove_output(
    output: OutputRecord, base: Path, digests: Digests, claimed: Collection[Path], hidden: HiddenFolders | None = None
) -> Cleaned:
    """Remove the files of an output below the folder `base`, but keep the output's record. Callers must hold the output's lease.

    Raises the errors of `remove_orphan`.
    """
    recorded = {name: file["digest"] for name, file in output.files.items()}
    return EmittedFiles(output.step, base / output.place, recorded, digests, claimed=claimed).remove(base, hidden)
