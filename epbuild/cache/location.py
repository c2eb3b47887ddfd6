"""Location of this user's store, and the user's workspace key.

All checkouts of a user share one store, and so share results.
"""

from __future__ import annotations

import os
from pathlib import Path

from epbuild.cache.errors import translate_os_errors
from epbuild.cache.leases import lease
from epbuild.core.atomic import write_file
from epbuild.core.defaults import find_cache_root
from epbuild.core.errors import Problem, StoreError
from epbuild.core.safepath import read_regular
from epbuild.core.user_settings import read_user_settings

# Backup programs search for the first line: https://bford.info/cachedir/.
_TAG = """\
Signature: 8a477f597d28d172789f06886806bc55
# This folder is epbuild's cache. It can be removed at any time, and needs no backup.
# About cache directory tags: https://bford.info/cachedir/
"""


_KEY_FILE = "workspace.key"
_KEY_BYTES = 32
_KEY_MODE = 0o660  # minus the umask: users who share a store share its key


def find_cache_directory() -> Path:
    """Return the root of the store, which need not exist.

    Raises StoreError if the user's settings are invalid, or if the user has no home directory.
    """
    root = find_cache_root()
    if root is None:
        read_user_settings()
        hint = "Set EPBUILD_CACHE_DIR to a writable directory."
        problem = Problem("EPB503", "this user has no home directory for the store", None, hint)
        raise StoreError(problem)
    return Path(root)


def tag_cache(root: Path) -> None:
    """Create the store at `root` if it is missing, and mark it as a cache for backup programs. Raises StoreError."""
    tag = root / "CACHEDIR.TAG"
    if tag.exists():
        return
    with translate_os_errors("write {}", tag):
        root.mkdir(parents=True, exist_ok=True)
        write_file(tag, _TAG)


def ensure_workspace_key() -> bytes:
    """Return the key that marks workspaces as this user's, and create it if it is missing. Raises StoreError.

    A workspace's state decides which files are deleted and which steps are skipped, but a checkout may contain a workspace. So each row of
    the state has a checksum that requires this key. The key is as private as the store that contains it.
    """
    root = find_cache_directory()
    key = _read_key(root)
    if key is None:
        with lease(root, _KEY_FILE):  # all processes get the same key
            key = _read_key(root)
            if key is None:
                key = os.urandom(_KEY_BYTES)
                with translate_os_errors("write {}", root / _KEY_FILE):
                    write_file(root / _KEY_FILE, key, mode=_KEY_MODE)
    return key


def read_workspace_key() -> bytes | None:
    """Return the workspace key, or None if it is missing or unreadable. Creates nothing."""
    root = find_cache_root()
    return _read_key(Path(root)) if root is not None else None


def _read_key(root: Path) -> bytes | None:
    try:
        key = read_regular(root / _KEY_FILE)
    except OSError:
        return None
    return key if len(key) == _KEY_BYTES else None


def find_toolchain_directory() -> Path:
    """Return the folder of environments: `$EPBUILD_TOOLCHAIN_DIR`, or else `toolchains` in the store.

    The folder need not exist. With the variable, tests and CI jobs can delete a store without installing environments again. Raises
    StoreError as `find_cache_directory` does.
    """
    chosen = os.environ.get("EPBUILD_TOOLCHAIN_DIR")
    return Path(chosen).absolute() if chosen else find_cache_directory() / "toolchains"
