"""The location of this user's store.

One place for all checkouts, so that they share what was built.
"""

from __future__ import annotations

import os
from pathlib import Path

from epbuild.cache.errors import explained
from epbuild.core.errors import Problem, StoreError
from epbuild.core.places import cache_root

# The first line is what backup programs look for: https://bford.info/cachedir/.
_TAG = """\
Signature: 8a477f597d28d172789f06886806bc55
# This folder is epbuild's cache: it can be removed at any time, and need not be backed up.
# What cache directory tags are: https://bford.info/cachedir/
"""


def cache_directory() -> Path:
    """The root of the store, as `cache_root` has it; makes nothing. Raises StoreError when there is no home directory to keep it in."""
    root = cache_root()
    if root is None:
        problem = Problem(
            "EPB503",
            "there is no home directory to keep the store in",
            hint="Set EPBUILD_CACHE_DIR to a directory that this user may write to.",
        )
        raise StoreError(problem)
    return Path(root)


def tag_cache(root: Path) -> None:
    """Have backup and archiving programs know the store at `root`, made where it is not, as a cache. Raises StoreError."""
    tag = root / "CACHEDIR.TAG"
    if tag.exists():
        return
    from epbuild.core.atomic import write_file  # needed once in the life of a store

    with explained(f"write {tag}"):
        root.mkdir(parents=True, exist_ok=True)
        write_file(tag, _TAG)


def toolchain_directory() -> Path:
    """Where environments are: `$EPBUILD_TOOLCHAIN_DIR`, else `toolchains` in the store. Makes nothing.

    They have a place of their own so that a store can be thrown away, as tests and CI jobs do, without installing them again. Raises
    StoreError as `cache_directory` does.
    """
    chosen = os.environ.get("EPBUILD_TOOLCHAIN_DIR")
    return Path(chosen).absolute() if chosen else cache_directory() / "toolchains"
