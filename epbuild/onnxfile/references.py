"""Users of context binaries: the models of a folder by the files that they name."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

from epbuild.onnxfile.headers import read_header
from epbuild.onnxfile.model_header import ModelHeader


class References:
    """Which models refer to which files; each folder is listed, and each header read, once, when it is first asked for."""

    def __init__(self, read: Callable[[Path], ModelHeader] = read_header) -> None:
        self._read_header = read
        self._folders: dict[Path, tuple[dict[str, list[Path]], list[Path]]] = {}

    def users(self, binary: Path, folder: Path) -> Iterator[Path]:
        """The models that refer to `binary`, in order.

        Looked for in the folders from `folder` down to the binary's: nothing else can refer to it without leaving its own folder.
        """
        wanted = os.path.realpath(binary)
        for place in _places(binary, folder):
            yield from self._read(place)[0].get(wanted, ())

    def unreadable(self, binary: Path, folder: Path) -> Iterator[Path]:
        """The `.onnx` files in these folders that cannot be read, which may be such."""
        for place in _places(binary, folder):
            yield from self._read(place)[1]

    def _read(self, place: Path) -> tuple[dict[str, list[Path]], list[Path]]:
        if place not in self._folders:
            users: dict[str, list[Path]] = {}
            unreadable = []
            for path in sorted(place.glob("*.onnx")):
                try:
                    names = {node.reference for node in self._read_header(path).ep_context_nodes if node.reference}
                    for binary in {os.path.realpath(place / name) for name in names}:
                        users.setdefault(binary, []).append(path)
                except (OSError, ValueError):  # no whole model, or a reference that can be no file's name
                    unreadable.append(path)
            self._folders[place] = users, unreadable
        return self._folders[place]


def _places(binary: Path, folder: Path) -> list[Path]:
    return [parent for parent in binary.parents if parent.is_relative_to(folder)]
