"""Files that an application has in memory."""

from __future__ import annotations

import mmap
from collections.abc import Mapping
from pathlib import Path, PureWindowsPath

from .variants import MANIFEST, OpenError

Content = bytes | bytearray | memoryview | mmap.mmap


class Contents:
    """Content of files in memory, by path.

    The paths in `given` are relative to the folder `path`. If `path` is a manifest, they are relative to the manifest's folder.
    """

    def __init__(self, path: Path, given: Mapping[str, Content] | None) -> None:
        root = path.parent if path.suffix == Path(MANIFEST).suffix and not path.is_dir() else path
        self._by_path = {root / name: content for name, content in (given or {}).items()}

    def __contains__(self, path: Path) -> bool:
        return path in self._by_path

    def __getitem__(self, path: Path) -> Content:
        return self._by_path[path]

    def list_manifests(self) -> list[Path]:
        """Return the paths of the manifests in memory."""
        return sorted(path for path in self._by_path if path.name == MANIFEST)


def check_files(files: object) -> None:
    """Raise OpenError (EPB654) if the argument `files` does not map relative paths to the content of files."""
    if files is None:
        return
    if not isinstance(files, Mapping):
        raise OpenError("EPB654", f"files must be a mapping from relative paths to the content of files, not {files!r}")
    for name, content in files.items():
        path = PureWindowsPath(name) if isinstance(name, str) and name else None
        if path is None or path.drive or path.root or ".." in path.parts:
            raise OpenError("EPB654", f"files must have relative paths without '..', not {name!r}")
        if not isinstance(content, Content):
            raise OpenError(
                "EPB654", f"files must map {name!r} to bytes, a memoryview or an mmap, not to {type(content).__name__}"
            )
