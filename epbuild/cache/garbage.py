"""Cache entries besides blobs and records: downloads and damaged files."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol

from msgspec import Struct

from epbuild.cache.drafts import touch
from epbuild.cache.entries import CacheEntry, list_files_below
from epbuild.cache.errors import translate_os_errors
from epbuild.cache.leases import lease_if_free
from epbuild.core.atomic import rename
from epbuild.core.file_use import discard

_NAME = re.compile(r"[0-9a-f]{64}")
_DAMAGED = ("cas/damaged", "actions/damaged", "remote/actions/damaged", "identities/actions/damaged", "probes/actions/damaged")
_PARTIAL = "cas/partial"
_REMOTE = "remote"
_DRAFT = ".part"
"""Suffix of the stored copy of a remote model while the copy is being downloaded or removed."""


class Needs(Struct, frozen=True):
    """Entries that the builds of registered workspaces need: keys of records, digests of blobs, and names of remote models."""

    keys: frozenset[str] = frozenset()
    blobs: frozenset[str] = frozenset()
    models: frozenset[str] = frozenset()


class CacheUsers(Protocol):
    """Builds that use a store and can parse its records."""

    def needs(self) -> Needs:
        """Return the entries that the builds need now. Raises StoreError."""

    def models(self) -> frozenset[str]:
        """Return the names of the remote models that the builds need. Raises StoreError.

        This method is called often, so it must not read results.
        """

    def blobs_of(self, record: Mapping[str, Any], /) -> Iterable[str]:
        """Return the digests of the blobs that a record refers to."""


class Garbage:
    """Remote models, partial downloads and damaged files in the store at `root`. Their names are POSIX paths relative to `root`."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def entries(self) -> Iterator[CacheEntry]:
        """Yield all entries. Raises StoreError."""
        with translate_os_errors("list {}", self._root):
            for folder in _DAMAGED:
                for path, status in list_files_below(self._root / folder):
                    yield CacheEntry("damaged", f"{folder}/{path.name}", status.st_size, status.st_mtime_ns)
            for path, status in list_files_below(self._root / _PARTIAL):
                if _NAME.fullmatch(path.name):
                    yield CacheEntry("partial download", f"{_PARTIAL}/{path.name}", status.st_size, status.st_mtime_ns)
            yield from self._list_remote_models()

    def remove(self, entry: CacheEntry) -> bool:
        """Remove an entry that `entries` listed, and return whether it was removed.

        The entry is kept if another process holds its lease, or has used the entry since it was listed.
        The entry must not be a remote model. Raises StoreError.
        """
        path = self._root / entry.name
        with translate_os_errors("remove {}", path):
            match entry.kind:
                case "damaged":
                    discard(path)
                    return True
                case "partial download":
                    name = f"remote-{path.stem}" if path.suffix == _DRAFT else f"fetch-{path.name}"
                    with lease_if_free(self._root, name) as held:
                        if not held or not _is_as_listed(path, entry):
                            return False
                        discard_all(path)
                        discard(path.with_name(f"{path.name}.json"))
                        return True
        raise ValueError(f"cannot remove an entry of the kind '{entry.kind}'")

    def remove_models(self, entries: Iterable[CacheEntry], users: CacheUsers) -> set[str]:
        """Remove those remote models in `entries` that `users` do not need, and return the names of the removed models.

        A model is kept if another process holds its lease, or has used the model since it was listed.
        `users` is queried once, while holding the leases that readers take. Raises StoreError.
        """
        with ExitStack() as held:
            free = [
                entry for entry in entries if held.enter_context(lease_if_free(self._root, f"remote-{Path(entry.name).name}"))
            ]
            kept, gone = users.models(), set()
            for entry in free:
                path = self._root / entry.name
                with translate_os_errors("remove {}", path):
                    if entry.name not in kept and _is_as_listed(path, entry):
                        # Renamed first: from then on, the model counts as not fetched, even if its removal is interrupted.
                        draft = path.with_suffix(_DRAFT)
                        discard_all(draft)
                        rename(path, draft)
                        discard_all(draft)
                        gone.add(entry.name)
            return gone

    def use(self, name: str) -> None:
        """Update the time of a remote model's last use, if the model exists."""
        touch(self._root / name)

    def _list_remote_models(self) -> Iterator[CacheEntry]:
        folder = self._root / _REMOTE
        for path in sorted(folder.iterdir()) if folder.is_dir() else ():
            if path.is_dir() and _NAME.fullmatch(path.name):
                size = sum(status.st_size for _, status in list_files_below(path))
                yield CacheEntry("remote model", f"{_REMOTE}/{path.name}", size, path.stat().st_mtime_ns)
            elif path.suffix == _DRAFT and _NAME.fullmatch(path.stem):
                status = path.stat()
                size = sum(inner.st_size for _, inner in list_files_below(path)) if path.is_dir() else status.st_size
                yield CacheEntry("partial download", f"{_REMOTE}/{path.name}", size, status.st_mtime_ns)


def _is_as_listed(path: Path, entry: CacheEntry) -> bool:
    return path.exists() and path.stat().st_mtime_ns == entry.used_ns


def discard_all(path: Path) -> None:
    """Remove a file or a folder with its contents, if it exists, even if it is read-only. Raises OSError."""
    if not path.is_dir():
        discard(path)
        return
    for file, _ in list_files_below(path):
        discard(file)
    for folder in sorted((inner for inner in path.rglob("*") if inner.is_dir()), reverse=True):
        folder.rmdir()
    path.rmdir()
