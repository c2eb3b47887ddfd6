"""`Machine`: executes the requests of clients, using a store and the remote cache.

A request is executed like an action of a local build, with the same code, checks and records. The machine fetches the request's inputs from
the remote cache, and publishes the result there.
"""

from __future__ import annotations

import dataclasses
import platform
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from msgspec import Struct, ValidationError, field

from epbuild.actions.types import get_action_type, read_result
from epbuild.cache.blobs import BlobStore
from epbuild.cache.errors import translate_os_errors
from epbuild.cache.leases import lease
from epbuild.cache.staging import staged
from epbuild.cluster.abilities import Abilities
from epbuild.cluster.protocol import MachineReply, Outcome
from epbuild.cluster.request import TOOLCHAIN_KIND, ActionRequest, AskedToolchain, parse_action, parse_toolchain
from epbuild.core.digest import Blob, Count
from epbuild.core.errors import Cancelled, EnvironmentFailure, EpbuildError, Problem, StepId, StoreError
from epbuild.core.installer import UvListener
from epbuild.engine.events import Progress, StepOutput, StepStarted, count_step_bytes
from epbuild.plan.key import compute_action_key
from epbuild.plan.remote_record import COMPILE
from epbuild.plan.result import ActionResult, make_action_record, open_action_records
from epbuild.plan.steps import Action
from epbuild.remote.cache import NotFetched, RemoteCache, list_blobs
from epbuild.remote.envelope import RemoteRecord
from epbuild.toolchain.environment import Environment, Toolchains
from epbuild.toolchain.execution import Execution
from epbuild.toolchain.identity import TOOLCHAIN, build_record_documents, make_records
from epbuild.toolchain.lock import LockedEnvironment
from epbuild.toolchain.platforms import get_own_platform

_LOG = "worker.log"
_UNFIT_HINT = "Start a worker on a machine that can execute the action."
_LOCAL_HINT = "Build on this machine, without --executor."
_UNPUBLISHED_HINT = "Check that the worker may write to the remote cache, then run again. The worker keeps the result."
_LOCK_PLATFORM_HINT = "Lock the recipe on a machine like the worker, or build there."
_LOCK_HINT = "Lock the recipe with `epbuild lock`, so that every machine creates the same toolchain."


class Machine(Struct, frozen=True):
    """Machine that executes requests. Thread-safe."""

    root: Path
    """Root of the machine's cache, with blobs, records, and the working folder of compiles."""
    toolchains: Toolchains
    remote: RemoteCache
    name: str = field(default_factory=platform.node)
    abilities: Abilities | None = None
    """Results of the machine's probes, or None if it does not probe."""

    @property
    def store(self) -> BlobStore:
        return BlobStore(self.root)

    def execute(self, request: ActionRequest, progress: Progress, cancelled: threading.Event) -> MachineReply:
        """Execute a request unless its result is known, publish the result, and return the reply. Errors are part of the reply."""
        try:
            with translate_os_errors("write to its cache"):
                return self._execute(request, progress, cancelled)
        except Cancelled:
            return MachineReply("cancelled", self.name)
        except (NotFetched, ValidationError) as error:
            problem = Problem("EPB530", f"the action cannot be executed: {error}", None, _LOCAL_HINT)
            return MachineReply.failure("refused", self.name, EnvironmentFailure(problem))
        except EpbuildError as error:
            if cancelled.is_set():  # the installation was killed: this is not a refusal, as other clients may wait for it
                return MachineReply("cancelled", self.name)
            return MachineReply.failure("refused", self.name, error)

    def _execute(self, request: ActionRequest, progress: Progress, cancelled: threading.Event) -> MachineReply:
        if request.kind == TOOLCHAIN_KIND:
            return self._provide_toolchain(request, cancelled)
        store, records = self.store, open_action_records(self.root)
        found = self.remote.look_up(COMPILE, request.key)
        if isinstance(found, RemoteRecord):
            return MachineReply("found", self.name, log=COMPILE.log(found.record))
        action = parse_action(request, store)
        if self.abilities is not None and (why := self.abilities.why_not(action)) is not None:
            unfit = EnvironmentFailure(Problem("EPB542", f"the action cannot be executed: {why}", StepId(action.id), _UNFIT_HINT))
            return MachineReply.failure("unable", self.name, unfit, is_unfit=True)
        wait = StepOutput(action.steps[0], f"waiting for {self.name}, which executes the action for another build")
        with lease(self.root, request.key, on_wait=partial(progress.report, wait), cancelled=cancelled):
            record = self._find_complete_record(action, records.get(request.key))
            is_known = record is not None
            if record is None:
                built = self._build_record(action, request, progress, cancelled)
                if isinstance(built, MachineReply):
                    return built
                record = built
                records.put(request.key, record)
            # Published within the lease, so that the next client finds the result.
            with _counting(action, "uploading the result", list_blobs(COMPILE, record), progress) as count:
                published = self.remote.publish(COMPILE, request.key, record, store, count=count)
            if not published:
                message = "the result could not be written to the remote cache"
                unpublished = StoreError(Problem("EPB531", message, StepId(action.id), _UNPUBLISHED_HINT))
                return MachineReply.failure(
                    "failed", self.name, unpublished
                )  # "failed", so that no other machine repeats the work
        return MachineReply("found" if is_known else "made", self.name, log=COMPILE.log(record))

    def _build_record(
        self, action: Action, request: ActionRequest, progress: Progress, cancelled: threading.Event
    ) -> Mapping[str, Any] | MachineReply:
        """Fetch the inputs, execute the action, and return its record. If the action fails, return the reply for its error."""
        store = self.store
        progress.report(StepStarted(action.steps[0], "fetching"))
        with _counting(action, "fetching the inputs", request.files, progress) as count:
            for blob in request.files:
                self.remote.fetch(blob, store, count)
        progress.report(StepStarted(action.steps[0], "staging"))
        environment = self._provision(action, request, cancelled)
        document = _build_document(action, environment, request)
        with self._open(action, environment, progress, cancelled) as execution:
            try:
                return make_action_record(document, _build_result(action, document, execution))
            except StoreError:
                raise
            except EpbuildError as error:
                log = self._publish_log(execution)
                is_unfit = self._is_unfit(action, environment, cancelled)
                outcome: Outcome = "unable" if is_unfit or isinstance(error, EnvironmentFailure) else "failed"
                return MachineReply.failure(outcome, self.name, error, log=log, is_unfit=is_unfit)

    def _is_unfit(self, action: Action, environment: Environment, cancelled: threading.Event) -> bool:
        """Return whether this machine lacks an ability that a failed action needs. The answer does not depend on the model."""
        if self.abilities is None:
            return False
        self.abilities.judge(action, environment, cancelled)
        return self.abilities.why_not(action) is not None

    def _provide_toolchain(self, request: ActionRequest, cancelled: threading.Event) -> MachineReply:
        """Provision the requested toolchain if it is missing, publish its records, and return the reply."""
        asked = parse_toolchain(request, self.store)
        environment = self.toolchains.prepare(
            asked.toolchain, self.root, asked.entries, request.environment, asked.packages, UvListener(cancelled)
        )
        for key, record in _build_records(asked, request.environment, environment).items():
            if not self.remote.publish(TOOLCHAIN, key, record, self.store):
                message = (
                    f"the toolchain '{asked.toolchain.name}' was created, but its records could not be written to the remote "
                    f"cache"
                )
                raise StoreError(Problem("EPB531", message, None, _UNPUBLISHED_HINT))
        return MachineReply("made", self.name)

    def _find_complete_record(self, action: Action, record: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
        """Return the record if the store has all artifacts of the recorded result, or None otherwise."""
        result = read_result(action, record["result"]) if record is not None else None
        is_complete = result is not None and all(self.store.has(blob.digest, blob.size) for blob in result.artifacts.values())
        return record if is_complete else None

    def _provision(self, action: Action, request: ActionRequest, cancelled: threading.Event) -> Environment:
        needs = action.runs_in
        if needs is None:
            raise ValidationError("the action has no toolchain")
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
            digests = {file: file.name for file in action.files}
            yield Execution(environment, staging, folder / _LOG, shown, self.store, progress, cancelled, digests)

    def _publish_log(self, execution: Execution) -> Blob | None:
        """Publish the log of a failed action and return its blob. Return None if it cannot be published."""
        with suppress(StoreError):  # the failure itself is more important
            if execution.log.exists():
                log = execution.store.put(execution.log)
                return log if self.remote.upload_input(log, partial(execution.store.pieces, log.digest)) else None
        return None


def _counting(action: Action, doing: str, blobs: Iterable[Blob], progress: Progress) -> AbstractContextManager[Count]:
    return count_step_bytes(progress, action.steps[0], doing, sum(blob.size for blob in blobs))


def _build_document(action: Action, environment: Environment, request: ActionRequest) -> Mapping[str, object]:
    """Return the key document of an action on this machine.

    Raises EnvironmentFailure if the document's key is not the requested key.
    """
    kind = get_action_type(action)
    digests = {file: file.name for file in action.files}
    document = kind.key_document(action, digests, kind.identity(action, environment))
    if compute_action_key(document) != request.key:
        message = "the result would differ from the requested one, because the worker's toolchain differs"
        raise EnvironmentFailure(Problem("EPB532", message, StepId(action.id), _LOCK_HINT))
    return document


def _build_result(action: Action, document: Mapping[str, object], execution: Execution) -> ActionResult:
    """Execute and finish an action, and return its result. Raises EpbuildError and Cancelled."""
    kind = get_action_type(action)
    kind.check(action)
    result: ActionResult = kind.run(action, document, execution)
    for number, part in enumerate(kind.missing_parts(action, result), 1):
        folder = execution.staging.with_name(str(number))  # not `part`, because a model may be called `0` or `worker.log`
        folder.mkdir()
        inner = dataclasses.replace(execution.create_inner(folder), shown_log=f"{execution.shown_log}/{part}")
        result = kind.add_part(action, result, part, inner)
    return result


def _build_records(
    asked: AskedToolchain, locked: LockedEnvironment | None, environment: Environment
) -> dict[str, dict[str, object]]:
    """Return the requested toolchain records, computed from the environment on this machine, by key.

    Raises EnvironmentFailure (EPB532) if the environment differs from the locked one.
    """
    if locked is None:
        raise ValidationError("the toolchain is not locked")
    documents = build_record_documents(locked, get_own_platform() or "", asked.entries, asked.packages)
    found = dict(make_records(environment, documents.values()))
    if not found.keys() >= {*asked.records}:
        message = f"the worker's toolchain '{asked.toolchain.name}' differs from the requested one"
        raise EnvironmentFailure(Problem("EPB532", message, None, _LOCK_PLATFORM_HINT))
    return {key: found[key] for key in asked.records}
