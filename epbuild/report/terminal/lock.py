"""Changes of a lock."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from epbuild.commands.lock import Locking
from epbuild.core.errors import printable
from epbuild.core.shown import shown_path
from epbuild.core.units import counted
from epbuild.report.terminal.screen import has_colors, paint, print_line
from epbuild.toolchain.lock import Lock, LockChange

_COLORS = {"added": "32", "updated": "33", "removed": "31"}
_WIDTH = max(map(len, _COLORS))


def print_lock(locking: Locking, exported: Mapping[str, Path | None], *, written: bool) -> None:
    """Print each change, the state of the lock, and each exported toolchain."""
    color = has_colors(sys.stdout)
    for change in locking.changes:
        print_line(f"{paint(f'{change.kind:<{_WIDTH}}', _COLORS[change.kind], color)}  {printable(_words(change))}")
    place = shown_path(locking.path)
    if written:
        print_line(f"Wrote {place}: {_contents(locking.lock)}")
    elif locking.is_written:
        print_line(f"{place} is up to date: {_contents(locking.lock)}")
    else:
        print_line(f"{place} is not up to date; `epbuild lock` writes it.")
    for name, path in exported.items():
        if path is not None:
            print_line(f"Wrote {shown_path(path)}: toolchain {name}")
        else:
            print_line(f"Left out toolchain {name}: its environment exists already, and names no files")


def _words(change: LockChange) -> str:
    owner = f"toolchain {change.toolchain}  " if change.toolchain else "" if change.about == "python" else f"{change.about} "
    where = f"  ({', '.join(change.platforms)})" if change.platforms else ""
    return f"{owner}{'' if change.about == 'recipe' else f'{change.name} '}{_versions(change)}{where}"


def _versions(change: LockChange) -> str:
    match change.old, change.new:
        case None, new:
            return str(new)
        case old, None:
            return str(old)
        case old, new if old == new:
            return f"{old}, of other content"
        case old, new:
            return f"{old} -> {new}"


def _contents(lock: Lock) -> str:
    environments = [environment for toolchain in lock.toolchains.values() for environment in toolchain.platforms.values()]
    packages = {package.name for environment in environments for package in environment.packages}
    platforms = {platform for toolchain in lock.toolchains.values() for platform in toolchain.platforms}
    counts = {
        "toolchain": lock.toolchains,
        "package": packages,
        "platform": platforms,
        "remote model": lock.models,
        "wheel": lock.wheels,
    }
    return ", ".join(counted(len(items), noun) for noun, items in counts.items() if items)
