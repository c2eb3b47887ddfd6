"""Compiled models on disk, their files, and models that share these files."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from epbuild.catalog.entries import EpEntry
from epbuild.core.errors import ChangeRefused, Problem, VerifyError
from epbuild.core.safepath import BadReference, locate
from epbuild.core.shown import format_path
from epbuild.onnxfile.read.epcontext import EPContextNode, resolve
from epbuild.onnxfile.read.headers import read_header
from epbuild.onnxfile.read.model_header import ModelHeader
from epbuild.onnxfile.read.weights_files import find_weights
from epbuild.onnxfile.read.wire import MalformedModel


def read_compiled(path: Path) -> ModelHeader:
    """Read the header of a compiled model.

    Raises VerifyError (EPB600, EPB602), or ChangeRefused (EPB620) if the model contains no compiled part.
    """
    try:
        header = read_header(path)
    except OSError as error:
        raise VerifyError(Problem("EPB600", f"{format_path(path)} cannot be read: {error.strerror or error}")) from error
    except MalformedModel as error:
        raise VerifyError(Problem("EPB602", f"{format_path(path)} is not a complete ONNX file: {error}")) from error
    if not header.is_compiled:
        raise ChangeRefused(Problem("EPB620", f"{format_path(path)} contains no EPContext node: it is not a compiled model"))
    return header


def find_binary(path: Path, node: EPContextNode) -> Path:
    """Return the context binary that a node of the model `path` refers to. Raises VerifyError (EPB605)."""
    with _translate_bad_references(path):
        return resolve(path, node)


def find_context_weights(path: Path, node: EPContextNode, ep: EpEntry | None) -> str | None:
    """Return the reference of the weights file of a node's context, or None if there is none. Raises VerifyError (EPB605)."""
    with _translate_bad_references(path):
        return find_weights(path, node, ep)


def find_data(path: Path, location: str) -> Path:
    """Return the file of the model's external data at `location`. Raises VerifyError (EPB605)."""
    with _translate_bad_references(path):
        return locate(path.parent, location, "external data file")


@contextmanager
def _translate_bad_references(path: Path) -> Iterator[None]:
    try:
        yield
    except BadReference as error:
        raise VerifyError(Problem("EPB605", f"{format_path(path)}: {error}")) from error


class References:
    """Index of the models that refer to a file. Folders are listed and headers are read on first use, and only once."""

    def __init__(self, read: Callable[[Path], ModelHeader] = read_header) -> None:
        self._read_header = read
        self._folders: dict[Path, tuple[dict[str, list[Path]], list[Path]]] = {}

    def find_users(self, binary: Path, folder: Path) -> Iterator[Path]:
        """Yield the models that refer to `binary`, in order.

        The search covers the folders from `folder` down to the folder of `binary`. A model elsewhere cannot refer to
        `binary` without leaving its own folder.
        """
        wanted = os.path.realpath(binary)
        for place in _list_folders(binary, folder):
            yield from self._read(place)[0].get(wanted, ())

    def find_unreadable(self, binary: Path, folder: Path) -> Iterator[Path]:
        """Yield the unreadable `.onnx` files in the folders that `find_users` searches. Such files may refer to `binary`."""
        for place in _list_folders(binary, folder):
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
                except (OSError, ValueError):  # The model is incomplete, or a reference cannot be a file name.
                    unreadable.append(path)
            self._folders[place] = users, unreadable
        return self._folders[place]


def _list_folders(binary: Path, folder: Path) -> list[Path]:
    return [parent for parent in binary.parents if parent.is_relative_to(folder)]
