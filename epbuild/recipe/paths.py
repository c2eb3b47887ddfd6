"""Paths in a recipe: of its files, of models, and of libraries."""

from __future__ import annotations

import os.path
import re
from pathlib import Path
from typing import Final

from epbuild.core.errors import Position
from epbuild.core.safepath import links_on_the_way, real_path

PACKAGE: Final = "package:"
# What no name of an importable package holds, and a requirement with a version does.
RELEASE: Final = re.compile(rf"{PACKAGE}[^/]*[=<>~!@\[]")
# Two letters at least: `C://m.onnx` is a path.
SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://")
_LIBRARY = re.compile(r"[/\\]|\.(?:so(?:\.\d+)*|dll|dylib|pyd)$", re.IGNORECASE)


def rebased(text: str, where: Position, main: Path) -> str:
    """A path that is written at `where`, relative to its own file, as a path relative to the folder of the `main` recipe."""
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
    """Whether two paths name one file, and by the same links: where one goes through another link, it may lead elsewhere tomorrow."""
    links = [set(links_on_the_way([str(path.absolute())]).items()) for path in (one, other)]
    return links[0] == links[1] and real_path(one) == real_path(other)


def package_file(path: str) -> tuple[str, str] | None:
    """The installed Python package, and the file in it, that `package:<package>/<file>` names; None for a path of another form."""
    if not path.startswith(PACKAGE) or RELEASE.match(path):
        return None
    package, _, file = path.removeprefix(PACKAGE).partition("/")
    return package, file


def is_remote(path: str) -> bool:
    """Whether a model's path is an address, good or bad, and not a path."""
    return SCHEME.match(path) is not None or RELEASE.match(path) is not None


def names_library(text: str) -> bool:
    """Whether a text is the path of a shared library, and not the name of a Python package: it has a folder, or a library's suffix."""
    return _LIBRARY.search(text) is not None
