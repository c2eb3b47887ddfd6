"""Paths in a recipe: of its files, of models, and of libraries."""

from __future__ import annotations

import os.path
import re
from pathlib import Path
from typing import Final

from epbuild.core.errors import Position
from epbuild.core.safepath import find_links, resolve_links

PACKAGE: Final = "package:"
# Characters of a requirement with a version, which no name of an importable package has.
RELEASE: Final = re.compile(rf"{PACKAGE}[^/]*[=<>~!@\[]")
# Two letters at least: `C://m.onnx` is a path.
SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://")
_LIBRARY = re.compile(r"[/\\]|\.(?:so(?:\.\d+)*|dll|dylib|pyd)$", re.IGNORECASE)


def rebase_path(text: str, where: Position, main: Path) -> str:
    """Convert a path that is written at `where`, relative to its own file, to one relative to the folder of the `main` recipe."""
    if where.file == str(main):
        return text
    folder, home = Path(where.file).parent, main.parent
    if folder == home or Path(text).is_absolute():
        return text
    asked = folder / text
    try:
        names = [Path(os.path.relpath(asked, home)), Path(os.path.relpath(folder, home), text)]
    except ValueError:  # another drive of Windows
        names = []
    for name in names:
        if is_same(home / name, asked):
            return name.as_posix()
    return asked.absolute().as_posix()


def is_same(one: Path, other: Path) -> bool:
    """Return whether two paths lead to one file through the same links. Paths with different links may diverge later."""
    links = [set(find_links([str(path.absolute())]).items()) for path in (one, other)]
    return links[0] == links[1] and resolve_links(one) == resolve_links(other)


def find_package_file(path: str) -> tuple[str, str] | None:
    """Return the installed Python package and its file that `package:<package>/<file>` names, or None for another path."""
    if not path.startswith(PACKAGE) or RELEASE.match(path):
        return None
    package, _, file = path.removeprefix(PACKAGE).partition("/")
    return package, file


def is_remote(path: str) -> bool:
    """Return whether a model's path is an address, valid or not."""
    return SCHEME.match(path) is not None or RELEASE.match(path) is not None


def is_library_path(text: str) -> bool:
    """Return whether a text is the path of a shared library, not the name of a Python package: it has a folder or a library's suffix."""
    return _LIBRARY.search(text) is not None
