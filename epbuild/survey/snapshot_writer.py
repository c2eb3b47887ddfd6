"""Writer of the snapshot at the end of a run."""

from __future__ import annotations

import marshal
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from stat import S_ISDIR, S_ISLNK, S_ISREG
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct, field

from epbuild.cache.digests import UnchangedFiles
from epbuild.core.digest import hash_bytes
from epbuild.core.errors import Problem, ProblemRecord
from epbuild.core.host import get_change_time_ns
from epbuild.core.safepath import find_links, read_regular
from epbuild.recipe.model import Recipe
from epbuild.survey.snapshot import (
    Snapshot,
    describe_environment,
    describe_identity,
    describe_view,
    get_snapshot_path,
    is_settled,
    read_clock,
)
from epbuild.survey.status import StepStatus

if TYPE_CHECKING:
    from epbuild.survey.snapshot import Moment, Stat

_MAX_REREAD_BYTES = 1 << 20
"""Maximum size of a file that is read again because its times could not be trusted when the run began."""


class Observations(Struct, frozen=True, kw_only=True):
    """Everything that the result of a run depends on, and the final status of its steps."""

    recipe: Recipe
    began: Moment
    """Time when the run began, from `read_clock`."""
    variables: Mapping[str, str | None]
    """Environment variables that the recipe read."""
    lock: str
    """State of the lock, as in `Snapshot.lock`."""
    warnings: Sequence[Problem]
    files: Mapping[str, str]
    """All files and folders with their SHA-256, or an empty string if the digest is unknown."""
    absent: Sequence[Path]
    """Files that did not exist during the survey. If one of these files appears, the result of the survey may change."""
    unchanged: UnchangedFiles
    """Files that were unchanged when the run began, and that the run did not touch. Their stats are not read again."""
    steps: Sequence[StepStatus]
    is_current: bool
    """True if all steps are current until a file changes."""
    drivers: Mapping[Any, str] = field(default_factory=dict)
    """Versions of the drivers that the result depends on, by arguments of `read_driver_version`."""


def write_snapshot(seen: Observations, settings: Sequence[str], selection: Sequence[str]) -> None:
    """Write the snapshot of a run with `settings` and the steps that match `selection`.

    Write nothing if a file is missing, or if neither its times nor a known digest can show a change.
    """
    recipe = str(seen.recipe.file)
    place, identity = get_snapshot_path(recipe, settings, selection), describe_identity(recipe)
    here = os.path.join(os.getcwd(), "")  # noqa: PTH109, PTH118
    # Not normalized, because `link/..` is the parent of the link's target.
    absent = [os.path.join(here, str(path)) for path in seen.absent]  # noqa: PTH118
    if place is None or identity is None or any(map(os.path.lexists, absent)):
        return
    files = _Files(recipe, seen.began)
    for name, digest in seen.files.items():
        known = seen.unchanged.stats.get(name)
        if known is not None and seen.unchanged.digests[name] == digest:
            files.keep(known, digest)
        elif not files.add(os.path.join(here, name), digest):  # noqa: PTH118
            return
    steps = [
        (*status.step[:4], status.key, status.outputs, status.on_real_device)  # a plain tuple, as marshal rejects named tuples
        for status in seen.steps
    ]
    Snapshot(
        identity=identity,
        environment=describe_environment(seen.variables),
        absent=tuple(absent),
        links=tuple(find_links([*files.places, *absent]).items()),
        view=describe_view(recipe),
        drivers=tuple(seen.drivers.items()),
        lock=seen.lock,
        warnings=msgspec.to_builtins([ProblemRecord.of(problem) for problem in dict.fromkeys(seen.warnings)]),
        defaults=msgspec.to_builtins(seen.recipe.defaults),
        name=seen.recipe.name,
        count=len(steps),
        is_current=seen.is_current,
        fresh=tuple(number for number, path in enumerate(files.stats) if path in files.fresh),
        files=list(files.stats.values()),
        digests=marshal.dumps(list(files.digests.values())),
        steps=marshal.dumps(steps),
    ).write(place)


class _Files:
    """Stats and digests of the files of a snapshot, by path."""

    def __init__(self, recipe: str, began: Moment) -> None:
        self.stats: dict[str, Stat] = {}
        self.digests: dict[str, bytes] = {}
        self.fresh: set[str] = set()
        """Paths of the files whose times cannot be trusted."""
        self.places: set[str] = set()
        """Paths that are links or may contain links: the folders of all regular files, and all other paths."""
        self._recipe = recipe
        self._began = began
        self._now: Moment | None = None

    def keep(self, seen: Stat, digest: str) -> None:
        """Add a file with the stat `seen` in the last snapshot."""
        path = seen[0]
        self.places.add(path[: path.rindex(os.sep)])
        self.stats[path], self.digests[path] = seen, bytes.fromhex(digest)

    def add(self, path: str, digest: str) -> bool:
        """Add a file. Return False if neither its times nor its digest can show a change."""
        try:
            return self._add(path, digest)
        except OSError:
            return False

    def _add(self, path: str, digest: str) -> bool:
        seen = os.lstat(path)
        self.places.add(os.path.dirname(path) if S_ISREG(seen.st_mode) else path)  # noqa: PTH120 - pathlib takes longer
        if S_ISLNK(seen.st_mode):  # links in the path are compared separately
            path = os.path.realpath(path)
            seen = os.lstat(path)
        if not (S_ISREG(seen.st_mode) or S_ISDIR(seen.st_mode)):
            return False
        if self.digests.get(path):
            return True
        ctime_ns = get_change_time_ns(path, seen)
        settled = is_settled(seen, ctime_ns, self._began)
        if not settled and digest and seen.st_size <= _MAX_REREAD_BYTES:
            settled = self._is_settled_by_now(path, seen, ctime_ns, digest)
        if not (settled or digest):
            return False
        if not settled:
            self.fresh.add(path)
        self.stats[path] = (path, seen.st_size, seen.st_mtime_ns, ctime_ns, seen.st_ino)
        self.digests[path] = bytes.fromhex(digest)
        return True

    def _is_settled_by_now(self, path: str, seen: os.stat_result, ctime_ns: int, digest: str) -> bool:
        """Return whether a file that changed in this run now has times that can be trusted, and still has the content `digest`."""
        if self._now is None:
            self._now = read_clock(self._recipe) or (0, 0)
        if not is_settled(seen, ctime_ns, self._now):
            return False
        return hash_bytes(read_regular(path)) == digest
