"""Logs of steps, from the last run on this machine or from the store."""

from __future__ import annotations

import codecs
import os
from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path

from epbuild.cache.blobs import BlobStore
from epbuild.cache.location import find_cache_directory
from epbuild.cache.state import Configuration, StepRecord
from epbuild.cache.workspace import Workspace, get_log_path
from epbuild.core.digest import Blob
from epbuild.core.errors import BuildError, Problem
from epbuild.core.safepath import is_regular
from epbuild.core.shown import escape_log
from epbuild.plan.steps import Plan
from epbuild.remote.settings import RemoteSettings
from epbuild.session.shared_results import open_remote_cache

_CHUNK = 1 << 16
_MAX_LINES = 100
_MAX_BYTES = 1 << 15


def list_logged_steps(plan: Plan, workspace: Workspace, recipe: Path) -> list[str]:
    """Return the ids of the steps whose last run has a log, in the order of the plan."""
    has_log = cache(partial(_has_log, workspace, recipe))  # The steps of one action share a log.
    return [step.id for step in plan.steps if step.kind != "emit" and has_log(step.action)]


def read_log(plan: Plan, step: str, workspace: Workspace, recipe: Path, settings: RemoteSettings | None = None) -> Iterator[str]:
    """Yield the log of a step's last run, in pieces. A log that is only in the remote cache of `settings` is fetched.

    Raises BuildError if the step has no log, and StoreError if the log is missing in the store.
    """
    action = next((found.action for found in plan.steps if found.id == step), step)
    path = get_log_path(workspace.directory, action, recipe.name)
    if path.is_file():
        return _read_lines(path)
    record = _get_record(workspace, recipe, action)
    if record is None or "log" not in record.result:
        raise BuildError(
            Problem("EPB430", f"step '{step}' has no log", None, "List the steps that have a log with `epbuild log`.")
        )
    store, log = BlobStore(find_cache_directory()), Blob(record.result["log"]["digest"], record.result["log"]["size"])
    if settings is not None and not store.has(log.digest, log.size):
        _fetch_log(step, log, store, settings)
    return iter([store.read_bytes(log.digest).decode("utf-8", "replace")])


def read_log_end(workspace: Path, action: str, recipe: str) -> str | None:
    """Return the last lines of the log of an action's last run, without control characters. Return None if there is no log."""
    path = get_log_path(workspace, action, recipe)
    try:
        if not is_regular(path):  # a checkout may contain a link or a pipe
            return None
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _MAX_BYTES))
            text = file.read(_MAX_BYTES).decode("utf-8", "replace")
    except OSError:
        return None
    lines = text.splitlines()[1 if size > _MAX_BYTES else 0 :]
    return escape_log("\n".join(lines[-_MAX_LINES:])) or None


def _fetch_log(step: str, log: Blob, store: BlobStore, settings: RemoteSettings) -> None:
    from epbuild.remote.cache import NotFetched

    with open_remote_cache(settings, lambda problem: None) as cache:
        if cache is None:
            return
        try:
            cache.fetch(log, store)
        except NotFetched as error:
            message = f"the log of {step} cannot be read from the remote cache {cache.name}: {error}"
            raise BuildError(Problem("EPB430", message, None, "Read the log on the machine that ran the step.")) from error


def _has_log(workspace: Workspace, recipe: Path, action: str) -> bool:
    record = _get_record(workspace, recipe, action)
    is_there = get_log_path(workspace.directory, action, recipe.name).is_file()
    return is_there or (record is not None and "log" in record.result)


def _get_record(workspace: Workspace, recipe: Path, action: str) -> StepRecord | None:
    """Return the record of an action's last run, regardless of the settings of the run."""
    return workspace.memory(Configuration.of(recipe, (), {})).previous(action)


def _read_lines(path: Path) -> Iterator[str]:
    with path.open("rb") as file:
        yield from codecs.iterdecode(iter(lambda: file.read(_CHUNK), b""), "utf-8", "replace")
