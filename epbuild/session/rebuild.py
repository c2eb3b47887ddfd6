"""Comparison of rebuilt results with stored ones (`run --rebuild-and-compare`).

A fresh process rebuilds each result in a fresh folder. If the result differs from the stored one, both are kept beside the workspace's
logs. A rebuild writes nothing to the store or the records.
"""

from __future__ import annotations

import dataclasses
import re
import shutil
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from msgspec.structs import replace

from epbuild.actions.types import get_action_type
from epbuild.cache.blobs import BlobStore
from epbuild.cache.errors import DamagedBlob, MissingBlob
from epbuild.cache.workspace import Workspace
from epbuild.catalog.facts import KnownDifference
from epbuild.core.differences import format_value
from epbuild.core.errors import BuildError, EnvironmentFailure, EpbuildError, Problem, StepId
from epbuild.core.shown import format_path
from epbuild.diff.byte_differences import FileDifference, compare_bytes
from epbuild.diff.difference import compare
from epbuild.engine.events import OutputOf, Progress, StepFailed, StepStarted
from epbuild.engine.loop import drive
from epbuild.engine.scheduler import Runnable, Scheduler
from epbuild.engine.tally import Tally
from epbuild.onnxfile.read.payload import Payload
from epbuild.plan.made import KeyedAction, Made
from epbuild.session.build import BuildExecutor
from epbuild.session.events import Comparison, ComparisonFinished, ComparisonStarted, StepCompared
from epbuild.toolchain.execution import Execution

_FOLDER = "rebuilt"
_OLD, _NEW = "stored", "rebuilt"


def rebuild_and_compare(
    actions: BuildExecutor,
    workspace: Workspace,
    store: BlobStore,
    progress: Progress,
    *,
    jobs: int,
    keep_going: bool,
    memory: int | None,
) -> int:
    """Rebuild all stored results of `actions`, compare them, and return the exit code.

    Comparisons are reported as events. Raises KeyboardInterrupt if the user stops them, and StoreError if there is no space.
    """
    begin = time.monotonic()
    made = {ident: item for ident, item in actions.made.items() if get_action_type(item.action).is_comparable(item.action)}
    costs = {ident: actions.cost(ident) for ident in made}
    tally = Tally({ident: [ident] for ident in made}, costs, jobs)
    rebuilding = _Rebuilding(actions, made, workspace, store, progress, tally)
    progress.report(ComparisonStarted(len(made), tally.seconds_left()))
    todo = [Runnable(ident, (), cost, actions.memory(ident)) for ident, cost in costs.items()]
    scheduler = Scheduler(todo, memory)
    drive(scheduler, rebuilding, jobs=jobs, keep_going=keep_going, cancelled=actions.cancelled, idle=actions.idle)
    progress.report(rebuilding.finished(time.monotonic() - begin))
    return rebuilding.exit_code


def get_kept_folder(workspace: Path, action: str) -> Path:
    """Return the folder that keeps both versions of an action's result if they differ."""
    # As with logs: no name in a recipe has a '+', so two actions never share a folder.
    return workspace / _FOLDER / re.sub(r"[^A-Za-z0-9._-]", "+", action)


def judge_differences(differences: Sequence[FileDifference], known: Sequence[KnownDifference]) -> Comparison:
    """Return the verdict on differences: `known` if all of them are known differences of the target."""
    if not differences:
        return "same"
    if any(row.by is None for row in known):
        return "known"
    allowed = {row.by for row in known}
    return "known" if all(item.found and item.meanings <= allowed for item in differences) else "different"


@dataclass
class _Rebuilding:
    """Comparisons of one run. Any number of threads may use it."""

    _actions: BuildExecutor
    _made: Mapping[str, Made]
    _workspace: Workspace
    _store: BlobStore
    _progress: Progress
    _tally: Tally
    exit_code: int = 0
    _counts: Counter[str] = field(default_factory=Counter)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _ending: threading.Lock = field(default_factory=threading.Lock)
    """Lock for counting and reporting the end of a comparison, so that reported counts never decrease."""

    def execute(self, ident: str) -> None:
        """Rebuild one session group and compare the results. Raises EpbuildError on failure, and Cancelled if the build is stopped."""
        begin = time.monotonic()
        self._tally.begin(ident)
        made = self._made[ident]
        kind = get_action_type(made.action)
        place = get_kept_folder(self._workspace.directory, ident)
        lease = re.sub(r"[^A-Za-z0-9._-]+", ".", f"{_FOLDER}-{ident}")
        self._progress.report(StepStarted(ident, kind.doing_again))
        with self._actions.leases.hold(ident, ident, self._workspace.directory, lease):
            with _translate_errors(ident):
                _remove(place)
            subject = KeyedAction(made.action, made.key, made.document, made.needed)
            # No member has an empty name, so no other run has this log.
            with self._actions.executions.open(subject, f"/{_NEW}") as execution:
                files, trees = self._remake(made, execution), execution.staging / _FOLDER
                with _translate_errors(ident):
                    differences = self._compare(made, files, trees)
                    meant = _find_differences_in_meaning(kind.accepts_other_bytes(made.action), differences, trees)
                    if differences:
                        _remove(place)
                        _move(trees, place)
                    execution.log.unlink(missing_ok=True)  # a log is kept only if the compile failed
                size = sum(artifact.size for artifact in made.result.artifacts.values())
        known = kind.known_differences(made.action)
        verdict = judge_differences(differences, known)
        if meant is not None and verdict == "different":
            verdict = "different" if meant else "known"
        problems = tuple(_make_problem(item, made, place) for item in differences) if verdict == "different" else ()
        if problems and meant:
            message = f"the recipe allows only context bytes to differ, but the rebuild has other differences: {'; '.join(meant)}"
            problems = (Problem("EPB652", message, StepId(ident), f"Both versions are kept in {format_path(place)}."),)
        self._count(verdict, 1 if problems else 0)
        compared = StepCompared(
            step=ident,
            verdict=verdict,
            seconds=time.monotonic() - begin,
            files=len(made.result.artifacts),
            size=size,
            differences=tuple(differences),
            known=kind.known_to_differ(made.action),
            kept=format_path(place) if differences else None,
            problems=problems,
        )
        with self._ending:
            self._progress.report(replace(compared, progress=self._tally.end(ident, compiled=True)))

    def fail(self, ident: str, error: EpbuildError) -> bool:
        """Count a session group that could not be rebuilt or compared. Return False, as this failure is never allowed."""
        self._count("failed", error.exit_code)
        with self._ending:
            self._progress.report(StepFailed(ident, error.problems, self._tally.end(ident, compiled=False)))
        return False

    def skip(self, ident: str) -> None:
        """Count a session group that was not rebuilt because another one failed."""
        self._count("skipped", 0)
        self._tally.end(ident, compiled=False)

    def finished(self, seconds: float) -> ComparisonFinished:
        names = ("same", "known", "different", "failed", "skipped")
        return ComparisonFinished(seconds, *(self._counts[name] for name in names))

    def _count(self, outcome: str, exit_code: int) -> None:
        with self._lock:
            self._counts[outcome] += 1
            self.exit_code = max(self.exit_code, exit_code)

    def _remake(self, made: Made, execution: Execution) -> Mapping[str, Path]:
        ident = made.action.id
        try:
            return get_action_type(made.action).rebuild(
                made.action, made.document, dataclasses.replace(execution, progress=OutputOf(self._progress, ident))
            )
        except EnvironmentFailure:
            raise
        except EpbuildError as error:
            hint = f"See the whole log: {execution.shown_log}."
            problem = Problem("EPB431", "the rebuild failed, although a stored result exists", StepId(ident), hint)
            raise BuildError(problem, *error.problems) from error

    def _compare(self, made: Made, files: Mapping[str, Path], trees: Path) -> list[FileDifference]:
        """Return the differences between a rebuild and the stored result. If they differ, write both into `trees`."""
        artifacts = {name: made.result.artifacts[name] for name in dict.fromkeys(made.result.names)}
        digests = {name: Payload.whole(path).sha256() for name, path in files.items()}
        if digests == {name: artifact.digest for name, artifact in artifacts.items()}:
            return []
        lost = set[str]()
        for name, artifact in artifacts.items():
            try:
                self._store.materialize(artifact.digest, trees / _OLD / name)
            except (MissingBlob, DamagedBlob):
                lost.add(name)
        for name, path in files.items():
            _move(path, trees / _NEW / name)
        found: list[FileDifference] = []
        for name in dict.fromkeys((*artifacts, *files)):
            old, new = trees / _OLD / name, trees / _NEW / name
            sizes = artifacts[name].size if name in artifacts else None, new.stat().st_size if name in files else None
            if None in sizes:
                found.append(FileDifference(name, *sizes))
            elif digests[name] != artifacts[name].digest:
                looked_at = None if name in lost else compare_bytes(name, old, new)
                found.append(looked_at or FileDifference(name, *sizes))
        return found


def _find_differences_in_meaning(accepted: bool, differences: Sequence[FileDifference], trees: Path) -> tuple[str, ...] | None:
    """Describe all differences except those in context bytes. `accepted` is true if context bytes may differ.

    Return None if `accepted` is false or if a file was not compared.
    """
    if not accepted or any(item.old_size is not None and item.new_size is not None and not item.found for item in differences):
        return None
    if not differences:
        return ()
    try:
        found = compare(trees / _OLD, trees / _NEW)
    except EpbuildError as error:
        return tuple(problem.message for problem in error.problems)
    return tuple(
        f"{item.what}: {format_value(item.old)} stored, {format_value(item.new)} rebuilt"
        for item in found.differences
        if not item.is_only_bytes
    )


def _make_problem(item: FileDifference, made: Made, place: Path) -> Problem:
    ident, why = StepId(made.action.id), get_action_type(made.action).known_to_differ(made.action)
    hint = f"Both versions are kept in {format_path(place)}."
    if item.new_size is None:
        return Problem("EPB651", f"the rebuild did not produce {item.file}", ident, hint)
    if item.old_size is None:
        return Problem("EPB651", f"the rebuild produced an additional file {item.file}", ident, hint)
    if not item.found:
        message = f"the SHA-256 of the rebuilt {item.file} differs, but the original is missing from the store"
        return Problem("EPB653", message, ident, f"The rebuilt file is kept in {format_path(place)}.")
    size = f"{item.old_size:,}" if item.old_size == item.new_size else f"{item.old_size:,} and {item.new_size:,}"
    extent = f"{item.count:,} of {size} bytes differ, the first at byte {item.offset:,}"
    if why is None:
        return Problem("EPB650", f"the rebuilt {item.file} differs: {extent}", ident, hint)
    message = f"the rebuilt {item.file} has differences beyond those known for the target ({why}): {extent}"
    return Problem("EPB652", message, ident, hint)


def _move(path: Path, place: Path) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    shutil.move(path, place)


def _remove(place: Path) -> None:
    """Remove the files that the last comparison kept, and the parent folder if it is then empty."""
    if place.exists():
        shutil.rmtree(place)
    with suppress(OSError):
        place.parent.rmdir()


@contextmanager
def _translate_errors(ident: str) -> Iterator[None]:
    """Convert an OSError of the `with` block to EnvironmentFailure."""
    try:
        yield
    except OSError as error:
        where = f"{format_path(error.filename)}: " if error.filename else ""
        message = f"the rebuild could not be compared: {where}{error.strerror or error}"
        hint = "Check the free space and the permissions of .epbuild."
        raise EnvironmentFailure(Problem("EPB432", message, StepId(ident), hint)) from error
