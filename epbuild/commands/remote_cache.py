"""Upload and checks of a recipe's results in its remote cache."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from typing import Literal, TypeVar

from msgspec import Struct

from epbuild.actions.types import is_stored
from epbuild.commands.cache import ReportBytes, ignore_bytes
from epbuild.core.digest import Blob
from epbuild.core.errors import Problem, RecipeError, StoreError
from epbuild.plan.made import Made
from epbuild.plan.remote_record import COMPILE
from epbuild.remote.cache import LookUp, LostBlob, Miss, NotFetched, RemoteCache
from epbuild.remote.envelope import RemoteRecord, Unusable
from epbuild.remote.settings import REMOTE
from epbuild.session.request import Request
from epbuild.session.session import Session, open_session
from epbuild.survey.status import Survey, Surveyor
from epbuild.toolchain.identity import TOOLCHAIN

_THREADS = 8
_POLL_SECONDS = 0.2

PushOutcome = Literal["written", "there", "failed", "not here"]
CheckOutcome = Literal["sound", "not there", "unusable", "unknown"]

T = TypeVar("T")


class PushedResult(Struct, frozen=True):
    """Outcome of pushing the result of an action."""

    step: str
    """Id of the last step of the action."""
    key: str | None
    """Action key; null if it is not known."""
    outcome: PushOutcome
    """Outcome. `there`: the remote cache already had the result. `not here`: the store has no such result."""
    size: int = 0
    """Total bytes of the result's artifacts."""


class Push(Struct, frozen=True):
    """Outcomes of pushing results to the remote cache named `remote`, with warnings for users."""

    remote: str
    results: tuple[PushedResult, ...]
    sent_bytes: int
    seconds: float
    warnings: tuple[Problem, ...]


class CheckedResult(Struct, frozen=True):
    """Outcome of checking the result of an action in a remote cache."""

    step: str
    """Id of the last step of the action."""
    key: str | None
    """Action key; null if it is not known."""
    outcome: CheckOutcome
    """Outcome. `sound`: the result is usable. `not there`: the remote cache has no such result."""
    why: str = ""
    """Reason why the result is unusable or unknown; empty otherwise."""
    size: int = 0
    """Total bytes of the result's files."""


class RemoteCheck(Struct, frozen=True):
    """Outcomes of checking a recipe's results in the remote cache named `remote`, with warnings for users."""

    remote: str
    results: tuple[CheckedResult, ...]
    received_bytes: int
    seconds: float
    warnings: tuple[Problem, ...]


def push_results(
    request: Request, progress: ReportBytes = ignore_bytes, *, replace: bool = False, cancelled: threading.Event | None = None
) -> Push:
    """Upload a recipe's results from the store to the recipe's remote cache. Return the outcome for each result.

    Results that the remote cache already has are uploaded only if `replace` is set. Raises EpbuildError. Raises Cancelled after
    `cancelled` is set.
    """
    stop = cancelled or threading.Event()
    with _open_remote(request, stop) as (session, remote, found, keys, warnings):
        here = session.surveyor.stored(found)
        sizes = {ident: sum(blob.size for blob in made.result.artifacts.values()) for ident, made in here.items()}
        done: dict[str, PushOutcome] = {}

        def push(ident: str) -> None:
            done[ident] = _push_result(here[ident], remote, session.surveyor, replace=replace)

        def advance() -> None:
            there = sum(sizes[ident] for ident, outcome in done.copy().items() if outcome == "there")
            total = sum(sizes.values())
            progress(min(there + remote.statistics.sent_bytes, total), total)

        _run_each(here, push, stop, advance)
        _push_toolchains(session, remote)
        results = tuple(PushedResult(ident, key, done.get(ident, "not here"), sizes.get(ident, 0)) for ident, key in keys.items())
        counted = remote.statistics
        return Push(
            remote.name,
            results,
            counted.sent_bytes,
            counted.seconds,
            (*found.plan.warnings, *warnings.values()),
        )


def check_results(request: Request, progress: ReportBytes = ignore_bytes) -> RemoteCheck:
    """Check all of a recipe's results in the recipe's remote cache by reading them. Return the outcome for each result.

    Raises EpbuildError.
    """
    stop = threading.Event()
    with _open_remote(request, stop) as (_, remote, found, keys, warnings):
        records = remote.look_up_all(COMPILE, filter(None, keys.values()))
        blobs = list(dict.fromkeys(blob for record in records.values() for blob in _list_blobs(record)))
        begin, total = remote.statistics.received_bytes, sum(blob.size for blob in blobs)
        wrong: dict[Blob, NotFetched] = {}

        def check(blob: Blob) -> None:
            try:
                remote.check(blob)
            except NotFetched as error:
                wrong[blob] = error

        def advance() -> None:
            progress(min(remote.statistics.received_bytes - begin, total), total)

        _run_each(blobs, check, stop, advance)
        results = tuple(_build_checked_result(ident, key, records.get(key or ""), wrong) for ident, key in keys.items())
        counted = remote.statistics
        return RemoteCheck(
            remote.name,
            results,
            counted.received_bytes,
            counted.seconds,
            (*found.plan.warnings, *warnings.values()),
        )


def _push_toolchains(session: Session, remote: RemoteCache) -> None:
    """Upload the records of locked toolchains. Other machines can then compute action keys without provisioning the toolchains."""
    toolchains = session.toolchains
    for name, environment in toolchains.environments.items() if not session.lock.warnings else ():
        for key, record in toolchains.records(name, environment).items():
            with suppress(StoreError):
                remote.publish(TOOLCHAIN, key, record, session.surveyor.store)


@contextmanager
def _open_remote(
    request: Request, stop: threading.Event
) -> Iterator[tuple[Session, RemoteCache, Survey, dict[str, str | None], dict[str, Problem]]]:
    """Open a session with its remote cache. Yield both, the survey, the key of each stored action, and the warnings by code.

    Only the last warning with each code is kept. EPB522 is not kept, because the outcomes already describe this problem.
    """
    warnings: dict[str, Problem] = {}

    def warn(problem: Problem) -> None:
        if problem.code != "EPB522":
            warnings[problem.code] = problem

    with open_session(request, cancelled=stop, warn=warn) as session:
        found = session.survey()
        if session.remote is None:
            hint = f"Set `cache.remote` in the recipe, or set {REMOTE}."
            raise RecipeError(Problem("EPB275", "no remote cache is configured", hint=hint))
        keys = {ident: found.actions[ident].key for ident, action in found.plan.actions.items() if is_stored(action)}
        yield session, session.remote, found, keys, warnings


def _push_result(made: Made, remote: RemoteCache, surveyor: Surveyor, *, replace: bool) -> PushOutcome:
    record = surveyor.records.get(made.key)
    if record is None:  # Another process removed the result.
        return "not here"
    try:
        return remote.publish(COMPILE, made.key, record, surveyor.store, replace=replace) or "failed"
    except StoreError:
        return "failed"


def _list_blobs(found: LookUp) -> tuple[Blob, ...]:
    if not isinstance(found, RemoteRecord):
        return ()
    return (*found.blobs, *((found.log,) if found.log is not None else ()))


def _build_checked_result(ident: str, key: str | None, found: LookUp | None, wrong: Mapping[Blob, NotFetched]) -> CheckedResult:
    if key is None or found is None:
        return CheckedResult(ident, key, "unknown", "the action key is not known on this machine yet")
    match found:
        case Miss(answered=False):
            return CheckedResult(ident, key, "unknown", "the remote cache did not answer")
        case Miss():
            return CheckedResult(ident, key, "not there")
        case Unusable():
            return CheckedResult(ident, key, "unusable", str(found))
    size = sum(blob.size for blob in _list_blobs(found))
    names = {blob: name for name, blob in found.files.items()}
    if found.log is not None:
        names.setdefault(found.log, "its log")
    for blob, name in names.items():
        if (error := wrong.get(blob)) is not None:
            outcome: CheckOutcome = "unusable" if isinstance(error, LostBlob) else "unknown"
            return CheckedResult(ident, key, outcome, f"{error}: {name}", size)
    return CheckedResult(ident, key, "sound", size=size)


def _run_each(items: Iterable[T], act: Callable[[T], object], stop: threading.Event, advance: Callable[[], None]) -> None:
    """Call `act` for each item, concurrently. On an exception, such as KeyboardInterrupt, set `stop` to end the other calls."""
    pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="transfer")
    try:
        waiting = {pool.submit(act, item) for item in items}
        while waiting:
            advance()
            done, waiting = wait(waiting, timeout=_POLL_SECONDS)
            for future in done:
                future.result()
        advance()
    except BaseException:
        stop.set()
        raise
    finally:
        pool.shutdown(cancel_futures=True)
