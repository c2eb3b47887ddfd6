"""`Machine`: executes requests, with a store and the remote cache.

A request is executed here as an action is where it was planned: the same makers, the same checks, the same record. What differs is
where files come from and where a result goes: both are the remote cache.
"""

from __future__ import annotations

import platform
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from msgspec import Struct, field

from epbuild.cache.blobs import BlobStore
from epbuild.cache.errors import translate_os_errors
from epbuild.cache.leases import Cancelled, lease
from epbuild.cache.staging import staged
from epbuild.cluster.abilities import Abilities
from epbuild.cluster.identifying import KIND, asked_toolchain, records_here
from epbuild.cluster.reply import MachineReply, Outcome
from epbuild.cluster.request import ActionRequest, action_of
from epbuild.compile.makers import maker_of
from epbuild.core.digest import Blob
from epbuild.core.errors import EnvironmentFailure, EpbuildError, Problem, StepId, StoreError
from epbuild.core.installer import UvListener
from epbuild.core.typed_json import MalformedJson, to_json
from epbuild.engine.events import Progress, StepStarted
from epbuild.engine.leases import WaitLine
from epbuild.plan.key import action_key
from epbuild.plan.remote_record import COMPILE
from epbuild.plan.result import ActionResult, action_records
from epbuild.plan.steps import Action
from epbuild.remote.cache import NotFetched, RemoteCache
from epbuild.remote.envelope import RemoteRecord
from epbuild.survey.kind import KeyInputs
from epbuild.survey.kinds import kind_of, read_result
from epbuild.toolchain.environment import Environment, Toolchains
from epbuild.toolchain.execution import Execution
from epbuild.toolchain.remote_record import TOOLCHAIN

_LOG = "worker.log"
_OTHERS = "Start a worker on a machine that can."
_ELSEWHERE = "Build it on this machine, without --executor."
_KEPT = "Check the remote cache, and that its worker may write there; then run again: it is kept on that machine."
_LOCK = "Lock the recipe with `epbuild lock`, so that every machine makes the same toolchain."


class Machine(Struct, frozen=True):
    """Where requests are executed. Any number of threads may use one."""

    root: Path
    """Of its cache: blobs, records, and the folder that compiles work in."""
    toolchains: Toolchains
    remote: RemoteCache
    name: str = field(default_factory=platform.node)
    abilities: Abilities | None = None
    """What it found out that it can do; None: it finds out nothing."""

    @property
    def store(self) -> BlobStore:
        return BlobStore(self.root)

    def execute(self, request: ActionRequest, progress: Progress, cancelled: threading.Event) -> MachineReply:
        """Execute a request, unless its result is known, and publish what comes of it; what goes wrong is in the reply."""
        try:
            with translate_os_errors("write to its cache"):
                return self._execute(request, progress, cancelled)
        except Cancelled:
            return MachineReply("cancelled", self.name)
        except (NotFetched, MalformedJson) as error:
            problem = Problem("EPB530", f"it cannot be executed: {error}", None, _ELSEWHERE)
            return MachineReply.failure("refused", self.name, EnvironmentFailure(problem))
        except EpbuildError as error:
            if cancelled.is_set():  # an installation that is ended fails: it is no refusal, as others may wait for the same
                return MachineReply("cancelled", self.name)
            return MachineReply.failure("refused", self.name, error)

    def _execute(self, request: ActionRequest, progress: Progress, cancelled: threading.Event) -> MachineReply:
        if request.kind == KIND:
            return self._identify(request, cancelled)
        store, records = self.store, action_records(self.root)
        found = self.remote.look_up(COMPILE, request.key)
        if isinstance(found, RemoteRecord):
            return MachineReply("found", self.name, log=COMPILE.log(found.record))
        action = action_of(request, store)
        if self.abilities is not None and (why := self.abilities.why_not(action)) is not None:
            unfit = EnvironmentFailure(Problem("EPB542", f"it cannot be executed: {why}", StepId(action.id), _OTHERS))
            return MachineReply.failure("unable", self.name, unfit, is_unfit=True)
        listener = WaitLine(action.steps[0], f"{self.name} is at it for another build; waiting", progress)
        with lease(self.root, request.key, listener=listener, cancelled=cancelled):
            record = self._whole(action, records.get(request.key))
            is_known = record is not None
            if record is None:
                progress.report(StepStarted(action.steps[0], "fetching"))
                for blob in request.files:
                    self.remote.fetch(blob, store)
                progress.report(StepStarted(action.steps[0], "staging"))
                environment = self._environment(action, request, cancelled)
                document = _document_here(action, environment, request, store)
                with self._open(action, environment, progress, cancelled) as execution:
                    try:
                        result = _made_result(action, execution)
                    except StoreError:
                        raise
                    except EpbuildError as error:
                        log = self._published_log(execution)
                        is_unfit = self._is_unfit(action, environment, cancelled)
                        outcome: Outcome = "unable" if is_unfit or isinstance(error, EnvironmentFailure) else "failed"
                        return MachineReply.failure(outcome, self.name, error, log=log, is_unfit=is_unfit)
                record = {"document": document, "result": to_json(result)}
                records.put(request.key, record)
            # Within the lease, so that the next to ask finds it there.
            if not self.remote.publish(COMPILE, request.key, record, store):
                message = "it was made, and could not be written to the remote cache"
                unpublished = StoreError(Problem("EPB531", message, StepId(action.id), _KEPT))
                return MachineReply.failure("failed", self.name, unpublished)  # others would make it in vain
        return MachineReply("found" if is_known else "made", self.name, log=COMPILE.log(record))

    def _is_unfit(self, action: Action, environment: Environment, cancelled: threading.Event) -> bool:
        """Whether this machine cannot do what an action that failed needs, whatever the model."""
        if self.abilities is None:
            return False
        self.abilities.judge(action, environment, cancelled)
        return self.abilities.why_not(action) is not None

    def _identify(self, request: ActionRequest, cancelled: threading.Event) -> MachineReply:
        """Publish what a toolchain is on this machine, which makes it where it is not here."""
        asked = asked_toolchain(request, self.store)
        environment = self.toolchains.prepare(
            asked.toolchain, self.root, asked.entries, request.environment, asked.packages, UvListener(cancelled)
        )
        for key, record in records_here(asked, request.environment, environment).items():
            if not self.remote.publish(TOOLCHAIN, key, record, self.store):
                message = (
                    f"the toolchain '{asked.toolchain.name}' was made, and what it is could not be written to the remote cache"
                )
                raise StoreError(Problem("EPB531", message, None, _KEPT))
        return MachineReply("made", self.name)

    def _whole(self, action: Action, record: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
        """A record that the store has every artifact of."""
        result = read_result(action, record["result"]) if record is not None else None
        is_whole = result is not None and all(self.store.has(blob.digest, blob.size) for blob in result.artifacts.values())
        return record if is_whole else None

    def _environment(self, action: Action, request: ActionRequest, cancelled: threading.Event) -> Environment:
        needs = action.runs_in
        if needs is None:
            raise MalformedJson("it runs in no toolchain")
        return self.toolchains.prepare(
            needs.toolchain, self.root, needs.entries, request.environment, needs.packages, UvListener(cancelled)
        )

    @contextmanager
    def _open(
        self, action: Action, environment: Environment, progress: Progress, cancelled: threading.Event
    ) -> Iterator[Execution]:
        with staged(self.root / "work", action.id) as folder:
            staging = folder / "0"
            staging.mkdir()
            shown = f"{self.name}: {action.id}"
            yield _MachineExecution(environment, staging, folder / _LOG, shown, self.store, progress, cancelled)

    def _published_log(self, execution: Execution) -> Blob | None:
        """The log of what failed, which the remote cache then has; None where it cannot be had."""
        with suppress(StoreError):  # why it failed is worth more words than that
            if execution.log.exists():
                log = execution.store.put(execution.log)
                return log if self.remote.provide(log, partial(execution.store.pieces, log.digest)) else None
        return None


class _MachineExecution(Execution):
    """An execution whose inputs are blobs, which never change."""

    def digests(self, files: Iterable[Path]) -> Mapping[Path, str]:
        """The names of blobs are their digests."""
        return {file: file.name for file in files}


class _Folders(Struct, frozen=True):
    """Further executions in folders beside the first."""

    execution: Execution

    @contextmanager
    def open(self, name: str) -> Iterator[Execution]:
        """An execution with a staging directory and a log of that name."""
        folder = self.execution.staging.with_name(name)
        folder.mkdir()
        yield _MachineExecution(
            self.execution.environment,
            folder,
            folder.with_suffix(".log"),
            f"{self.execution.shown_log}/{name}",
            self.execution.store,
            self.execution.progress,
            self.execution.cancelled,
        )


def _document_here(action: Action, environment: Environment, request: ActionRequest, store: BlobStore) -> Mapping[str, object]:
    """The document of an action's key as it is here. Raises EnvironmentFailure where that is not the key that is asked for."""
    kind = kind_of(action)
    digests = {file: file.name for file in action.files}
    document = kind.document(action, KeyInputs(digests, kind.identity(action, environment)))
    if action_key(document) != request.key:
        message = "what it would make is not what is asked for, as its toolchain came out as another"
        raise EnvironmentFailure(Problem("EPB532", message, StepId(action.id), _LOCK))
    return document


def _made_result(action: Action, execution: Execution) -> ActionResult:
    """Make an action, and finish it. Raises EpbuildError, and Cancelled."""
    maker = maker_of(action)
    maker.check(action)
    result: ActionResult = maker.make(action, execution)
    for more in maker.finish(action, result, _Folders(execution)):
        result = more
    return result
