"""Garbage collection: removal of cache entries that no workspace needs."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from msgspec import Struct

from epbuild.cache.collect import Collected, Limits, collect
from epbuild.cache.garbage import Needs
from epbuild.cache.leases import lease
from epbuild.cache.roots import Roots
from epbuild.cache.state import Configuration
from epbuild.cache.workspace import REMOTE_MODEL, Workspace
from epbuild.core.errors import Problem, StoreError
from epbuild.core.shown import format_path
from epbuild.plan.result import is_action_record
from epbuild.survey.orphans import RESULTS, list_output_files
from epbuild.survey.snapshot import remove_older

LEASE = "upkeep"
"""Name of the lease that excludes concurrent removals and checks. Every release of epbuild must use this name."""


class Collection(Struct, frozen=True):
    """Removed and kept cache entries, and the workspaces that use the cache. Workspaces in `gone` no longer exist."""

    collected: Collected
    workspaces: tuple[Path, ...]
    gone: tuple[Path, ...]


def collect_garbage(root: Path, limits: Limits, *, dry_run: bool = False) -> Collection:
    """Remove entries that exceed the limits and that no workspace needs. With `dry_run`, only return them.

    Raises StoreError, for example if a workspace cannot be read. In this case, nothing is removed.
    """
    if not root.is_dir():
        return Collection(Collected(), (), ())
    roots = Roots(root)
    with nullcontext() if dry_run else lease(root, LEASE):
        there, gone = roots.list_workspaces()
        collected = collect(root, limits, _Workspaces(roots, root), now=time.time(), dry_run=dry_run)
        for workspace in () if dry_run else gone:
            roots.forget(workspace)
        if not dry_run:
            remove_older(str(root), time.time() - limits.max_age)
    return Collection(collected, tuple(there), tuple(gone))


class _Workspaces(Struct, frozen=True):
    """Workspaces that use the store at `root`."""

    roots: Roots
    root: Path

    def needs(self) -> Needs:
        return find_needed_entries(self.roots.list_workspaces()[0], self.root)

    def models(self) -> frozenset[str]:
        found: set[str] = set()
        for directory in self.roots.list_workspaces()[0]:
            with open_workspace(directory) as workspace:
                found.update(_list_remote_models(workspace, self.root))
        return frozenset(found)

    def blobs_of(self, record: Mapping[str, Any], /) -> Iterable[str]:
        return list_blobs(record)


def find_needed_entries(workspaces: Iterable[Path], root: Path) -> Needs:
    """Return the entries of the store at `root` that workspaces need. Raises StoreError.

    Workspaces need three kinds of entries: results in existing outputs, results of each recipe's last build that are not
    yet in an output, and remote models.
    """
    keys: set[str] = set()
    blobs: set[str] = set()
    models: set[str] = set()
    for directory in workspaces:
        with open_workspace(directory) as workspace:
            wanted = _find_needed_keys(workspace)
            keys |= wanted
            results = [step.result for _, step in workspace.steps() if step.action_key in wanted]
            blobs.update(digest for result in results for digest in get_blob_sizes(result))
            models.update(_list_remote_models(workspace, root))
    return Needs(frozenset(keys), frozenset(blobs), frozenset(models))


def _list_remote_models(workspace: Workspace, root: Path) -> Iterator[str]:
    """Yield the names of a workspace's remote models in the store at `root`. Raises StoreError."""
    for graph in map(Path, workspace.facts(REMOTE_MODEL).values()):
        if graph.is_relative_to(root):
            yield "/".join(graph.relative_to(root).parts[:2])


def _find_needed_keys(workspace: Workspace) -> set[str]:
    """Return the action keys of the results that a workspace needs.

    Results of earlier settings are needed only while an output of these settings exists.
    """
    steps = workspace.steps()
    existing = [
        output for output in workspace.outputs() if any(path.is_file() for path in list_output_files(output, workspace.base))
    ]
    last = {configuration.recipe: configuration for configuration, _ in sorted(steps, key=lambda item: item[1].finished)}
    live = {*last.values(), *(owner for output in existing for owner in output.owners)}
    made, emitted = dict[Configuration, set[str]](), dict[Configuration, set[str]]()
    for configuration, step in steps:
        if RESULTS in step.result:
            emitted.setdefault(configuration, set()).update(step.result[RESULTS])
        else:
            made.setdefault(configuration, set()).add(step.action_key)
    pending = {key for configuration in live for key in made.get(configuration, set()) - emitted.get(configuration, set())}
    return pending.union(*(output.results for output in existing))


def list_blobs(record: Mapping[str, Any]) -> Iterable[str]:
    """Return the digests of a record's artifacts and log. The result is empty for a record that builds cannot read."""
    return get_blob_sizes(record["result"]).keys() if is_action_record(record) else ()


@contextmanager
def open_workspace(directory: Path) -> Iterator[Workspace]:
    """Open a workspace. Raises StoreError if its state cannot be read."""
    with Workspace.open(directory, create=False) as workspace:
        if workspace.is_unreadable:
            message = f"cannot determine which results {format_path(directory)} needs: this user may not read its state.sqlite"
            hint = "Run the command as the owner of the workspace, or get permission to read the file."
            raise StoreError(Problem("EPB508", message, hint=hint))
        yield workspace


def get_blob_sizes(result: Any) -> dict[str, int]:
    """Return the sizes of the blobs in a result, by digest. The result is empty for a result without blobs."""
    match result:
        case {"artifacts": dict(artifacts), "log": dict(log)}:
            named = (*artifacts.values(), log)
            return {blob["digest"]: blob["size"] for blob in named if {"digest", "size"} <= blob.keys()}
    return {}
