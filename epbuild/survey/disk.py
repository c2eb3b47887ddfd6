"""Disk space that a build needs, estimated before the build starts."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from epbuild.core.errors import Problem
from epbuild.core.shown import format_path
from epbuild.engine.events import DiskNeeded
from epbuild.plan.made import Made
from epbuild.plan.measuring import ModelMeasurement
from epbuild.plan.preparing import Preparation
from epbuild.plan.result import ActionResult
from epbuild.plan.steps import Action, Emission, Plan
from epbuild.plan.verification import Verification
from epbuild.recipe.splitting import SPLIT
from epbuild.survey.action_status import ActionStatus

_LARGE_SHARE = 0.1
_MAX_GROWTH = 4
"""Factor by which results may be larger than their sources."""
_STORE_HINT = (
    "Free some space with `epbuild gc`, build fewer steps at once, or set EPBUILD_CACHE_DIR to a folder on another disk."
)
_OTHER_HINT = "Free some space there, or build fewer steps at once."
"""Hint for a file system without the store."""


class Folders(Struct, frozen=True):
    """Folders that a build writes to, besides its outputs, and a function that returns the free bytes of a folder's file system."""

    store: Path
    base: Path
    """Folder of the recipe, which contains the workspace."""
    get_free: Callable[[Path], int] = lambda folder: shutil.disk_usage(folder).free


def estimate_disk(
    plan: Plan,
    found: Mapping[str, ActionStatus],
    todo: Sequence[str],
    folders: Folders,
    previous: Callable[[Action], ActionResult | None],
) -> tuple[DiskNeeded, ...]:
    """Return the file systems on which a build needs much of the free space.

    `previous` returns an action's last result in this workspace. It is called only if the sources are large.
    """
    if not todo:
        return ()
    rough = _compare(_estimate_writes(plan, found, todo, folders, lambda action: None), folders)
    if all(item.size * _MAX_GROWTH <= item.free * _LARGE_SHARE for item in rough):
        return ()
    needed = _compare(_estimate_writes(plan, found, todo, folders, previous), folders)
    return tuple(item for item in needed if item.size > item.free * _LARGE_SHARE)


def find_disk_problems(needed: Sequence[DiskNeeded], store: Path) -> Iterator[Problem]:
    """Yield a warning for each file system that has too little space for a build. `store` is the folder of the store."""
    for item in needed:
        if item.size > item.free:
            from rich.filesize import decimal  # few builds need it

            place = f"the file system of {format_path(item.folder)}, but only {decimal(item.free)} are free"
            message = f"the build writes about {decimal(item.size)} to {place}"
            yield Problem("EPB517", message, None, _STORE_HINT if item.folder == str(store) else _OTHER_HINT)


def _estimate_writes(
    plan: Plan,
    found: Mapping[str, ActionStatus],
    todo: Sequence[str],
    folders: Folders,
    previous: Callable[[Action], ActionResult | None],
) -> list[tuple[Path, int]]:
    """Return the folders that a build writes to, with the expected number of bytes."""
    read: dict[Path, int] = {}
    sizes: dict[str, int] = {}
    parts = Counter(_get_split_input(action) for action in plan.actions.values() if isinstance(action, Preparation))
    staged = 0
    outputs: list[tuple[Path, int]] = []

    def read_size(path: Path) -> int:
        if path not in read:
            read[path] = 0
            with suppress(OSError):  # the step that reads the file reports the error
                read[path] = path.stat().st_size
        return read[path]

    for ident in todo:  # in dependency order
        action, made = plan.actions[ident], found[ident].made
        needed = sum(sizes[need] if need in sizes else _measure(found[need].made) for need in action.needs)
        if isinstance(action, Emission):
            outputs.append((action.path.parent, 0 if action.push_only else needed))
            continue
        source = sum(map(read_size, action.files)) + needed
        if isinstance(action, Preparation):
            staged = max(staged, source)
            if (split := _get_split_input(action)) is not None:
                source //= parts[split]
        result = made.result if made is not None else previous(action)
        sizes[ident] = (
            0 if isinstance(action, Verification | ModelMeasurement) else source if result is None else _measure(result)
        )
    return [(folders.store, sum(sizes.values())), (folders.base, staged), *outputs]


def _get_split_input(preparation: Preparation) -> Hashable | None:
    """Return what a preparation splits, which is the same for all parts of a model. Return None for other preparations."""
    return (preparation.needs, preparation.files) if preparation.kind == SPLIT else None


def _measure(result: Made | ActionResult | None) -> int:
    """Return the bytes of a result, or 0 if it is None."""
    if isinstance(result, Made):
        result = result.result
    return sum(blob.size for blob in set(result.artifacts.values())) if result is not None else 0


def _compare(writes: Sequence[tuple[Path, int]], folders: Folders) -> list[DiskNeeded]:
    """Return the bytes that are written to each file system, and its free bytes."""

    @cache
    def find_existing(folder: Path) -> Path:
        return folder if os.path.isdir(folder) or folder == folder.parent else find_existing(folder.parent)  # noqa: PTH112

    sizes: dict[Path, int] = {}
    names: dict[Path, Path] = {}
    for folder, size in writes:
        place = find_existing(folder)
        names.setdefault(place, folder)
        sizes[place] = sizes.get(place, 0) + size
    found: dict[int, DiskNeeded] = {}
    for place, size in sizes.items():
        with suppress(OSError):  # the step that writes to the folder reports the error
            device = place.stat().st_dev
            before = found.get(device) or DiskNeeded(str(names[place]), 0, folders.get_free(place))
            found[device] = replace(before, size=before.size + size)
    return [item for item in found.values() if item.size]
