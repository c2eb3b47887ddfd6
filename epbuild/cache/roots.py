"""Registered workspaces of a store, one small file for each.

Garbage collection keeps the entries that these workspaces need. It forgets workspaces that were deleted.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from epbuild.cache.drafts import Drafts
from epbuild.cache.errors import translate_os_errors
from epbuild.core.canonical import encode_canonical
from epbuild.core.digest import hash_bytes
from epbuild.core.safepath import read_regular

_FORMAT = 1


class Roots:
    """Workspaces that are registered in the store at `root`. Any number of processes may use the store concurrently."""

    def __init__(self, root: Path) -> None:
        self._roots = root / "roots"
        self._drafts = Drafts(self._roots / "tmp")

    def register(self, workspace: Path) -> None:
        """Register the existing workspace at the absolute path `workspace`. Raises StoreError."""
        place = self._get_path(workspace)
        data = _encode(f"{encode_canonical({'format': _FORMAT, 'workspace': str(workspace)})}\n")
        with translate_os_errors("write {}", place):
            with suppress(FileNotFoundError):
                if read_regular(place) == data:
                    return
            with self._drafts.new() as draft:
                draft.file.write(data)
                draft.publish(place)

    def forget(self, workspace: Path) -> None:
        """Unregister a workspace that no longer exists. Raises StoreError."""
        place = self._get_path(workspace)
        with translate_os_errors("remove {}", place):
            place.unlink(missing_ok=True)
        if workspace.is_dir():
            # A build has just created the workspace again. It found the old registration, so it did not register.
            self.register(workspace)

    def list_workspaces(self) -> tuple[list[Path], list[Path]]:
        """Return two lists of registered workspaces: existing ones and missing ones. Raises StoreError."""
        existing, gone = list[Path](), list[Path]()
        with translate_os_errors("read {}", self._roots):
            for workspace in sorted(self._read_registered()):
                (existing if workspace.is_dir() else gone).append(workspace)
        return existing, gone

    def _read_registered(self) -> Iterator[Path]:
        try:
            files = [path for path in self._roots.iterdir() if path.suffix == ".json"]
        except FileNotFoundError:
            return
        for path in files:
            with suppress(FileNotFoundError, ValueError, RecursionError):
                match json.loads(_decode(read_regular(path))):
                    case {"format": int(), "workspace": str(workspace)}:
                        yield Path(workspace)

    def _get_path(self, workspace: Path) -> Path:
        return self._roots / f"{hash_bytes(_encode(str(workspace)))}.json"


# Paths need not be valid text: Python represents undecodable bytes (PEP 383) and invalid UTF-16 of Windows as lone surrogates.


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _decode(data: bytes) -> str:
    return data.decode("utf-8", "surrogatepass")
